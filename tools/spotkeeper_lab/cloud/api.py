"""A simulated cloud: Auto Scaling groups and spot capacity as AWS behaves, on virtual seconds.

Deterministic and event-driven; the backtest (through fake ports) and the demo (through boto3) run
on the same one. What it promises:

* The spot instances held in a pool never exceed the market's capacity. When capacity drops, the
  excess is lost at that instant, newest first; each was warned the notice before, unless its
  notice is lost. A lost notice leaves no trace at all, in no event and in no spot request.
* While a drop is announced, the pool gives out no more than it will hold after it.
* A group launches what it misses at once, in the pool where it has the fewest (zone balance, best
  effort); each dry pool that is tried logs a failed activity. It retries every `retry_s`, on
  multiples of it. Every failed retry is an activity; only a try that was not the mere
  repetition of the one before sends an event.
* Lowering desired ends instances: those that are launching first, then the newest.
* What `Physics` can make stricter is off by default.
* On-demand launches fail by chance alone, each on its own.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from spotkeeper_lab.cloud.group import GroupState, SimulatedMachine
from spotkeeper_lab.cloud.lives import RETRY, USER_SHUTDOWN
from spotkeeper_lab.cloud.states import SHOWN_S, CloudStates, not_found
from spotkeeper_lab.cloud.values import (
    FAILED,
    LAUNCHING,
    TERMINATING,
    Activity,
    Bill,
    CloudError,
    GroupSpec,
    GroupView,
    InstanceView,
    Purchase,
    SpotRequestView,
)

DETACHED_AT_MOST = 20
MARKS_NEEDED = frozenset({"spotkeeper:group", "spotkeeper:nonce"})


def _may_be_ended(machine: SimulatedMachine) -> bool:
    """The condition of the role: a spot instance with all marks, which end with the instance."""
    marked = machine.gone_s is not None and machine.tags.keys() >= MARKS_NEEDED
    return marked and machine.purchase is Purchase.SPOT and machine.ended_s is None


class Cloud(CloudStates):
    """The cloud with AWS's verbs; each may raise CloudError with AWS's code and message."""

    # --- AWS's verbs ----------------------------------------------------------------------------

    def set_desired(self, group: str, desired: int) -> None:
        """Ask for a capacity; refused outside the group's bounds."""
        state = self._group(group)
        spec = state.spec
        if not spec.minimum <= desired <= spec.maximum:
            bound = (
                f"below min value {spec.minimum}"
                if desired < spec.minimum
                else (f"above max value {spec.maximum}")
            )
            message = f"New SetDesiredCapacity value {desired} is {bound} for the AutoScalingGroup."
            raise CloudError("ValidationError", message)
        if desired == state.desired:
            return
        state.desired = desired
        state.touch()
        for machine in state.surplus():
            self._leave(machine)
        self._act(state)

    def end(self, instance_id: str) -> None:
        """End an instance of a group and lower its desired capacity (TerminateInstanceIn...)."""
        machine = self._member(instance_id)
        state = self._of(machine)
        if machine.state == TERMINATING:
            return
        if machine.state in LAUNCHING and self.physics.pending_ends_refused:
            message = f"Scaling Activity is In Progress for instance {instance_id}."
            raise CloudError("ScalingActivityInProgress", message)
        if state.desired <= state.spec.minimum:
            message = (
                f"Currently, desiredSize equals minSize ({state.spec.minimum}). Terminating "
                "instance without replacement will violate group's min size constraint. Either set "
                "shouldDecrementDesiredCapacity flag to false or lower group's min size."
            )
            raise CloudError("ValidationError", message)
        state.desired -= 1
        state.touch()
        self._leave(machine)
        self._act(state)

    def detach(self, group: str, instance_ids: Sequence[str]) -> None:
        """Take instances out without lowering desired; they run on, and replacements launch."""
        state = self._group(group)
        if len(instance_ids) > DETACHED_AT_MOST:
            message = (
                f"Value '{list(instance_ids)}' at 'instanceIds' failed to satisfy constraint: "
                f"Member must have length less than or equal to {DETACHED_AT_MOST}"
            )
            raise CloudError("ValidationError", message)
        machines = [self._detachable(state, instance_id) for instance_id in instance_ids]
        for machine in machines:
            del state.members[machine.instance_id]
            state.detached.append((self.now_s, machine.instance_id))
            machine.group = None
        state.touch()
        self._act(state)

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """End instances, in a group or not; those that ended already are ignored.

        Where marks are needed, this role may end running spot instances with all of them only.
        """
        machines = [self._known(instance_id) for instance_id in instance_ids]
        if self.physics.marks_needed and not all(m and _may_be_ended(m) for m in machines):
            message = "You are not authorized to perform this operation."
            raise CloudError("UnauthorizedOperation", message)
        for machine in machines:
            if machine:
                self._die(machine, USER_SHUTDOWN)
        self._fill_dirty()

    def drain(self, instance_ids: Sequence[str], gone_s: float) -> None:
        """Mark instances with when they will be gone; the first mark stays."""
        for machine in [self._known(instance_id) for instance_id in instance_ids]:
            if machine and machine.gone_s is None:
                machine.gone_s = gone_s
                self._touch(machine)

    def undrain(self, instance_ids: Sequence[str]) -> None:
        """Take the mark off instances; those that have ended have none any more."""
        for machine in [self._known(instance_id) for instance_id in instance_ids]:
            if machine:
                machine.gone_s = None
                self._touch(machine)

    def tag(self, instance_ids: Sequence[str], tags: Mapping[str, str]) -> None:
        """Give instances other tags than that of a drain."""
        for machine in [self._known(instance_id) for instance_id in instance_ids]:
            if machine:
                machine.tags |= tags
                self._touch(machine)

    def untag(self, instance_ids: Sequence[str], keys: Iterable[str]) -> None:
        """Take tags off instances."""
        for machine in [self._known(instance_id) for instance_id in instance_ids]:
            if machine:
                machine.tags = {k: v for k, v in machine.tags.items() if k not in set(keys)}
                self._touch(machine)

    def tag_group(self, group: str, key: str, value: str | None) -> None:
        state = self._group(group)
        state.tags = {k: v for k, v in state.tags.items() if k != key}
        if value is not None:
            state.tags[key] = value
        state.touch()

    def set_bounds(self, group: str, minimum: int, maximum: int) -> None:
        """Change a group's bounds, and its desired capacity where it lies outside them."""
        state = self._group(group)
        state.spec = replace(state.spec, minimum=minimum, maximum=maximum)
        state.touch()
        self.set_desired(group, max(minimum, min(maximum, state.desired)))

    def create_group(self, spec: GroupSpec) -> None:
        """Make a group, which launches at once; the market knows the pools where it buys spot."""
        if spec.name in self._groups:
            message = (
                "AutoScalingGroup by this name already exists - A group with the name "
                f"{spec.name} already exists"
            )
            raise CloudError("AlreadyExists", message)
        self._groups[spec.name] = GroupState(spec, self.physics)
        self._act(self._groups[spec.name])

    def delete_group(self, group: str) -> None:
        state = self._groups.pop(self._group(group).spec.name)
        for machine in (*state.members.values(), *state.warm.values()):
            self._end(machine)

    # --- what AWS shows -------------------------------------------------------------------------

    def groups(self) -> tuple[str, ...]:
        return tuple(self._groups)

    def group(self, name: str) -> GroupView:
        """A group; the same object until it changes."""
        return self._group(name).view()

    def instances(self) -> tuple[InstanceView, ...]:
        """All that run, those outside of groups too."""
        return tuple(machine.view() for machine in self._machines.values())

    def history(self) -> tuple[InstanceView, ...]:
        """All that ever ran; those that ended first."""
        return (*(machine.view() for machine in self._departed.values()), *self.instances())

    def instance(self, instance_id: str) -> InstanceView:
        """One that runs, or that ended within the last hour."""
        machine = self._known(instance_id) or self._departed.get(instance_id)
        if machine is None:
            raise not_found(instance_id)
        return machine.view()

    def member(self, instance_id: str) -> InstanceView:
        """One that is in a group, dead or alive."""
        return self._member(instance_id).view()

    def failures(self, group: str, since_s: float) -> list[Activity]:
        """The failed launches of a group since an instant, newest first."""
        return self._group(group).failures(since_s, self.now_s)

    def activities(self, group: str, since_s: float) -> list[Activity]:
        """All launches and ends of a group since an instant, newest first."""
        state = self._group(group)
        found = self.failures(group, since_s) + state.successes(since_s) + state.ends(since_s)
        return sorted(found, key=lambda a: (a.start_s, a.status_code == FAILED), reverse=True)

    def detached(self, group: str) -> tuple[tuple[float, str], ...]:
        """The instances that were taken out of a group, each with when, newest first."""
        return tuple(reversed(self._group(group).detached))

    def spot_requests(
        self, since_s: float = 0.0, instance_ids: Container[str] | None = None
    ) -> tuple[SpotRequestView, ...]:
        """The requests whose instance was warned, or taken within the last hour, since then."""
        forgotten_s = self.now_s - SHOWN_S
        while self._taken and (self._taken[0].ended_s or 0.0) < forgotten_s:
            self._taken.popleft()
        marked = (m for m in self._warned.values() if (m.warned_s or 0.0) >= since_s)
        taken = (m for m in self._taken if (m.ended_s or 0.0) >= since_s)
        return tuple(
            machine.spot_request()
            for machine in (*marked, *taken)
            if instance_ids is None or machine.instance_id in instance_ids
        )

    def ready(self, purchase: Purchase) -> int:
        """How many instances of a kind are in service, detached ones too."""
        return self._serving[purchase]

    def bill(self) -> Bill:
        """What was used until now."""
        used = dict(self._used)
        for machine in self._machines.values():
            used[machine.purchase] += self.now_s - machine.launched_s
        return Bill(
            spot_s=used[Purchase.SPOT],
            on_demand_s=used[Purchase.ON_DEMAND],
            spot_launches=self._launched[Purchase.SPOT],
            on_demand_launches=self._launched[Purchase.ON_DEMAND],
            losses=sum(machine.lost for machine in self._departed.values()),
        )

    # --- what a test does to it -----------------------------------------------------------------

    def fail_launches(self, group: str, start_s: float, end_s: float, message: str) -> None:
        """Refuse every launch of a group for a while, in AWS's words."""
        state = self._group(group)
        state.blocked.append((start_s, end_s, message))
        self._at(max(start_s, self.now_s), RETRY, lambda: self._dirty.add(group))

    def break_image(self, group: str, start_s: float, end_s: float) -> None:
        """Let all that a group launches for a while enter service and never serve."""
        self._group(group).bad_images.append((start_s, end_s))

    def kill(self, instance_id: str) -> None:
        """End an instance as a user without limits does, unknown to its group."""
        if machine := self._known(instance_id):
            self._die(machine, USER_SHUTDOWN)
        self._fill_dirty()

    def reclaim(self, instance_ids: Iterable[str], at_s: float) -> None:
        """Take spot instances back at an instant, whatever the market says."""
        for machine in [self._known(instance_id) for instance_id in instance_ids]:
            if machine and machine.doomed_s is None:
                self._take_back(machine, at_s)
        self._fill_dirty()
