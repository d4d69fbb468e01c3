"""A page of blocks, one after the other, as one HTML file that needs nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined

from spotkeeper_charts.scatter import Scatter
from spotkeeper_charts.timeline import Timeline

type Block = Heading | Text | Tiles | Timeline | Scatter | Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number with its name and, in a sentence, what it is."""

    label: str
    value: str
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Heading:
    text: str
    kind: str = "heading"


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; `code` is shown after it as it is to be typed."""

    text: str
    code: str = ""
    kind: str = "text"


@dataclass(frozen=True, slots=True)
class Tiles:
    """The few figures that stand out."""

    figures: Sequence[Figure]
    kind: str = "tiles"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A table's row; `at_s` makes it lead to that instant of the timeline above it."""

    cells: Sequence[str]
    at_s: float | None = None
    style: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under column names; columns named in `numbers` are set to the right.

    A row's style is "" or "ours" (the one that the page is about) or "dim" (out of the running).
    """

    columns: Sequence[str]
    rows: Sequence[Row]
    numbers: Sequence[str] = ()
    caption: str = ""
    intro: str = ""
    folded: bool = False
    kind: str = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a page shows."""

    title: str
    subtitle: str = ""
    footer: str = ""
    blocks: Sequence[Block]


def page_html(page: Page) -> str:
    loader = PackageLoader("spotkeeper_charts")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    css, js = (loader.get_source(environment, name)[0] for name in ("page.css", "charts.js"))
    return environment.get_template("page.html.j2").render(page=page, css=css, js=js)
