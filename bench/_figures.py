"""A figure beside its limit, and how figures and tables are shown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value in `unit`; at most `limit`, where there is one, to five decimals."""

    name: str
    value: float
    unit: str = ""
    limit: float | None = None

    @property
    def kept(self) -> bool:
        return self.limit is None or self.value - self.limit < 5e-6  # noqa: PLR2004


def table(columns: Iterable[str], rows: Iterable[Iterable[str]], **options: Any) -> Table:
    made = Table(*columns, **options)
    for row in rows:
        made.add_row(*row)
    return made


def show(title: str, figures: Sequence[Figure], caption: str = "") -> bool:
    """Print figures, four digits and all of those before the point; tell if all are kept."""
    rows = []
    for figure in figures:
        value, limit, verdict = figure.value, "", ""
        shown = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"  # noqa: PLR2004
        if figure.limit is not None:
            limit = f"{figure.limit:g} {figure.unit}"
            verdict = "[green]kept[/]" if figure.kept else "[red]MISSED[/]"
        rows.append((figure.name, f"{shown} {figure.unit}", limit, verdict))
    heads = ("figure", "measured", "limit", "")
    Console().print(table(heads, rows, title=title, caption=caption))
    return all(figure.kept for figure in figures)
