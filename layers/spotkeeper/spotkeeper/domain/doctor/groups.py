"""Each Auto Scaling group by itself, and against the fleet that it belongs to."""

from collections.abc import Iterator, Mapping

from spotkeeper.domain.doctor.facts import AccountFacts, GroupFacts, Unseen
from spotkeeper.domain.doctor.finding import Finding, error, warning
from spotkeeper.domain.doctor.hooks import check_hooks, check_processes
from spotkeeper.domain.fleet import Fleet


def check_pair(fleet: Fleet, spot: GroupFacts, on_demand: GroupFacts) -> Iterator[Finding]:
    """Check both groups of a fleet against its document."""
    yield from _check_purchase(spot, on_demand)
    yield from _check_bounds(fleet, spot, on_demand)
    yield from _check_strangers(fleet, spot, on_demand)
    yield from _check_warmth(fleet, on_demand)
    if spot.capacity_rebalance:
        yield error(
            "capacity-rebalance",
            spot.name,
            "CapacityRebalance is on: the group and Spotkeeper both replace instances at risk",
            f"aws autoscaling update-auto-scaling-group --no-capacity-rebalance "
            f"--auto-scaling-group-name {spot.name}",
        )
    for group in (spot, on_demand):
        yield from check_processes(fleet, group)
        yield from check_hooks(fleet, group)
        if group.protected_from_scale_in:
            yield warning(
                "scale-in-protection",
                group.name,
                "new instances are protected from scale-in; Spotkeeper ends them all the same, "
                "by name",
                "let a terminate hook hold what must finish, and turn "
                "NewInstancesProtectedFromScaleIn off",
            )
        if group.weighted:
            yield error(
                "weighted-capacity",
                group.name,
                "its capacity is counted in units, by weights, vCPUs or memory: Spotkeeper counts "
                "instances, and would take what is not missing for missing",
                "remove WeightedCapacity from its types, set DesiredCapacityType to units, and its "
                "sizes to numbers of instances",
            )


def check_places(
    group: GroupFacts, offered: Mapping[str, frozenset[str]] | Unseen
) -> Iterator[Finding]:
    """Check in how many places a group can launch: every zone and type is a further chance."""
    if len(group.zones) == 1:
        yield warning(
            "one-zone",
            group.name,
            f"only {next(iter(group.zones))}: one empty zone empties the group",
            "add subnets in further zones",
        )
    if len(group.types) == 1 and group.spot_share:
        yield warning(
            "one-instance-type",
            group.name,
            f"only {group.types[0]}: a market of one pool in each zone",
            "add instance types that can run a worker to the mixed instances policy",
        )
    if group.types and not isinstance(offered, Unseen):
        yield from _check_offers(group, offered)


def _check_offers(group: GroupFacts, offered: Mapping[str, frozenset[str]]) -> Iterator[Finding]:
    missing = {t: sorted(group.zones - offered.get(t, frozenset())) for t in group.types}
    if all(len(zones) == len(group.zones) for zones in missing.values()):
        yield error(
            "not-offered-anywhere",
            group.name,
            f"none of {', '.join(group.types)} is offered in {', '.join(sorted(group.zones))}",
            "choose other types, or subnets in zones that have them",
        )
        return
    for instance_type, zones in missing.items():
        if zones:
            yield warning(
                "not-offered-in-a-zone",
                group.name,
                f"{instance_type} is not offered in {', '.join(zones)}",
                "add another type for those zones, or leave them out",
            )


def check_score(fleet: Fleet, account: AccountFacts) -> Iterator[Finding]:
    """Warn of a market that AWS itself scores low; 10 is the best (it promises nothing)."""
    scores = account.placement_scores
    if scores is None or isinstance(scores, Unseen):
        return
    score = scores.get(fleet.name)
    if score is not None and score <= 3:  # noqa: PLR2004 - of 10
        yield warning(
            "placement-score",
            fleet.spot_group,
            f"AWS scores {fleet.bounds.spot_max} spot instances of these types {score} of 10",
            "more types and zones; expect to pay on-demand for a while",
        )


def _check_purchase(spot: GroupFacts, on_demand: GroupFacts) -> Iterator[Finding]:
    if spot.spot_share is not None and spot.spot_share < 1:
        yield error(
            "not-wholly-spot",
            spot.name,
            f"{1 - spot.spot_share:.0%} of it launches on demand: Spotkeeper counts all as spot",
            "OnDemandBaseCapacity 0 and OnDemandPercentageAboveBaseCapacity 0",
        )
    if on_demand.spot_share:
        yield error(
            "not-wholly-on-demand",
            on_demand.name,
            f"{on_demand.spot_share:.0%} of it launches spot: the fallback fails when spot does",
            "OnDemandPercentageAboveBaseCapacity 100, no market options in the launch template",
        )


def _check_bounds(fleet: Fleet, spot: GroupFacts, on_demand: GroupFacts) -> Iterator[Finding]:
    for group, most in ((spot, fleet.bounds.spot_max), (on_demand, fleet.bounds.on_demand_max)):
        if group.maximum < most:
            yield error(
                "maximum-below-bound",
                group.name,
                f"its maximum is {group.maximum}, the document of {fleet.name} allows {most}",
                "raise the group's maximum or lower the bound: AWS refuses what is above it",
            )
    more = spot.desired - fleet.bounds.spot_max
    if more > 0 and fleet.sizing.enabled:
        yield error(
            "desired-above-bound",
            spot.name,
            f"it is asked for {spot.desired}, the document of {fleet.name} allows "
            f"{fleet.bounds.spot_max}: a turn that acts ends {more} of them at once",
            "raise bounds.spot_max (SpotMax of the stack), or lower the group yourself",
        )
    if on_demand.minimum > 0:
        yield warning(
            "on-demand-minimum",
            on_demand.name,
            f"its minimum is {on_demand.minimum}: so many are never given back",
            "set the minimum to 0",
        )


def _check_strangers(fleet: Fleet, spot: GroupFacts, on_demand: GroupFacts) -> Iterator[Finding]:
    """Name whatever else sets a desired capacity that Spotkeeper sets."""
    for group in (spot, on_demand) if fleet.sizing.enabled else (on_demand,):
        for names, what in ((group.policies, "policy"), (group.scheduled_actions, "schedule")):
            if names and not isinstance(names, Unseen):
                yield error(
                    f"foreign-scaling-{what}",
                    group.name,
                    f"{', '.join(names)} also sets its desired capacity",
                    "delete it, or give the spot group to it with sizing.enabled false",
                )


def _check_warmth(fleet: Fleet, on_demand: GroupFacts) -> Iterator[Finding]:
    warm = on_demand.warm_pool
    if isinstance(warm, Unseen) or warm == fleet.availability.on_demand_warm:
        return
    if warm:
        yield warning(
            "warm-pool-unknown",
            on_demand.name,
            "it has a warm pool, but on_demand_warm is false: it is used as if it were cold",
            f"set availability.on_demand_warm in the document of {fleet.name}",
        )
    else:
        yield error(
            "no-warm-pool",
            on_demand.name,
            "on_demand_warm is true, but there is no warm pool: backfill would come too late",
            f"make one, or set availability.on_demand_warm false in the document of {fleet.name}",
        )
