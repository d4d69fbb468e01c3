"""What became of an interruption, told by the records of the turns that saw it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from spotkeeper.domain.decision import Controller, DecisionRecord
from spotkeeper.domain.load.load import LoadDigest, merged
from spotkeeper.domain.money.ledger import Life


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What users noticed of a time: requests that started in it, those late or failed, in numbers.

    `late` is None where nothing is promised about waiting; `longest_s` is the longest wait.
    """

    requests: int
    late: int | None
    failed: int
    longest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One drill: instants of what happened, None for what did not (yet).

    `warned` is when a turn knew, `asked` when a replacement was asked for, `gone` when the last
    of the instances had ended, `whole` when as much served again without them, and `back` when
    spot alone did and no more stood in on demand than before the drill.
    """

    fleet: str
    instances: tuple[str, ...]
    started: datetime
    warned: datetime | None = None
    asked: datetime | None = None
    gone: datetime | None = None
    whole: datetime | None = None
    back: datetime | None = None

    @property
    def over(self) -> bool:
        return self.gone is not None and self.back is not None

    @property
    def end(self) -> datetime | None:
        """When the last of it happened, if all did."""
        return max(self.gone, self.back) if self.gone and self.back else None


def told(
    story: Story,
    records: Iterable[DecisionRecord],
    lives: Iterable[Life],
    stood_in: float,
) -> Story:
    """Tell a story as far as records and instances go; `stood_in` served on demand before it."""
    turns = sorted(
        (
            r
            for r in records
            # One that only says that memory was lost saw nothing.
            if r.controller is Controller.AVAILABILITY and r.at >= story.started and r.seen
        ),
        key=lambda r: r.at,
    )
    warned = _first(turns, lambda r: r.seen["Interruptions"] + r.seen["SpotAtRisk"] > 0)
    after = [r for r in turns if warned is not None and r.at >= warned]
    ends = [life.until for life in lives]
    gone = max((end for end in ends if end), default=None) if all(ends) else None
    whole = _first(after, _whole)
    settled = [r for r in after if gone is not None and r.at >= gone]
    return Story(
        fleet=story.fleet,
        instances=story.instances,
        started=story.started,
        warned=warned,
        asked=_first(after, _asks),
        gone=gone,
        whole=whole,
        back=_first(settled, lambda r: _back(r, stood_in)),
    )


def service(digests: Sequence[LoadDigest], promised_s: float | None) -> Service:
    """Count what the logs of a time say."""
    waits = merged(digest.waits for digest in digests)
    return Service(
        requests=waits.count,
        late=None if promised_s is None else waits.count - waits.within(promised_s),
        failed=sum(w.error + w.timeout for digest in digests for w in digest.workers),
        longest_s=waits.quantile_s(1.0),
    )


def _first(
    turns: Iterable[DecisionRecord], happened: Callable[[DecisionRecord], bool]
) -> datetime | None:
    return next((turn.at for turn in turns if happened(turn)), None)


def _asks(turn: DecisionRecord) -> bool:
    """Whether a turn asked for instances and was not refused."""
    return turn.seen["EarlyReplacements"] + turn.seen["Backfilled"] > 0


def _whole(turn: DecisionRecord) -> bool:
    seen = turn.seen
    return seen["SpotServing"] + seen["OnDemandServing"] >= seen["SpotDesired"]


def _back(turn: DecisionRecord, stood_in: float) -> bool:
    seen = turn.seen
    return seen["SpotServing"] >= seen["SpotDesired"] and seen["OnDemandDesired"] <= stood_in
