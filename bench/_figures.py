"""A figure beside its limit, and how figures are shown."""

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measured value in `unit`; at most `limit`, where there is one."""

    name: str
    value: float
    unit: str
    limit: float | None = None

    @property
    def verdict(self) -> str:
        """Whether the limit is kept; empty without one."""
        if self.limit is None:
            return ""
        return "[green]kept[/]" if self.value <= self.limit else "[red]MISSED[/]"


def show(title: str, figures: Iterable[Figure], caption: str = "") -> None:
    table = Table("figure", "measured", "limit", "", title=title, caption=caption)
    for figure in figures:
        limit = "" if figure.limit is None else f"{figure.limit:g} {figure.unit}"
        table.add_row(figure.name, f"{_shown(figure.value)} {figure.unit}", limit, figure.verdict)
    Console().print(table)


def narrow_table(*columns: str) -> Table:
    """A table whose rows fit 80 columns."""
    return Table(*columns, box=None, padding=(0, 1, 0, 0), pad_edge=False)


def _shown(value: float) -> str:
    """Three digits, and all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004
