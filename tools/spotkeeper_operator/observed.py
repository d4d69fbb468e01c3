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
    wished: dict[str, float] = {}
    there = Running()
    for turn, following in pairwise(turns):
        if turn.looked:
            # A size that is wished for holds until the controller that wished for it looks again.
            availability = turn.controller is Controller.AVAILABILITY
            group = fleet.on_demand_group if availability else fleet.spot_group
            wished.pop(group, None)
            wishes = (_DESIRED.fullmatch(o.asked) for o in turn.outcomes if o.would)
            sizes = [float(found[2]) for found in wishes if found and found[1] == group]
            if sizes:
                wished[group] = sizes[0]
            if availability:
                there = Running(
                    spot=turn.seen["SpotServing"] + turn.seen["SpotLaunching"],
                    on_demand=turn.seen["OnDemandServing"],
                    unfilled=turn.seen["ShortfallUnfilled"],
                )
        # Spot that is wished for is taken as had, on demand stands in for what lacks.
        stands_in = fleet.on_demand_group in wished
        wish = Running(
            spot=wished.get(fleet.spot_group, there.spot),
            on_demand=wished.get(fleet.on_demand_group, there.on_demand),
            unfilled=0.0 if stands_in else there.unfilled,
        )
        hours = min(following.at - turn.at, LONGEST_STEP) / _HOUR
        ran, would = ran.plus(there, hours), would.plus(wish, hours)
    kinds: Counter[str] = Counter()
    for asked in (o.asked for r in turns for o in r.outcomes if o.would):
        # Without ids and times, so that those of one kind are counted together.
        kind, instances = _INSTANCE.subn("", asked)
        kinds[f"{kind} an instance" if instances else kind] += 1
    return ObservedReport(
        fleet=fleet.name,
        first=turns[0].at if turns else None,
        last=turns[-1].at if turns else None,
        turns=len(turns),
        wishes=tuple(kinds.most_common(WISHES_AT_MOST)),
        ran=ran,
        would=would,
    )


def report_text(reports: Sequence[ObservedReport], price_ratio: float) -> str:
    blocks: list[list[str]] = []
    for report in reports:
        rows: list[tuple[str, str]] = []
        lines = [f"{report.fleet}: no turn in observe mode in this time"]
        if report.first is not None and report.last is not None:
            span = f"{report.first:%Y-%m-%d %H:%M} to {report.last:%Y-%m-%d %H:%M} UTC"
            turns = "1 turn" if report.turns == 1 else f"{report.turns} turns"
            lines = labelled(report.fleet, f"{span}, {turns} in observe mode", indent=0)
            for kind, count in report.wishes:
                rows.append(("would do", f"{count} {'time' if count == 1 else 'times'}: {kind}"))
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


def report_json(reports: Sequence[ObservedReport], price_ratio: float) -> str:
    """The same for programs; costs are hours of on-demand price."""
    rows = [
        asdict(report)
        | {f"{name}_cost_h": getattr(report, name).cost(price_ratio) for name in ("ran", "would")}
        for report in reports
    ]
    return as_json(rows)
