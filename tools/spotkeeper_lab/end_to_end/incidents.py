"""What goes wrong in a demo on purpose, at fixed shares of its hours, and how each ends.

A worker hangs; spot launches fail by configuration for five minutes, just when one is needed;
search logs stop for ten minutes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from spotkeeper_lab.cloud.values import InstanceView
from spotkeeper_lab.cloud.words import IN_SERVICE
from spotkeeper_lab.end_to_end.scene import LEAD_S, SPOT_GROUP
from spotkeeper_lab.world import AVAILABILITY, HEALTH, INTERRUPTION, Invocation, World

HANG_AT, CONFIGURATION_AT, LOGS_AT = 0.25, 0.5, 0.75
"""Shares of the hours; far enough apart that each ends before the next one of an hour begins."""
CONFIGURATION_S = 300.0
LOGS_S = 600.0
CONFIGURATION_TEXT = (
    "Could not launch Spot Instances. InvalidFleetConfiguration - Your requested instance type "
    "({type}) is not supported in your requested Availability Zone ({zone}). "
    "Launching EC2 instance failed."
)


@dataclass(slots=True, kw_only=True)
class Story:
    """One incident: when it began and ended, whether it ended as it should, in words."""

    name: str
    at_s: float
    what: str
    started_s: float | None = None
    ended_s: float | None = None
    ended_well: bool = False
    outcome: str = "did not begin"


class Incident(Protocol):
    """Something that goes wrong; `step` is called at every moment, `see` after every call."""

    story: Story

    def step(self, world: World) -> None:
        """Begin, or end, when it is time."""
        ...

    def see(self, world: World, invocation: Invocation) -> None:
        """Look at what a function did."""
        ...


def incidents(end_s: float) -> list[Incident]:
    """The three incidents of a day that ends at `end_s`."""
    length_s = end_s - LEAD_S
    return [
        HungWorker(_story("hung worker", length_s, HANG_AT, "the workers of an instance hang")),
        ConfigurationBurst(
            _story(
                "configuration failures",
                length_s,
                CONFIGURATION_AT,
                "spot launches fail by configuration for five minutes, and an instance is taken",
            )
        ),
        LogsStop(
            _story("search logs stop", length_s, LOGS_AT, "no search logs for ten minutes"),
            min(LOGS_S, 0.2 * length_s),
        ),
    ]


def _story(name: str, length_s: float, share: float, what: str) -> Story:
    # Half a minute after a turn, so that no incident hides behind one.
    at_s = LEAD_S + share * length_s // 60.0 * 60.0 + 30.0
    return Story(name=name, at_s=at_s, what=what)


@dataclass(slots=True)
class HungWorker:
    """An instance stays in service and serves nothing; check_health replaces it."""

    story: Story
    _instance_id: str = ""

    def step(self, world: World) -> None:
        """Hang the oldest instance once another one serves too; end when it is gone."""
        story, now_s = self.story, world.cloud.now_s
        if story.started_s is None and now_s >= story.at_s:
            serving = _in_service(world)
            if len(serving) > 1:
                self._instance_id, story.started_s = serving[0].instance_id, now_s
                story.what = f"the workers of {self._instance_id} hang"
                story.outcome = "still there at the end"
                world.force.hang(self._instance_id)
        elif self._instance_id and story.ended_s is None and not self._is_there(world):
            story.ended_s = now_s
            if not story.ended_well:
                story.outcome = "AWS took the instance before it was found out"

    def _is_there(self, world: World) -> bool:
        return any(view.instance_id == self._instance_id for view in world.cloud.instances())

    def see(self, world: World, invocation: Invocation) -> None:
        """Note the replacement."""
        if invocation.function != HEALTH or not self._instance_id or self.story.ended_well:
            return
        if invocation.metrics.get("WorkersReplaced", 0) > 0:
            known = {i.instance_id: i for i in world.cloud.instances()}
            view = known.get(self._instance_id)
            if view is None or not view.healthy:
                assert self.story.started_s is not None
                after_s = world.cloud.now_s - self.story.started_s
                self.story.ended_well = True
                self.story.outcome = f"replaced after {after_s / 60:.1f} min"


@dataclass(slots=True)
class ConfigurationBurst:
    """Every spot launch fails for a while with a message about the configuration."""

    story: Story
    _alarm_s: float | None = None
    _cleared_s: float | None = None

    def step(self, world: World) -> None:
        """Break the launches and have one instance taken, so that one is needed."""
        story, now_s = self.story, world.cloud.now_s
        if story.started_s is None and now_s >= story.at_s:
            serving = _in_service(world)
            if serving:
                self._begin(world, serving[-1])
        elif story.ended_s is None and now_s >= (story.started_s or now_s) + CONFIGURATION_S:
            story.ended_s = now_s

    def _begin(self, world: World, victim: InstanceView) -> None:
        story, cloud = self.story, world.cloud
        story.started_s = cloud.now_s
        story.what = f"spot launches fail by configuration; {victim.instance_id} is taken"
        story.outcome = "no alarm was raised"
        zone, _, kind = victim.pool.partition("/")
        text = CONFIGURATION_TEXT.format(type=kind or victim.pool, zone=zone)
        cloud.fail_launches(SPOT_GROUP, cloud.now_s, cloud.now_s + CONFIGURATION_S, text)
        cloud.reclaim([victim.instance_id], cloud.now_s + cloud.physics.notice_s)

    def see(self, world: World, invocation: Invocation) -> None:
        """Note the first turn that raises the alarm, and the first after it that does not."""
        story, raised = self.story, invocation.metrics.get("ConfigurationFailure")
        if story.started_s is None or raised is None or self._cleared_s is not None:
            return
        if invocation.function not in (AVAILABILITY, INTERRUPTION):
            return
        after_s = world.cloud.now_s - story.started_s
        if raised and self._alarm_s is None:
            self._alarm_s, story.ended_well = after_s, True
            story.outcome = f"alarm after {after_s:.0f} s"
        elif not raised and self._alarm_s is not None and after_s > CONFIGURATION_S:
            self._cleared_s = after_s
            story.outcome += f", cleared after {after_s / 60:.1f} min"


@dataclass(slots=True)
class LogsStop:
    """Workers serve but ship no search logs; nothing may be scaled in on silence."""

    story: Story
    length_s: float
    stale_seen: bool = False
    _before: int = 0
    _scaled_in: list[float] = field(default_factory=list)

    def step(self, world: World) -> None:
        """Stop shipping, watch the spot group's desired capacity, start shipping again."""
        story, now_s = self.story, world.cloud.now_s
        if story.started_s is None and now_s >= story.at_s:
            story.started_s, world.logs.stopped = now_s, True
            self._before = world.cloud.group(SPOT_GROUP).desired
        elif story.started_s is not None and story.ended_s is None:
            self._watch(world)
            if now_s >= story.started_s + self.length_s:
                story.ended_s, world.logs.stopped = now_s, False
                self._conclude()

    def _watch(self, world: World) -> None:
        desired = world.cloud.group(SPOT_GROUP).desired
        if desired < self._before and self.stale_seen:
            self._scaled_in.append(world.cloud.now_s)
        self._before = desired

    def _conclude(self) -> None:
        self.story.ended_well = self.stale_seen and not self._scaled_in
        stale = "alarm raised" if self.stale_seen else "no alarm was raised"
        scaled = f"scaled in {len(self._scaled_in)} times" if self._scaled_in else "no scale-in"
        self.story.outcome = f"{stale}, {scaled}"

    def see(self, world: World, invocation: Invocation) -> None:
        """Note the alarm about stale logs."""
        if self.story.started_s is not None and self.story.ended_s is None:
            self.stale_seen |= bool(invocation.metrics.get("StaleSearchLogs"))


def _in_service(world: World) -> Sequence[InstanceView]:
    """Spot instances in service that nobody has warned, oldest first."""
    views = world.cloud.group(SPOT_GROUP).instances
    found = [view for view in views if view.state == IN_SERVICE and view.warned_s is None]
    return sorted(found, key=lambda view: view.launched_s)
