"""An instance refresh, as AWS documents it: which instances of a group it replaces, and when.

Source: EC2 Auto Scaling guide, "How an instance refresh works", "Add checkpoints to an instance
refresh", "Undo changes with a rollback", "Check instance refresh status" (it is pending while it is
initialized); API reference, RefreshPreferences, CancelInstanceRefresh (it waits for launches and
terminations). What they do not say is a belief: a step every `STEP_S`, of which the first only
initializes, percentages that are rounded up, the words of the reasons, that a pending refresh has
the group launch what is desired, and one that is being cancelled, the group's own configuration.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum

from spotkeeper_lab.cloud.group import GroupState, SimulatedMachine
from spotkeeper_lab.cloud.values import (
    IN_SERVICE,
    LAUNCH,
    LAUNCHING,
    REFRESH,
    STANDBY,
    TERMINATE,
    TERMINATING,
    CloudError,
    Invalid,
)

STEP_S = 15.0
STUCK_S = 3600.0
"""A refresh without progress for this time fails."""


class RefreshStatus(StrEnum):
    """What a refresh is doing, in AWS's words."""

    PENDING = "Pending"
    IN_PROGRESS = "InProgress"
    SUCCESSFUL = "Successful"
    FAILED = "Failed"
    CANCELLING = "Cancelling"
    CANCELLED = "Cancelled"
    ROLLING_BACK = "RollbackInProgress"
    ROLLED_BACK = "RollbackSuccessful"
    ROLLBACK_FAILED = "RollbackFailed"


