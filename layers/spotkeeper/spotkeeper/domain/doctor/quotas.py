"""vCPU quotas against what the fleets may ask for, matched by the quotas' names.

A published post-mortem had a spot quota of 32 and an on-demand quota of 0: the fallback could not
work, and nothing said so before it was needed. Service Quotas names the families: "All G and VT
Spot Instance Requests", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
"All P4, P3 and P2 Spot Instance Requests".
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from spotkeeper.domain.doctor.facts import AccountFacts, GroupFacts, Unseen
from spotkeeper.domain.doctor.finding import Finding, Severity
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.purchase import PurchaseOption

_NAMES = {
    PurchaseOption.SPOT: re.compile(r"All (.+) Spot Instance Requests"),
    PurchaseOption.ON_DEMAND: re.compile(r"Running On-Demand (.+) instances"),
}
_FAMILY = re.compile(r"[A-Za-z]+\d*")
# im4gn and is4gen count as I (EC2 user guide, "EC2 instance type quotas").
_COUNTED_AS = {"im": "i", "is": "i"}


def quota_for(instance_type: str, option: PurchaseOption, names: Sequence[str]) -> str | None:
    """Find the quota that an instance type counts against; None when no name fits."""
    family = instance_type.partition(".")[0].lower()
    letters = re.match(r"[a-z]+", family)
    if letters is None:
        return None
    counted = _COUNTED_AS.get(letters[0], letters[0])
    generation = counted + family[len(letters[0]) :][:1]
    for name in names:
        found = _NAMES[option].fullmatch(name)
        if found and {counted, generation} & _tokens(found[1]):
            return name
    return None


def _tokens(families: str) -> set[str]:
    """Read "G and VT", "P4, P3 and P2" or "Standard (A, C, D)" as lower-case families."""
    return {token.lower() for token in _FAMILY.findall(families)} - {"and", "standard"}


def check_quotas(
    fleets: Sequence[Fleet], groups: Mapping[str, GroupFacts], account: AccountFacts
) -> Iterator[Finding]:
    """Compare each vCPU quota with the sum of what the fleets may ask of it."""
    if isinstance(account.quotas, Unseen) or isinstance(account.vcpus, Unseen):
        return
    wanted: dict[str, float] = defaultdict(float)
    askers: dict[str, list[str]] = defaultdict(list)
    for group, option, most in _askers(fleets, groups):
        for quota, size in _demand(group, option, account.quotas, account.vcpus).items():
            wanted[quota] += most * size
            askers[quota].append(group.name)
        yield from _without_quota(group, option, account.quotas)
    for quota, needed in wanted.items():
        if account.quotas[quota] < needed:
            yield _too_small(quota, account.quotas[quota], needed, askers[quota])


def _askers(
    fleets: Sequence[Fleet], groups: Mapping[str, GroupFacts]
) -> Iterator[tuple[GroupFacts, PurchaseOption, int]]:
    for fleet in fleets:
        if fleet.spot_group in groups:
            yield groups[fleet.spot_group], PurchaseOption.SPOT, fleet.bounds.spot_max
        if fleet.on_demand_group in groups and fleet.bounds.on_demand_max:
            on_demand = groups[fleet.on_demand_group]
            yield on_demand, PurchaseOption.ON_DEMAND, fleet.bounds.on_demand_max


def _demand(
    group: GroupFacts,
    option: PurchaseOption,
    quotas: Mapping[str, float],
    vcpus: Mapping[str, int],
) -> dict[str, int]:
    """Name each quota of a group's types, with the vCPUs of the largest type that counts on it."""
    demand: dict[str, int] = {}
    for instance_type in group.types:
        quota = quota_for(instance_type, option, tuple(quotas))
        if quota and instance_type in vcpus:
            demand[quota] = max(demand.get(quota, 0), vcpus[instance_type])
    return demand


def _without_quota(
    group: GroupFacts, option: PurchaseOption, quotas: Mapping[str, float]
) -> Iterator[Finding]:
    unknown = [t for t in group.types if quota_for(t, option, tuple(quotas)) is None]
    if not group.types:
        unknown = ["types that it does not name"]
    if unknown:
        yield Finding(
            id="quota-not-found",
            severity=Severity.UNKNOWN,
            about=group.name,
            evidence=f"no {option} quota of Service Quotas is for {', '.join(unknown)}",
            fix="look the quota up in the Service Quotas console by hand",
        )


def _too_small(quota: str, value: float, wanted: float, askers: Sequence[str]) -> Finding:
    return Finding(
        id="quota-too-small",
        severity=Severity.ERROR,
        about=", ".join(dict.fromkeys(askers)),
        evidence=f'quota "{quota}" is {value:g} vCPUs; the fleets may ask for {wanted:g}',
        fix=f'ask for {wanted:g} in Service Quotas (ec2, "{quota}"), or lower the bounds',
    )
