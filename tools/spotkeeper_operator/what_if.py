"""What another promise about waiting would have cost yesterday, by the shadows of the fleet's log.

The history in the table has the load of a day by minute. Every rule of the family serves it once
for each promise, and the cheapest that kept a promise is its price.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spotkeeper.adapters.dynamodb.load_histories import LoadHistoryTable
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.load.history import STEP_SLOTS, ArrivalWindow, LoadHistory, arrival_log
from spotkeeper.domain.settings.sizing import Objective
from spotkeeper.domain.sizing.shadows import FAMILY, FIRST_STEPS, ObjectivePolicy, judged
from spotkeeper_operator.aws import Aws, OperatorError, chosen
from spotkeeper_operator.text import columns, paragraphs

# Logs of minutes do not tell how service times vary: as if they were exponential.
VARIATION = 1.0
# More workers than any fleet has: what the promise costs where no bound holds the fleet.
UNBOUND = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """A promise, the cheapest rule that kept it, and what that kept and cost.

    Where no rule kept it (`kept` is false): the rule nearest to it, and in `unbound_hours` what
    the promise costs without `bounds.spot_max`; None where no number of workers keeps it.
    """

    wait_s: float
    share: float
    rule: str
    kept: bool
    in_time: float
    worker_hours: float
    unbound_hours: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """One fleet's day at the promise of now, the first price, and at another one."""

    name: str
    hours: float
    requests: int
    prices: tuple[Price, ...]


def parse_promise(text: str, now: Objective) -> Objective:
    """Read `wait_s=30,share=0.9`; what is left out stays as it is."""
    fields = {"wait_s": now.wait_s, "share": now.share}
    for part in text.split(","):
        name, _, value = part.partition("=")
        try:
            if name.strip() not in fields:
                raise ValueError
            fields[name.strip()] = float(value)
        except ValueError as error:
            message = f"{part!r} is not wait_s=SECONDS or share=SHARE, as in wait_s=30,share=0.9"
            raise OperatorError(message) from error
    if not (0 < fields["share"] < 1 and 0 <= fields["wait_s"] <= 86_400):  # noqa: PLR2004
        raise OperatorError("share is above 0 and below 1, wait_s is 0 to 86,400 seconds")
    return replace(now, wait_s=fields["wait_s"], share=fields["share"])


def read_what_if(aws: Aws, stack_name: str, fleet: str | None, promise: str) -> list[WhatIf]:
    """Price a promise for each fleet with an objective; raises `Gone` and `OperatorError`."""
    stack = aws.stack(stack_name)
    table = LoadHistoryTable(aws.dynamodb, stack.table)
    fleets = [each for each in chosen(aws.documents(stack), fleet) if each.objective]
    if not fleets:
        raise OperatorError("no fleet has an objective: set `objective` in its document")
    return [what_if(each, table.read(each.name), promise) for each in fleets]


def what_if(fleet: Fleet, history: LoadHistory, promise: str) -> WhatIf:
    """Let the shadows serve the day that the history has, once for each promise."""
    assert fleet.objective is not None
    objectives = (fleet.objective, parse_promise(promise, fleet.objective))
    steps = max(0, len(history.work_ms) * 6 // STEP_SLOTS - FIRST_STEPS)
    if not steps:
        message = f"fleet {fleet.name}: the history has less than half an hour; ask again later"
        raise OperatorError(message)
    per, scores = fleet.workers_per_instance * fleet.slots, history.scores
    prices: list[Price] = []
    for objective in objectives:
        policy = ObjectivePolicy(
            wait_s=objective.wait_s,
            share=objective.share,
            min_workers=fleet.bounds.spot_min * per,
            max_workers=fleet.bounds.spot_max * per + scores.onprem,
            start_up_s=scores.start_up_s or objective.start_up_s,
            onprem=scores.onprem,
            per_instance=per,
            slots=fleet.slots,
        )
        best = _cheapest(history, policy)
        if not best.kept:
            unbound = _cheapest(history, replace(policy, max_workers=UNBOUND))
            best = replace(best, unbound_hours=unbound.worker_hours if unbound.kept else None)
        prices.append(best)
    return WhatIf(
        name=fleet.name,
        hours=steps / 12,
        requests=sum(history.requests[-5 * steps :]),
        prices=tuple(_no_dearer(each, prices) for each in prices),
    )


def _no_dearer(price: Price, all_prices: Sequence[Price]) -> Price:
    """A fleet that is sized for a stricter promise keeps this one, too, and may be the cheapest."""
    stricter = (
        each for each in all_prices if each.wait_s <= price.wait_s and each.share >= price.share
    )
    best = min(
        (each for each in stricter if each.kept),
        key=lambda each: (each.worker_hours, each is not price),
        default=price,
    )
    if best is price:
        return price
    rule = f"as for {best.share:.4g} within {best.wait_s:g} s"
    return replace(best, wait_s=price.wait_s, share=price.share, rule=rule)


def _cheapest(history: LoadHistory, policy: ObjectivePolicy) -> Price:
    """Return the cheapest rule that kept the promise, or else the one nearest to it."""
    empty = ArrivalWindow(first_slot=history.next_step * STEP_SLOTS, requests=(), work_ms=())
    log = arrival_log(history, empty)
    late, hours = [0.0] * len(FAMILY), [0.0] * len(FAMILY)
    ends = range((FIRST_STEPS + 1) * STEP_SLOTS, len(log) + 1, STEP_SLOTS)
    for end in ends:
        step_late, minutes = judged(log, end, policy, VARIATION)
        for at, each in enumerate(step_late):
            late[at] += each
            slot_hours = minutes[at] / 60 - policy.onprem * STEP_SLOTS * 10 / 3600
            hours[at] += slot_hours / policy.slots
    requests = max(1, log.count(ends[0] - STEP_SLOTS, len(log)))
    budget = (1 - policy.share) * requests + 1e-9
    members = range(len(FAMILY))
    kept = [at for at in members if late[at] <= budget]
    best = min(kept or members, key=lambda at: (hours[at] if kept else late[at], hours[at]))
    return Price(
        wait_s=policy.wait_s,
        share=policy.share,
        rule=str(FAMILY[best]),
        kept=bool(kept),
        in_time=round(1 - late[best] / requests, 4),
        worker_hours=round(hours[best], 1),
    )


def what_if_text(answers: Sequence[WhatIf]) -> str:
    """The prices as a table for each fleet."""
    blocks: list[list[str]] = []
    for fleet in answers:
        now, other = fleet.prices
        rows = [
            {
                "promise": f"{each.share:.4g} within {each.wait_s:g} s",
                "in time": f"{each.in_time:.1%}",
                "worker-hours": f"{each.worker_hours:.1f}",
                "rule": each.rule.removeprefix("Erlang C on the "),
            }
            for each in fleet.prices
        ]
        lines = [
            f"{fleet.name}: the last {fleet.hours:.1f} h, {fleet.requests:,} requests",
            *columns(rows, frozenset({"in time", "worker-hours"})),
        ]
        if now.kept and other.kept and now.worker_hours > 0:
            change = other.worker_hours / now.worker_hours - 1
            lines.append(f"The second promise costs {change:+.0%} worker-hours.")
        for each in (price for price in fleet.prices if not price.kept):
            needed = each.unbound_hours
            without = f"{needed:.1f} worker-hours" if needed is not None else "no rule keeps it"
            lines.append(
                f"With these bounds no rule keeps {each.share:g} within {each.wait_s:g} s."
            )
            lines.append(f"Without bounds.spot_max: {without}.")
        blocks.append(lines)
    return paragraphs(blocks)
