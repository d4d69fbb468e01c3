"""What a turn says of what it saw: the reason of its record, and its alarms."""

from spotkeeper.domain.availability.assessment import Assessment
from spotkeeper.domain.availability.memory import AvailabilityMemory, within
from spotkeeper.domain.failure import FailureClass, needs_operator


def tell(seen: Assessment) -> str:
    """Tell both groups in one line."""
    spot, on_demand = seen.spot, seen.on_demand
    parts = [f"spot {spot.serving} of {spot.target} serving"]
    counts = (
        (spot.launching, "launching"),
        (spot.unheard, "not heard of yet"),
        (spot.late, "past the launch deadline"),
        (spot.at_risk, "at risk"),
        (seen.shortfall, "short"),
    )
    parts += [f"{number} {word}" for number, word in counts if number]
    if on_demand.target:
        parts.append(f"on-demand {on_demand.serving} of {on_demand.target} serving")
    return ", ".join(parts)


def explain(seen: Assessment) -> str:
    """Quote the newest failure while spot is not whole, and name the groups that were left."""
    told = ""
    if seen.failures and seen.spot.serving < seen.spot.target:
        newest = max(seen.failures, key=lambda failure: failure.at)
        told = f" ({newest.failure_class}: {newest.message})"
    if seen.groups_before not in ((), seen.memory.groups):
        told += f"; {' and '.join(seen.groups_before)}, its groups before, stay as they are"
    if seen.memory.unproven:
        told += (
            f"; {', '.join(seen.memory.unproven)} carry Spotkeeper's tags, but the history of "
            "their group does not show that they were detached: end them, or remove the tags"
        )
    return told


def alarms_of(seen: Assessment, after: AvailabilityMemory) -> tuple[str, ...]:
    """Name what an operator should know of; `after` is the memory that the turn leaves."""
    named = {f.failure_class.value for f in seen.failures if needs_operator(f.failure_class)}
    if seen.spot.late or seen.on_demand.late:
        named.add(FailureClass.BOOTSTRAP.value)
    if seen.both_short:
        named.add("both-short")
    if after.unproven:
        named.add("unproven-marks")
    adopted, deadline_s = after.adoption, seen.policy.launch_deadline_s
    more = seen.spot.serving + seen.on_demand.target > seen.spot.target
    if adopted is not None and more and not within(adopted.since, seen.now, deadline_s):
        named.add("adopting")
    return tuple(sorted(named))
