"""The picture of a day as one HTML file that needs nothing else: figures, charts, reasons."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from spotkeeper_lab.files import write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number with its name and, in a sentence, what it is."""

    label: str
    value: str
    meaning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Something that went wrong at `at_s`, and how it ended."""

    at_s: float
    clock: str
    what: str
    ended: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of a half ("availability" or "health"): the rule that bound, and why."""

    at_s: float
    half: str
    rule: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All that the report shows; series are columns of equal length that start with `t`.

    `fleet` has t, target, spot, on_demand; `market_total` t, capacity; `load` t, busy, workers and
    needed; `waits` t, p95, worst (seconds, None without a request). Times are seconds from the
    start; `clock_s` is the time of day at the start.
    """

    title: str
    subtitle: str
    footer: str
    length_s: float
    clock_s: float
    wait_objective_s: float
    headline: Sequence[Figure]
    figures: Sequence[Figure]
    fleet: Mapping[str, Sequence[float]]
    market: Mapping[str, Mapping[str, Sequence[float]]]
    market_total: Mapping[str, Sequence[float]]
    load: Mapping[str, Sequence[float]]
    waits: Mapping[str, Sequence[float | None]]
    losses: Sequence[float] = ()
    bands: Sequence[tuple[float, float, str]] = ()
    turns: Sequence[Turn] = ()
    moments: Sequence[Moment] = field(default=())


def write_report(picture: Picture, path: Path) -> None:
    """Write the report; replaces the file at once or not at all."""
    environment = Environment(
        loader=PackageLoader("spotkeeper_lab"), autoescape=True, undefined=StrictUndefined
    )
    html = environment.get_template("report.html.j2").render(
        title=picture.title,
        subtitle=picture.subtitle,
        footer=picture.footer,
        headline=picture.headline,
        figures=picture.figures,
        moments=[asdict(moment) for moment in picture.moments],
        day=_data(picture),
        css=_source(environment, "report.css"),
        js=_source(environment, "report.js"),
    )
    write_whole(path, html)


def _source(environment: Environment, name: str) -> str:
    loader = environment.loader
    assert loader is not None
    return loader.get_source(environment, name)[0]


def _data(picture: Picture) -> dict[str, Any]:
    """What the page's script reads; texts that repeat are kept once."""
    rules, reasons = _Texts(), _Texts()
    return {
        "length_s": picture.length_s,
        "clock_s": picture.clock_s,
        "wait_objective_s": picture.wait_objective_s,
        "fleet": picture.fleet,
        "market": [{"pool": pool, **series} for pool, series in picture.market.items()],
        "market_total": picture.market_total,
        "load": picture.load,
        "waits": picture.waits,
        "losses": picture.losses,
        "bands": picture.bands,
        "turns": {
            half: _columns((t for t in picture.turns if t.half == half), rules, reasons)
            for half in ("availability", "health")
        },
        "rules": rules.texts,
        "reasons": reasons.texts,
    }


class _Texts:
    """Numbers texts in order of their first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def texts(self) -> list[str]:
        return list(self._numbers)

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))


def _columns(turns: Iterable[Turn], rules: _Texts, reasons: _Texts) -> dict[str, list[float]]:
    rows = sorted(turns, key=lambda turn: turn.at_s)
    return {
        "t": [turn.at_s for turn in rows],
        "rule": [rules.number(turn.rule) for turn in rows],
        "reason": [reasons.number(turn.reason) for turn in rows],
    }
