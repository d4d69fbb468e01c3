"""Every check over all facts; what could not be seen becomes a finding, too."""

from collections.abc import Iterator, Mapping
from dataclasses import fields

from spotkeeper.domain.doctor.facts import Facts, GroupFacts, Unseen
from spotkeeper.domain.doctor.finding import Finding, Severity, worst_first
from spotkeeper.domain.doctor.groups import check_pair, check_places, check_score
from spotkeeper.domain.doctor.machines import check_machine
from spotkeeper.domain.doctor.quotas import check_quotas
from spotkeeper.domain.doctor.standing import (
    check_account,
    check_documents,
    check_other_stacks,
    check_stack,
)
from spotkeeper.domain.fleet import Fleet


def examine(facts: Facts) -> tuple[Finding, ...]:
    """Answer all that is wrong, worst first; empty means a clean bill."""
    groups = {} if isinstance(facts.groups, Unseen) else facts.groups
    findings = [
        *check_account(facts.account),
        *check_documents(facts.wrong_documents, facts.fleets),
        *check_other_stacks(facts.other_stacks, facts.fleets),
        *check_quotas(facts.fleets, groups, facts.account),
        *_unseen(facts, groups),
    ]
    for fleet in facts.fleets:
        findings += _check_fleet(fleet, facts, groups)
    if facts.stack is not None:
        findings += check_stack(facts.stack, facts.fleets)
    return worst_first(findings)


def _check_fleet(fleet: Fleet, facts: Facts, groups: Mapping[str, GroupFacts]) -> Iterator[Finding]:
    mine = [groups[n] for n in (fleet.spot_group, fleet.on_demand_group) if n in groups]
    if not isinstance(facts.groups, Unseen):
        yield from _missing(fleet, groups)
    if len(mine) == 2:  # noqa: PLR2004 - both groups
        yield from check_pair(fleet, *mine)
    for group in mine:
        yield from check_places(group, facts.account.offered)
        if not isinstance(group.machine, Unseen):
            yield from check_machine(group, group.machine, facts.account, facts.stack)
    yield from check_score(fleet, facts.account)


def _missing(fleet: Fleet, groups: Mapping[str, GroupFacts]) -> Iterator[Finding]:
    for name in (fleet.spot_group, fleet.on_demand_group):
        if name not in groups:
            yield Finding(
                id="no-group",
                severity=Severity.ERROR,
                about=name,
                evidence=f"the document of {fleet.name} names it, but it does not exist",
                fix="correct the document or create the group",
            )


def _unseen(facts: Facts, groups: Mapping[str, GroupFacts]) -> Iterator[Finding]:
    """Report each fact that could not be read, by the action that would have read it."""
    machines = [g.machine for g in groups.values() if not isinstance(g.machine, Unseen)]
    for part in (facts, facts.account, facts.stack, *groups.values(), *machines):
        for each in fields(part) if part is not None else ():
            value = getattr(part, each.name)
            if isinstance(value, Unseen):
                yield Finding(
                    id="unseen",
                    severity=Severity.UNKNOWN,
                    about=each.name.replace("_", " "),
                    evidence=f"{value.action}: {value.why}",
                    fix=_mended(value),
                )


def _mended(unseen: Unseen) -> str:
    """Say how it comes to be seen: a permission helps only where one was missing."""
    match unseen.kind:
        case "Refused":
            return f"allow {unseen.action} to whoever runs this, and look again"
        case "Unavailable" | "Throttled":
            return "look again when AWS can be reached from here and answers"
        case _:
            return "see to what was found in place of it, and look again"
