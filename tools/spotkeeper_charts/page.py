"""What the tools' pages are made of: plain values in, one HTML file out that needs nothing else.

Times are seconds from the start of the timeline. A series is a step function: a value holds from
its time until that of the next one; None is a gap. `templates/charts.js` draws the timelines.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

type Value = float | None
type Colour = Literal[
    "spot", "on-demand", "target", "loss", "load", "wait", "worst", "band", "dry", "line", "soft"
]
"""The names of the page's colours, which differ between day and night."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One quantity in a chart: a line, or the area between it and `base` (0 where none is given).

    Where its points crowd, neighbours are shown as one: their mean, or their highest.
    """

    label: str
    colour: Colour
    t: Sequence[float]
    values: Sequence[Value]
    kind: Literal["area", "line"] = "line"
    base: Sequence[float] | None = None
    crowded: Literal["", "mean", "highest"] = ""
    width: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Times (from, to, what) that are marked: over a chart's whole height, or at its foot."""

    label: str
    colour: Colour
    spans: Sequence[tuple[float, float, str]]
    foot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """Instants that are marked above a chart."""

    label: str
    colour: Colour
    at: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Series on one value axis, from 0 to `top`.

    Without `top` the axis ends at the highest value. `whole` allows no fractions on it.
    """

    title: str
    unit: str
    series: Sequence[Series]
    height: int = 150
    top: float | None = None
    whole: bool = False
    spans: Sequence[Spans] = ()
    marks: Marks | None = None
    ours: bool = False

    def end(self) -> float:
        """Where its value axis ends."""
        if self.top is not None:
            return self.top
        values = (value for one in self.series for value in one.values if value is not None)
        highest = max([1.0, *values])
        return highest + 0.4 if self.whole else highest * 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """Texts at instants, such as the reasons of a checker's turns, in the order of time."""

    name: str
    t: Sequence[float]
    texts: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Charts below (or, in `columns`, beside) each other, over `length_s` seconds.

    `clock_s` is the time of day at the start, and the axis shows the clock; without it the axis
    shows hours from the start. `date` ("2026-11-20") names midnights. With `one_scale` all charts
    end at the same value, so that they can be compared; what is higher than `top` is cut off.
    In columns one legend stands for all. `start_at` is
    where the cursor begins.
    """

    length_s: float
    charts: Sequence[Chart]
    clock_s: float | None = None
    date: str | None = None
    one_scale: bool = False
    columns: bool = False
    bands: Spans | None = None
    notes: Sequence[Notes] = ()
    start_at: float = 0.0
    intro: str = ""
    kind: str = "timeline"

    def data(self) -> dict[str, object]:
        """What the page's script reads; texts that repeat are kept once."""
        ends = [chart.end() for chart in self.charts]
        tops = [max(ends)] * len(ends) if self.one_scale else ends
        data: dict[str, Any] = asdict(self) | {"legends": not self.columns}
        for chart, top in zip(data["charts"], tops, strict=True):
            chart["top"] = top
        for notes in data["notes"]:
            # Numbered in the order of their first use.
            numbers = {text: number for number, text in enumerate(dict.fromkeys(notes["texts"]))}
            notes["text"] = [numbers[text] for text in notes["texts"]]
            notes["texts"] = list(numbers)
        return data


