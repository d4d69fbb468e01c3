"""What may be lost before help comes: the one place that holds something against it.

Everything else of the controller asks `risk_of` only, and reads nothing of the other files here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from spotkeeper.domain.availability.assessing.counting import Count, in_service
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.availability.risk.deferral import Deferral
from spotkeeper.domain.availability.risk.elevated import (
    add_losses,
    heavy_losses,
    heavy_window_s,
    is_elevated,
    longest_settle_s,
    settle_s,
)
from spotkeeper.domain.availability.risk.just_in_time import deferral_of, remember_deferral
from spotkeeper.domain.availability.risk.pools import remember_pools
from spotkeeper.domain.availability.risk.spare import elevated_spares, kept_spares
from spotkeeper.domain.availability.risk.warning_burst import add_bursts, lost_warnings
from spotkeeper.domain.availability.risk_memory import RiskMemory
from spotkeeper.domain.availability.snapshot import Snapshot
from spotkeeper.domain.fleet import Group, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """What is held against losses to come.

    `spares` is how many instances the spot group is asked for beyond the need, `extra` how many
    more than the need should serve, of either group: what spot does not bring of them is
    backfilled. Backfill goes once spot has served for `settle_s`, and memory reaches back for
    `reach_s`; `deferral` is what of the shortfall can wait. `held_since` ranks pools: those that
    have held the fleet for the shortest time give back first.
    """

    spares: int
    extra: int
    settle_s: int
    reach_s: int
    deferral: Deferral
    memory: RiskMemory

    @property
    def held_since(self) -> Mapping[str, datetime]:
        """From when on each pool has held an instance that serves."""
        return self.memory.held_since


def risk_of(
    snapshot: Snapshot,
    before: AvailabilityMemory,
    spot: Count,
    at_risk: Mapping[str, datetime],
) -> Risk:
    """Weigh what may be lost; `before` is the memory of the turn before, `spot` what counts now."""
    policy, now = snapshot.fleet.availability, snapshot.now
    risky = frozenset(i for i, at in at_risk.items() if at <= now)
    memory = _remember(snapshot, before, at_risk, risky)
    elevated = is_elevated(policy, memory.last_surprise, now)
    spares = _spares(snapshot, memory, spot.target, elevated=elevated)
    return Risk(
        spares=spares,
        extra=max(
            _lost_warning_allowance(snapshot, memory, risky),
            _asked(snapshot, spot, spares) if elevated else 0,
        ),
        settle_s=settle_s(policy, _heavy(snapshot, memory, spot.target), elevated=elevated),
        reach_s=longest_settle_s(policy),
        deferral=deferral_of(snapshot, memory, risky),
        memory=memory,
    )


def _remember(
    snapshot: Snapshot,
    before: AvailabilityMemory,
    at_risk: Mapping[str, datetime],
    risky: frozenset[str],
) -> RiskMemory:
    """Bring up to now what is remembered of losses and warnings."""
    old, spot, now = before.risk, snapshot.seen.spot, snapshot.now
    policy = snapshot.fleet.availability
    surprise = _unannounced(snapshot, before, risky)
    newly = {i: at_risk[i] for i in risky.difference(before.risky)}
    return replace(
        old,
        held_since=remember_pools(old.held_since, spot, risky, now),
        losses=add_losses(old.losses, surprise, heavy_window_s(policy), now),
        last_surprise=now if surprise or _starts_unwarned(snapshot, before) else old.last_surprise,
        warning_bursts=add_bursts(old.warning_bursts, spot, newly, policy.notice_s, now),
        deferral=remember_deferral(snapshot, before, at_risk),
    )


def _unannounced(snapshot: Snapshot, before: AvailabilityMemory, risky: frozenset[str]) -> int:
    """Count the losses that nothing explains: no warning, no smaller group, nobody who asked."""
    group = snapshot.seen.spot
    lost = before.in_service - in_service(group, risky | snapshot.taken)
    if before.spot_seen is None or lost <= 0:
        return 0
    explained = (
        len(risky.difference(before.risky))
        + max(0, before.spot_seen - group.desired)
        + len(snapshot.silent.union(before.silent) - _ids_in_service(group))
        + len(snapshot.let_go - risky)
    )
    return max(0, lost - explained)


def _ids_in_service(group: Group) -> set[str]:
    return {i.instance_id for i in group.instances if i.phase is Phase.IN_SERVICE}


def _starts_unwarned(snapshot: Snapshot, before: AvailabilityMemory) -> bool:
    """Say whether a fleet begins where no warning comes: new instances go soonest."""
    return before.spot_seen is None and not snapshot.fleet.availability.notice_s


def _spares(snapshot: Snapshot, memory: RiskMemory, need: int, *, elevated: bool) -> int:
    """Size the spares; a warm group is back before the next loss is likely and needs none."""
    fleet, spot = snapshot.fleet, snapshot.seen.spot
    if fleet.availability.on_demand_warm:
        return 0
    if elevated:
        return elevated_spares(fleet, spot, need)
    return kept_spares(fleet, spot, need, memory.held_since, snapshot.now)


def _asked(snapshot: Snapshot, spot: Count, spares: int) -> int:
    """Count the spares that spot was asked for: on-demand is for what spot then does not launch."""
    return min(spares, max(0, snapshot.seen.spot.desired - spot.target))


def _lost_warning_allowance(snapshot: Snapshot, memory: RiskMemory, risky: frozenset[str]) -> int:
    """Allow for lost warnings where on-demand is warm: a cold one comes too late to help."""
    policy = snapshot.fleet.availability
    if not policy.on_demand_warm:
        return 0
    return lost_warnings(memory.warning_bursts, snapshot.seen.spot, risky, policy.lost_notice_share)


def _heavy(snapshot: Snapshot, memory: RiskMemory, need: int) -> int:
    """Count the heavy losses that the spares of elevated risk would not have covered."""
    return heavy_losses(
        memory.losses, need, elevated_spares(snapshot.fleet, snapshot.seen.spot, need)
    )
