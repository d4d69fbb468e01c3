"""Cost against service as a picture: where each policy lies, and the limit.

The cost axis is logarithmic, the service axis is logarithmic in what is not served, since 99 % and
99.9 % are as far apart for a user as 90 % and 99 %.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

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

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    marks: Sequence[Mark]
    costs: Sequence[Tick]
    shares: Sequence[Tick]
    limit: float | None
    kind: str = "scatter"


@dataclass(frozen=True, slots=True)
class _Axes:
    low: float
    high: float

    def x(self, cost: float) -> float:
        share = math.log(cost / self.low) / math.log(self.high / self.low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, served: float) -> float:
        missed = max(1 - served, FINEST)
        return TOP + (math.log10(missed / FINEST) / -math.log10(FINEST)) * (HEIGHT - TOP - BOTTOM)


@dataclass(frozen=True, slots=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: "_Box") -> float:
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return width * height if width > 0 and height > 0 else 0.0

    def outside(self) -> float:
        """How far it sticks out of the picture."""
        return max(LEFT - self.left, 0) + max(self.right - WIDTH, 0) + max(-self.top, 0)


def scatter(points: Sequence[Point]) -> Scatter:
    """The picture of comparable points; the limit is a line, every other one a mark."""
    costs = [max(point.cost, 0.01) for point in points]
    axes = _Axes(min(costs) * 0.85, max(max(costs) * 1.1, min(costs) * 2))
    ticks = list(_ticks(axes))
    limit = next((point.cost for point in points if point.kind == "limit"), None)
    return Scatter(
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - RIGHT,
        top=TOP,
        bottom=HEIGHT - BOTTOM,
        marks=tuple(_marks([point for point in points if point.kind != "limit"], axes, ticks)),
        costs=ticks,
        shares=[Tick(axes.y(share), f"{100 * share:g} %") for share in SHARES],
        limit=None if limit is None else axes.x(limit),
    )


def _ticks(axes: _Axes) -> Iterator[Tick]:
    """The cost axis' ticks from its end, without those that have no room beside another."""
    last = math.inf
    for cost in reversed([cost for cost in COSTS if axes.low < cost <= axes.high]):
        if (at := axes.x(cost)) <= last - GLYPH * 5:
            yield Tick(at, f"{cost:.0%}")
            last = at


def _marks(points: Sequence[Point], axes: _Axes, ticks: Sequence[Tick]) -> Iterator[Mark]:
    places = [(point, axes.x(max(point.cost, 0.01)), axes.y(point.served)) for point in points]
    taken = [_Box(x - 5, y - 5, x + 5, y + 5) for _, x, y in places]
    below = HEIGHT - BOTTOM + 11
    taken += [_box(tick.at - GLYPH * 2.5, below, GLYPH * 5) for tick in ticks]
    for point, x, y in sorted(places, key=lambda place: (place[2], place[1])):
        label_x, label_y, anchor, box = min(
            _label_places(point.name, x, y),
            key=lambda place: place[3].outside() * 100 + sum(map(place[3].overlap, taken)),
        )
        taken.append(box)
        hint = f"{point.name}: {point.served:.2%} served at {point.cost:.1%} of all on demand"
        yield Mark(point.name, point.kind, x, y, label_x, label_y, anchor, hint)


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
    return _Box(left, middle - LINE / 2, left + width, middle + LINE / 2)
