"""The doctor's checks of a group's processes and lifecycle hooks."""

from collections.abc import Iterator

from spotkeeper.domain.doctor.facts import GroupFacts, Hook, Unseen
from spotkeeper.domain.doctor.finding import Finding, error, warning
from spotkeeper.domain.fleet import Fleet

# Processes without which a group does not do what it is asked, or keeps dead instances.
_NEEDED = ("Launch", "Terminate", "HealthCheck", "ReplaceUnhealthy", "AddToLoadBalancer")
# Longer than this, and an instance that leaves is paid for without serving.
LONGEST_DRAIN_S = 7200


def check_processes(fleet: Fleet, group: GroupFacts) -> Iterator[Finding]:
    """Find suspended processes that a fleet needs, and one that it had better be without."""
    for process in _NEEDED:
        if process in group.suspended:
            yield error(
                "process-suspended",
                group.name,
                f"{process}: {group.suspended[process] or 'no reason given'}",
                f"aws autoscaling resume-processes --auto-scaling-group-name {group.name} "
                f"--scaling-processes {process}",
            )
    if not fleet.availability.suspend_az_rebalance and "AZRebalance" not in group.suspended:
        yield warning(
            "az-rebalance",
            group.name,
            "AZRebalance runs: it ends busy instances only to even out the zones",
            f"availability.suspend_az_rebalance true in the document of {fleet.name}",
        )


def check_hooks(fleet: Fleet, group: GroupFacts) -> Iterator[Finding]:
    """Find hooks that hold an instance for too long."""
    if isinstance(group.hooks, Unseen):
        return
    deadline = fleet.availability.launch_deadline_s
    if not any(not hook.launching for hook in group.hooks):
        yield error(
            "no-terminate-hook",
            group.name,
            "no hook on EC2_INSTANCE_TERMINATING: requests of instances that leave are lost",
            "aws autoscaling put-lifecycle-hook --lifecycle-hook-name spotkeeper-drain "
            "--lifecycle-transition autoscaling:EC2_INSTANCE_TERMINATING --heartbeat-timeout 120 "
            f"--default-result CONTINUE --auto-scaling-group-name {group.name}",
        )
    for hook in group.hooks:
        if _too_long(hook, deadline):
            limit = deadline if hook.launching else LONGEST_DRAIN_S
            yield error(
                "hook-too-long",
                group.name,
                f"{hook.name} waits {hook.heartbeat_s} s, beyond {limit} s",
                "shorten its heartbeat, or lengthen launch_deadline_s for a slow start",
            )


def _too_long(hook: Hook, deadline_s: int) -> bool:
    """Say whether a launch would count as failed, or a leaving instance hang about for hours."""
    return hook.heartbeat_s >= deadline_s if hook.launching else hook.heartbeat_s > LONGEST_DRAIN_S
