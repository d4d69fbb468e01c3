"""What must come about once nothing goes wrong any more and the load is steady."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spotkeeper_lab.chaos.promises import (
    BACK_AFTER_S,
    CURED_AFTER_S,
    SERVED_AFTER_S,
    WHOLE_AFTER_S,
    Promise,
)
from spotkeeper_lab.chaos.story.scenario import SPOT_MAX

if TYPE_CHECKING:
    from spotkeeper_lab.chaos.watch import Watch


@dataclass(slots=True)
class Quiet:
    """Looks at a world in its quiet, on behalf of its watch."""

    watch: "Watch"
    _lent_since: float | None = None
    _ill_since: dict[str, float] = field(default_factory=dict)
    _patience_s: float = 0.0

    def minute(self, quiet_s: float) -> None:
        """Look at a world that is quiet for so long."""
        to_be_missed_s = self.watch.to_be_missed_s()
        if quiet_s > SERVED_AFTER_S and math.isfinite(to_be_missed_s):
            self._served()
        self._given_back()
        self._patience_s = max(self._patience_s, to_be_missed_s) if to_be_missed_s else 0.0
        self._cured()

    def _served(self) -> None:
        world = self.watch.world
        spot, working, waiting = world.cloud.group(world.spot), world.working(), world.force.queued
        # More than the bounds or an operator allow is not asked for: it takes its time.
        fewer = working < (SPOT_MAX if world.scenario.sized else spot.desired)
        if fewer and waiting > 60.0 * world.load() / world.scenario.service_s + 20:
            how = f"{waiting} requests wait, {working} instances serve, {world.load()} erlangs"
            self.watch.broken(Promise.SERVED, f"{how}, spot desired {spot.desired}")

    def _given_back(self) -> None:
        """As long as spot does not serve, on-demand stands in for it."""
        world = self.watch.world
        spot, on_demand = world.cloud.group(world.spot), world.cloud.group(world.on_demand)
        served = self.watch.serving(spot) >= min(spot.desired - world.spares, SPOT_MAX)
        lent = on_demand.desired and served
        self._lent_since = (self._lent_since or world.now_s) if lent else None
        lent_s = world.now_s - (self._lent_since or world.now_s)
        if lent_s > BACK_AFTER_S:
            how = f"on-demand desired {on_demand.desired} since {lent_s / 60:.0f} min of quiet"
            self.watch.broken(
                Promise.GIVEN_BACK, f"{how}, spot {world.working()} of {spot.desired}"
            )

    def _cured(self) -> None:
        """Who is in service and does not work is replaced, once the budget of an hour allows it."""
        world, known = self.watch.world, self._ill_since
        there = [i.instance_id for i in self.watch.in_service()]
        self._ill_since = {i: known.get(i, world.now_s) for i in there if not world.works(i)}
        lately_s = world.now_s - 3600.0 - WHOLE_AFTER_S
        lately = sum(at_s > lately_s for at_s in self.watch.replaced)
        for instance_id, since_s in self._ill_since.items():
            ill_s = world.now_s - since_s
            if (
                ill_s > CURED_AFTER_S + self._patience_s
                and instance_id not in self.watch.replaced_ids
                and lately < world.replacements_an_hour
            ):
                how = f"{instance_id} is in service for {ill_s / 60:.0f} min and does not work"
                self.watch.broken(Promise.CURED, how)