BACK = frozenset({RefreshStatus.ROLLING_BACK, RefreshStatus.CANCELLING})
ACTIVE = BACK | {RefreshStatus.PENDING, RefreshStatus.IN_PROGRESS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """How a refresh replaces; percentages are of the desired capacity, times in seconds.

    Without `max_healthy` an instance ends while its successor starts. With it, the successor starts
    first where both bounds could not be kept otherwise. `waits_for_standby`: by default AWS waits
    for instances in standby, and fails after an hour. Raises CloudError for what AWS refuses.
    """

    min_healthy: int = 90
    max_healthy: int | None = None
    warmup_s: float = 0.0
    checkpoints: tuple[int, ...] = ()
    delay_s: float | None = None
    skip_matching: bool = False
    auto_rollback: bool = False
    alarms: tuple[str, ...] = ()
    waits_for_standby: bool = True

    def __post_init__(self) -> None:
        most = self.max_healthy
        refused = {
            "MinHealthyPercentage": not 0 <= self.min_healthy <= 100,  # noqa: PLR2004
            "MaxHealthyPercentage": most is not None
            and not (100 <= most <= 200 and most - self.min_healthy <= 100),  # noqa: PLR2004
            "CheckpointPercentages": list(self.checkpoints) != sorted(set(self.checkpoints))
            or not all(1 <= each <= 100 for each in self.checkpoints),  # noqa: PLR2004
            "CheckpointDelay": self.delay_s is not None
            and (not self.checkpoints or not 0 <= self.delay_s <= 172_800),  # noqa: PLR2004
            "Alarms": len(self.alarms) > 10,  # noqa: PLR2004
        }
        for name, wrong in refused.items():
            if wrong:
                raise Invalid(f"The instance refresh's {name} is not valid")


@dataclass(slots=True, kw_only=True, eq=False)
class Refresh:
    """One refresh of a group; `old` are the instances that it replaces.

    `template` is the version of the desired configuration, None without one; `before` the group's.
    """

    refresh_id: str
    preferences: Preferences
    start_s: float
    template: str | None
    before: str
    old: set[str]
    status: RefreshStatus = RefreshStatus.PENDING
    reason: str = ""
    end_s: float | None = None
    percentage: int = 0
    to_update: int = 0
    waits_until_s: float | None = None
    _reached: int = 0
    _progress: tuple[int, int] = (0, 0)
    _progress_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._progress_s, self.to_update = self.start_s, len(self.old)

    @property
    def active(self) -> bool:
        return self.status in ACTIVE

    @property
    def launches(self) -> str | None:
        """The version that the group launches meanwhile; None is the group's own."""
        return self.before if self.status in BACK else self.template

    def step(
        self, group: GroupState, now_s: float, ringing: frozenset[str]
    ) -> list[SimulatedMachine]:
        """Return the instances that end now, and set how many the group launches beyond desired."""
        if self.status is RefreshStatus.PENDING:
            if now_s <= self.start_s:
                return []
            self.status = RefreshStatus.IN_PROGRESS
        if self.status is RefreshStatus.CANCELLING:
            for one in group.members.values():
                begins = one.template == self.template and one.state in LAUNCHING
                if begins or (one.instance_id in self.old and one.state == TERMINATING):
                    return []
            self.finish(now_s, RefreshStatus.CANCELLED)
        group.extra = 0
        if ringing & {*self.preferences.alarms} and self.status is not RefreshStatus.ROLLING_BACK:
            self.fail(group, now_s, "A CloudWatch alarm of the instance refresh is in ALARM state")
        if not self.active or {REFRESH, LAUNCH, TERMINATE} & group.suspensions.keys():
            return []
        there = group.present()
        old = [one for one in there if one.instance_id in self.old]
        ready = [one for one in there if one not in old and self._ready(one, now_s)]
        self._note(len(old), len(ready), group.desired, now_s)
        if now_s - self._progress_s >= STUCK_S:
            self.fail(group, now_s, "The instance refresh made no progress for an hour")
            return []
        replaced = self._replaced(len(old), group.desired)
        if not replaced:
            aside = any(one.state == STANDBY for one in group.members.values())
            waits = aside and self.preferences.waits_for_standby
            if not waits and len(ready) + len(old) >= group.desired:
                self._pass(group, now_s, last=not old)
            return []
        if self.waits_until_s is not None and now_s < self.waits_until_s:
            self._progress_s = now_s
            return []
        floor = math.ceil(group.desired * self.preferences.min_healthy / 100)
        most = self.preferences.max_healthy
        serving = [one for one in old if one.state == IN_SERVICE and one.healthy]
        spare = len(serving) + len(ready) - floor
        if most is None and len(ready) + len(old) == len(there) >= group.desired:
            spare = max(spare, 1)
        ending = serving[: max(0, min(spare, replaced))]
        if most is not None:
            ceiling = math.ceil(group.desired * most / 100)
            beyond = max(ceiling - group.desired, int(floor >= group.desired))
            group.extra = min(beyond, replaced - len(ending))
        return ending

    def cancel(self) -> None:
        """Replace no more; the launches that are under way are completed first."""
        self.status, self.reason = RefreshStatus.CANCELLING, "Cancelled due to user request."

    def roll_back(self, group: GroupState, now_s: float, reason: str) -> None:
        """Replace what was replaced; raises CloudError where AWS cannot."""
        if self.template is None or self.before.startswith("$"):
            message = "The instance refresh has no desired configuration that can be rolled back"
            raise CloudError("IrreversibleInstanceRefresh", message)
        self.status, self.reason = RefreshStatus.ROLLING_BACK, reason
        self.old = {one.instance_id for one in group.present() if one.template == self.template}
        self.waits_until_s, self._progress_s = None, now_s

    def fail(self, group: GroupState, now_s: float, reason: str) -> None:
        """Fail, or roll back where the preferences say so."""
        if self.preferences.auto_rollback and self.status is not RefreshStatus.ROLLING_BACK:
            self.roll_back(group, now_s, reason)
            return
        back = self.status is RefreshStatus.ROLLING_BACK
        self.finish(now_s, RefreshStatus.ROLLBACK_FAILED if back else RefreshStatus.FAILED, reason)

    def finish(self, now_s: float, status: RefreshStatus, reason: str = "") -> None:
        self.status, self.reason, self.end_s = status, reason or self.reason, now_s

    def _ready(self, machine: SimulatedMachine, now_s: float) -> bool:
        since_s = machine.in_service_s
        served = machine.state == IN_SERVICE and machine.healthy and since_s is not None
        return served and now_s >= (since_s or 0.0) + self.preferences.warmup_s

    def _note(self, old: int, ready: int, desired: int, now_s: float) -> None:
        if (old, ready) != self._progress:
            self._progress, self._progress_s = (old, ready), now_s
        if self.status is not RefreshStatus.ROLLING_BACK:
            self.percentage = min(100, 100 * ready // desired) if desired else 100
            self.to_update = old

    def _replaced(self, old: int, desired: int) -> int:
        """How many instances are to be replaced before the next checkpoint."""
        back = self.status is RefreshStatus.ROLLING_BACK
        percentages = () if back else self.preferences.checkpoints[self._reached :]
        percentage = percentages[0] if percentages else 100
        new = math.ceil(desired * percentage / 100)
        return old if percentage == 100 else max(0, old - max(0, desired - new))  # noqa: PLR2004

    def _pass(self, group: GroupState, now_s: float, *, last: bool) -> None:
        """Pass a checkpoint, or succeed."""
        if self.status is RefreshStatus.ROLLING_BACK:
            self.finish(now_s, RefreshStatus.ROLLED_BACK)
            return
        checkpoints = self.preferences.checkpoints
        if not last and self._reached < len(checkpoints) - 1:
            delay_s = self.preferences.delay_s
            self.waits_until_s = now_s + (3600.0 if delay_s is None else delay_s)
            self._reached += 1
            return
        self.percentage = 100
        self.finish(now_s, RefreshStatus.SUCCESSFUL)
        group.template = group.template if self.template is None else self.template
