"""What turns in observe mode would have done, beside what really ran; from their records.

Hours are those of instances. What a turn wished and saw holds until the next turn, for five
minutes at most: a gap in the records is nobody's wish.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise

from spotkeeper.domain.decision import Controller, DecisionRecord
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.permission import Permission
from spotkeeper_operator.aws import Aws, chosen
from spotkeeper_operator.text import as_json, labelled, paragraphs

LONGEST_STEP = timedelta(minutes=5)
WISHES_AT_MOST = 8
_HOUR = timedelta(hours=1)
_INSTANCE = re.compile(r"\s*\bi-[0-9a-f]{8,17}\b,?")
_DESIRED = re.compile(r"(\S+): desired (\d+)")


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
class ObservedReport:
    """One fleet's observed time: turns, what they wished most, hours that ran and would have.

    `unreadable` records were written by another release.
    """

    fleet: str
    first: datetime | None
    last: datetime | None
    turns: int
    wishes: tuple[tuple[str, int], ...]
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
        found = records.between(each.name, first, last)
        reports.append(replace(observed(each, found.records), unreadable=found.unreadable))
    return reports


def observed(fleet: Fleet, records: Iterable[DecisionRecord]) -> ObservedReport:
    """Sum up a fleet's turns in observe mode."""
    turns = sorted((r for r in records if r.permission is not Permission.ACT), key=lambda r: r.at)
    ran = would = Running()
    newest: dict[Controller, DecisionRecord] = {}
    for turn, following in pairwise(turns):
        if turn.looked:
            newest[turn.controller] = turn
        hours = min(following.at - turn.at, LONGEST_STEP) / _HOUR
        now = _ran(newest)
        ran, would = ran.plus(now, hours), would.plus(_would(fleet, newest, now), hours)
    wishes = Counter(_kind(o.asked) for r in turns for o in r.outcomes if o.would)
    return ObservedReport(
        fleet=fleet.name,
        first=turns[0].at if turns else None,
        last=turns[-1].at if turns else None,
        turns=len(turns),
        wishes=tuple(wishes.most_common(WISHES_AT_MOST)),
        ran=ran,
        would=would,
    )


def _ran(newest: dict[Controller, DecisionRecord]) -> Running:
    """What was there when availability last looked."""
    look = newest.get(Controller.AVAILABILITY)
    if look is None:
        return Running()
    return Running(
        spot=look.seen["SpotServing"] + look.seen["SpotLaunching"],
        on_demand=look.seen["OnDemandServing"],
        unfilled=look.seen["ShortfallUnfilled"],
    )


def _would(fleet: Fleet, newest: dict[Controller, DecisionRecord], ran: Running) -> Running:
    """What would be there: the sizes that were wished for, else what is.

    Spot that is wished for is taken as had, on demand stands in for what lacks.
    """
    spot = _wished(newest.get(Controller.HEALTH), fleet.spot_group)
    on_demand = _wished(newest.get(Controller.AVAILABILITY), fleet.on_demand_group)
    return Running(
        spot=ran.spot if spot is None else spot,
        on_demand=ran.on_demand if on_demand is None else on_demand,
        unfilled=0.0 if on_demand is not None else ran.unfilled,
    )


def _wished(turn: DecisionRecord | None, group: str) -> float | None:
    for outcome in turn.outcomes if turn else ():
        found = _DESIRED.fullmatch(outcome.asked)
        if outcome.would and found and found[1] == group:
            return float(found[2])
    return None


def _kind(asked: str) -> str:
    """Say a wish without its ids and times, so that those of one kind are counted together."""
    kind, instances = _INSTANCE.subn("", asked)
    return f"{kind} an instance" if instances else kind


def report_text(reports: Sequence[ObservedReport], price_ratio: float) -> str:
    return paragraphs([_block(report, price_ratio) for report in reports] or [["no fleet"]])


def _block(report: ObservedReport, price_ratio: float) -> list[str]:
    others = f"{report.unreadable} records of another release"
    left_out = labelled("left out", others) if report.unreadable else []
    if report.first is None or report.last is None:
        return [f"{report.fleet}: no turn in observe mode in this time", *left_out]
    span = f"{report.first:%Y-%m-%d %H:%M} to {report.last:%Y-%m-%d %H:%M} UTC"
    lines = labelled(report.fleet, f"{span}, {_turns(report.turns)} in observe mode", indent=0)
    for kind, count in report.wishes:
        lines += labelled("would ask", f"{count} {'time' if count == 1 else 'times'}: {kind}")
    for label, running in (("ran", report.ran), ("would run", report.would)):
        told = (
            f"{running.spot:.1f} h spot, {running.on_demand:.1f} h on demand, "
            f"{running.unfilled:.1f} h short; costs {running.cost(price_ratio):.1f} h on demand"
        )
        lines += labelled(label, told)
    return lines + left_out


def _turns(count: int) -> str:
    return "1 turn" if count == 1 else f"{count} turns"


def report_json(reports: Sequence[ObservedReport], price_ratio: float) -> str:
    """The same for programs; costs are hours of on-demand price."""
    rows = [
        asdict(report)
        | {
            "ran_cost_h": report.ran.cost(price_ratio),
            "would_cost_h": report.would.cost(price_ratio),
        }
        for report in reports
    ]
    return as_json(rows)
