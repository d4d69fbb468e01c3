"""What is launched, how often, and how much of it runs at once."""

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spotkeeper_lab.chaos.promises import (
    CAPPED,
    LAUNCHES_AN_HOUR,
    LAUNCHES_IN_QUIET,
    QUIET_LAUNCHES_AFTER_S,
    REFILLS_AN_HOUR,
    Promise,
)
from spotkeeper_lab.chaos.story.scenario import SPOT_MAX
from spotkeeper_lab.cloud.words import LAUNCH

if TYPE_CHECKING:
    from spotkeeper_lab.chaos.watch import Watch


@dataclass(slots=True)
class Expenses:
    """Looks at what a world pays for, on behalf of its watch."""

    watch: "Watch"
    _suspended_s: float = 0.0
    _given_back: bool = False
    _refills: deque[float] = field(default_factory=deque)

    def minute(self, quiet_s: float) -> None:
        """Look at a world that is quiet for so long, or not yet."""
        world = self.watch.world
        launched = [i.launched_s for i in world.cloud.history() if not world.is_other(i)]
        self._launches(launched)
        if LAUNCH in world.cloud.group(world.spot).suspensions:
            self._suspended_s = world.now_s
        if quiet_s > 0:
            self._launches_in_quiet(launched)
        self._cost()

    def moved(self, group: str, by: int) -> None:
        """Look at a call that asks a group for more, or for less."""
        world, refills = self.watch.world, self._refills
        if group != world.on_demand or not by:
            return
        if by > 0 and self._given_back:
            refills.append(world.now_s)
        self._given_back = by < 0
        while refills and refills[0] < world.now_s - 3600.0:
            refills.popleft()
        if len(refills) > REFILLS_AN_HOUR:
            how = f"on-demand was filled again after it was given back {len(refills)} times"
            self.watch.broken(Promise.NO_FLAPPING, f"{how} in an hour")

    def _launches(self, launched: list[float]) -> None:
        hour = sum(at_s > self.watch.world.now_s - 3600.0 for at_s in launched)
        # AWS itself launches again and again what dies while it starts, or is abandoned.
        looping = any(f.kind in CAPPED for f in self.watch.world.scenario.faults)
        if hour > LAUNCHES_AN_HOUR and not looping:
            self.watch.broken(Promise.LAUNCHES, f"{hour} launches in an hour")

    def _launches_in_quiet(self, launched: list[float]) -> None:
        """All that was asked for is launched when AWS's suspension ends: that is no loop."""
        world = self.watch.world
        quiet_from_s = max(world.scenario.quiet_from_s, self._suspended_s)
        begin_s = quiet_from_s + QUIET_LAUNCHES_AFTER_S
        late = sum(at_s > begin_s for at_s in launched)
        if late > LAUNCHES_IN_QUIET:
            how = f"{late} launches within {(world.now_s - begin_s) / 60:.0f} min of quiet"
            self.watch.broken(Promise.NO_LOOP, how)

    def _cost(self) -> None:
        world = self.watch.world
        running = [i for i in world.cloud.instances() if not world.is_other(i)]
        # A burst of warnings: those that were warned, their replacements, and the backfill.
        most = 3 * max(SPOT_MAX, world.operator_desired, world.adopted) + 4
        if len(running) > most:
            self.watch.broken(Promise.COST, f"{len(running)} instances run at once")