def changed(t: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Leave out the points of a step function at which nothing changes."""
    kept = [n for n in range(len(t)) if n == 0 or values[n] != values[n - 1]]
    return [t[n] for n in kept], [values[n] for n in kept]


WIDTH, HEIGHT = 400.0, 330.0
LEFT, RIGHT, TOP, BOTTOM = 54.0, 12.0, 26.0, 40.0
FINEST = 1e-4
"""Less than this share not served is drawn at the top, as 100 %."""
GLYPH, LINE = 7.4, 13.0
"""About the width and height of a letter of the labels, in the widest usual font."""
SHARES = (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)
COSTS = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Something that served a share of the time at a cost, both shares of 1."""

    name: str
    served: float
    cost: float
    kind: Literal["ours", "optimum", "peer", "limit"] = "peer"


@dataclass(frozen=True, slots=True)
class Mark:
    """A policy's place, and that of its label."""

    name: str
    kind: str
    x: float
    y: float
    label_x: float
    label_y: float
    anchor: str
    hint: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on an axis with its text."""

    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """The picture's geometry, in the units of its view box."""

    marks: Sequence[Mark]
    costs: Sequence[Tick]
    shares: Sequence[Tick]
    limit: float | None
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM
    kind: str = "scatter"


type _Box = tuple[float, float, float, float]
"""Left, top, right and bottom."""


def scatter(points: Sequence[Point]) -> Scatter:
    """The picture of comparable points; the limit is a line, every other one a mark."""
    costs = [max(point.cost, 0.01) for point in points]
    low, high = min(costs) * 0.85, max(max(costs) * 1.1, min(costs) * 2)

    def x_of(cost: float) -> float:
        return LEFT + math.log(cost / low) / math.log(high / low) * (WIDTH - LEFT - RIGHT)

    def y_of(served: float) -> float:
        missed = max(1 - served, FINEST)
        return TOP + (math.log10(missed / FINEST) / -math.log10(FINEST)) * (HEIGHT - TOP - BOTTOM)

    ticks: list[Tick] = []
    # From the axis' end, without those that have no room beside another.
    for cost in reversed([cost for cost in COSTS if low < cost <= high]):
        if not ticks or x_of(cost) <= ticks[-1].at - GLYPH * 5:
            ticks.append(Tick(x_of(cost), f"{cost:.0%}"))
    limit = next((point.cost for point in points if point.kind == "limit"), None)
    places = sorted(
        (y_of(point.served), x_of(max(point.cost, 0.01)), number)
        for number, point in enumerate(points)
        if point.kind != "limit"
    )
    taken: list[_Box] = [(x - 5, y - 5, x + 5, y + 5) for y, x, _ in places]
    below = HEIGHT - BOTTOM + 11
    taken += (_box(tick.at - GLYPH * 2.5, below, GLYPH * 5) for tick in ticks)
    marks: list[Mark] = []
    for y, x, number in places:
        point = points[number]
        label_x, label_y, anchor, box = min(
            _label_places(point.name, x, y), key=lambda place: _cost(place[3], taken)
        )
        taken.append(box)
        hint = f"{point.name}: {point.served:.2%} served at {point.cost:.1%} of all on demand"
        marks.append(Mark(point.name, point.kind, x, y, label_x, label_y, anchor, hint))
    return Scatter(
        marks=marks,
        costs=ticks,
        shares=[Tick(y_of(share), f"{100 * share:g} %") for share in SHARES],
        limit=None if limit is None else x_of(limit),
    )


def _label_places(text: str, x: float, y: float) -> Iterator[tuple[float, float, str, _Box]]:
    """Where a label could be, the nearest first: right, left, below, above, then farther off."""
    width = GLYPH * len(text)
    for far in (0.0, LINE, 2 * LINE, 3 * LINE):
        for down in (far, -far) if far else (0.0,):
            middle = y + down
            yield x + 8, middle + 4, "start", _box(x + 8, middle, width)
            yield x - 8, middle + 4, "end", _box(x - 8 - width, middle, width)
        for down in (LINE + far, -LINE - far):
            yield x, y + down + 4, "middle", _box(x - width / 2, y + down, width)


def _box(left: float, middle: float, width: float) -> _Box:
    return left, middle - LINE / 2, left + width, middle + LINE / 2


def _cost(box: _Box, taken: Sequence[_Box]) -> float:
    """How bad a label's place is: how far it sticks out, and what it overlaps."""
    left, top, right, bottom = box
    outside = max(LEFT - left, 0) + max(right - WIDTH, 0) + max(-top, 0)
    overlap = sum(
        max(0.0, min(right, each[2]) - max(left, each[0]))
        * max(0.0, min(bottom, each[3]) - max(top, each[1]))
        for each in taken
    )
    return outside * 100 + overlap


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
    # Only a page needs it: the local AWS, which draws none, is without it.
    from jinja2 import Environment, PackageLoader, StrictUndefined

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
