"""What turns in observe mode would have done, beside what really ran; from their records.

Hours are those of instances. What a turn wished and saw holds until the next turn, for five
minutes at most: a gap in the records is nobody's wish.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise

from spotkeeper.domain.decision import DecisionRecord, Request, RequestKind
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.permission import Permission
from spotkeeper_operator.aws import Aws, chosen
from spotkeeper_operator.text import as_json, extended, labelled, paragraphs

LONGEST_STEP = timedelta(minutes=5)
WISHES_AT_MOST = 8
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Instances, or hours of them, by how they are paid for; `unfilled` serve nowhere."""

    spot: float = 0.0
    on_demand: float = 0.0
    unfilled: float = 0.0

    def cost(self, price_ratio: float) -> float:
        """What it costs, in what one costs on demand; spot at a share of that."""
        return self.on_demand + price_ratio * self.spot

    def plus(self, other: "Running", hours: float) -> "Running":
        """Add what runs for some hours."""
        return Running(
            spot=self.spot + hours * other.spot,
            on_demand=self.on_demand + hours * other.on_demand,
            unfilled=self.unfilled + hours * other.unfilled,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """A kind of request that turns did not send, and how often."""

    kind: RequestKind
    group: str
    desired: int | None
    times: int

    @property
    def text(self) -> str:
        request = Request(kind=self.kind, group=self.group, desired=self.desired)
        return request.text("" if self.kind is RequestKind.LOOK_AGAIN else "an instance")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedReport:
    """One fleet's observed time: turns, what they wished most, hours that ran and would have.

    `unreadable` records were written by another release.
    """

    name: str
    first: datetime | None
    last: datetime | None
    turns: int
    wishes: tuple[Wish, ...]
    ran: Running
    would: Running
    unreadable: int = 0


def read_observed(
    aws: Aws, stack_name: str, fleet: str | None, first: datetime, last: datetime
) -> list[ObservedReport]:
    """Sum up what turns in observe mode would have done; raises `Gone` and `OperatorError`."""
    stack = aws.stack(stack_name)
    records = aws.records(stack)
    reports: list[ObservedReport] = []
    for each in chosen(aws.documents(stack), fleet):
        read = records.between(each.name, first, last)
        reports.append(replace(observed(each, read.records), unreadable=read.unreadable))
    return reports


def observed(fleet: Fleet, records: Iterable[DecisionRecord]) -> ObservedReport:
    """Sum up a fleet's turns in observe mode."""
    turns = sorted((r for r in records if r.permission is Permission.OBSERVE), key=lambda r: r.at)
    ran = would = Running()
    wished: dict[str, float] = {}
    there = Running()
    for turn, following in pairwise(turns):
        if figures := turn.availability:
            there = Running(
                spot=figures.spot_serving + figures.spot_launching,
                on_demand=figures.on_demand_serving,
                unfilled=figures.shortfall_unfilled,
            )
        if turn.availability or turn.health:
            # A size that is wished for holds until the controller that wished for it looks again.
            group = fleet.on_demand_group if turn.availability else fleet.spot_group
            wished.pop(group, None)
            for one in turn.observed:
                if one.group == group and one.desired is not None:
                    wished.setdefault(group, one.desired)
        # Spot that is wished for is taken as had, on demand stands in for what lacks.
        stands_in = fleet.on_demand_group in wished
        wish = Running(
            spot=wished.get(fleet.spot_group, there.spot),
            on_demand=wished.get(fleet.on_demand_group, there.on_demand),
            unfilled=0.0 if stands_in else there.unfilled,
        )
        hours = min(following.at - turn.at, LONGEST_STEP) / _HOUR
        ran, would = ran.plus(there, hours), would.plus(wish, hours)
    # Without instances, times and reasons, so that those of one kind are counted together.
    kinds = Counter(
        Request(kind=one.kind, group="" if one.instances else one.group, desired=one.desired)
        for turn in turns
        for one in turn.observed
    )
    return ObservedReport(
        name=fleet.name,
        first=turns[0].at if turns else None,
        last=turns[-1].at if turns else None,
        turns=len(turns),
        wishes=tuple(
            Wish(kind=one.kind, group=one.group, desired=one.desired, times=times)
            for one, times in kinds.most_common(WISHES_AT_MOST)
        ),
        ran=ran,
        would=would,
    )


def report_text(reports: Sequence[ObservedReport], price_ratio: float) -> str:
    blocks: list[list[str]] = []
    for report in reports:
        rows: list[tuple[str, str]] = []
        lines = [f"{report.name}: no turn in observe mode in this time"]
        if report.first is not None and report.last is not None:
            span = f"{report.first:%Y-%m-%d %H:%M} to {report.last:%Y-%m-%d %H:%M} UTC"
            turns = "1 turn" if report.turns == 1 else f"{report.turns} turns"
            lines = labelled(report.name, f"{span}, {turns} in observe mode", indent=0)
            for wish in report.wishes:
                times = f"{wish.times} {'time' if wish.times == 1 else 'times'}"
                rows.append(("would do", f"{times}: {wish.text}"))
            for label, running in (("ran", report.ran), ("would run", report.would)):
                hours = (
                    f"{running.spot:.1f} h spot, {running.on_demand:.1f} h on demand, "
                    f"{running.unfilled:.1f} h short; "
                    f"costs {running.cost(price_ratio):.1f} h on demand"
                )
                rows.append((label, hours))
        if report.unreadable:
            rows.append(("left out", f"{report.unreadable} records of another release"))
        blocks.append([*lines, *(line for row in rows for line in labelled(*row))])
    return paragraphs(blocks or [["no fleet"]])


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedAnswer(ObservedReport):
    """The same for programs; costs are hours of on-demand price."""

    ran_cost_h: float
    would_cost_h: float


def report_json(reports: Sequence[ObservedReport], price_ratio: float) -> str:
    costs = [(each, each.ran.cost(price_ratio), each.would.cost(price_ratio)) for each in reports]
    return as_json(
        fleets=[
            extended(ObservedAnswer, each, ran_cost_h=ran, would_cost_h=would)
            for each, ran, would in costs
        ]
    )
