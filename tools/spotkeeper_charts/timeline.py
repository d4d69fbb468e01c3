"""Charts over time that share one axis, one cursor and one zoom; drawn by templates/charts.js.

Times are seconds from the start of the timeline. A series is a step function: a value holds from
its time until the next one's; None is a gap.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

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
    """Series on one value axis, from 0 (or, logarithmic, from `log_from`) to `top`.

    Without `top` the axis ends at the highest value. `whole` allows no fractions on it.
    """

    title: str
    unit: str
    series: Sequence[Series]
    height: int = 150
    top: float | None = None
    log_from: float | None = None
    whole: bool = False
    spans: Sequence[Spans] = ()
    marks: Marks | None = None
    ours: bool = False

    def highest(self) -> float:
        """The largest value in it, at least 1."""
        found = (value for one in self.series for value in one.values if value is not None)
        return max(1.0, *found, 1.0)

    def end(self) -> float:
        """Where its value axis ends."""
        if self.top is not None:
            return self.top
        if self.log_from is not None:
            return 10.0 ** math.ceil(math.log10(max(self.highest(), 10 * self.log_from)))
        return self.highest() + 0.4 if self.whole else self.highest() * 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """What was said at instants, such as the reasons of a checker's turns; in the order of time."""

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
        data = asdict(self) | {"legends": not self.columns, "notes": [*map(_notes, self.notes)]}
        for chart, top in zip(data["charts"], tops, strict=True):
            chart |= {"top": top, "log": chart["log_from"]}
        return data


def changed(t: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Leave out the points of a step function at which nothing changes."""
    kept = [n for n in range(len(t)) if n == 0 or values[n] != values[n - 1]]
    return [t[n] for n in kept], [values[n] for n in kept]


def _notes(notes: Notes) -> dict[str, object]:
    """Number texts in the order of their first use."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(notes.texts))}
    texts = [numbers[text] for text in notes.texts]
    return {"name": notes.name, "t": list(notes.t), "text": texts, "texts": list(numbers)}
