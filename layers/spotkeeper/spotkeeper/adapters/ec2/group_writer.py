"""The requests of a turn to Auto Scaling groups and their instances: the writer port."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

from spotkeeper.adapters.ec2.auto_scaling import DRAINING_TAG, GROUP_TAG, MARKS, NONCE_TAG
from spotkeeper.adapters.errors import aws_errors
from spotkeeper.ports import OWNER_TAG, Gone

if TYPE_CHECKING:
    from mypy_boto3_autoscaling import AutoScalingClient
    from mypy_boto3_ec2 import EC2Client


class AutoScalingWriter:
    """Changes groups and their instances; each method is one call."""

    def __init__(self, autoscaling: "AutoScalingClient", ec2: "EC2Client", nonce: str = "") -> None:
        """Take typed clients, and the nonce that marks carry.

        The client of Auto Scaling tries each call once: nothing shows what ending an instance twice
        does to a capacity, and the next turn follows within a minute.
        """
        self._autoscaling = autoscaling
        self._ec2 = ec2
        self._nonce = nonce

    def set_desired(self, group: str, desired: int) -> None:
        """Ask a group for a capacity; a cooldown of the group does not delay it."""
        with aws_errors(f"setting the desired capacity of {group}"):
            self._autoscaling.set_desired_capacity(
                AutoScalingGroupName=group, DesiredCapacity=desired, HonorCooldown=False
            )

    def end(self, instance_id: str, *, replaced: bool = False) -> None:
        """End an instance, and lower its group's desired capacity by one, or have it replaced.

        One that is only marked unhealthy may stay until its successor is healthy
        (`launchBeforeTerminate`, an instance maintenance policy), and takes requests until then.
        """
        with aws_errors(f"{'replacing' if replaced else 'ending'} {instance_id}"):
            self._autoscaling.terminate_instance_in_auto_scaling_group(
                InstanceId=instance_id, ShouldDecrementDesiredCapacity=not replaced
            )

    def detach(self, group: str, instance_ids: Sequence[str]) -> None:
        """Take instances out of their group, at most 20; the group replaces them at once."""
        with aws_errors(f"detaching from {group}"):
            self._autoscaling.detach_instances(
                AutoScalingGroupName=group,
                InstanceIds=list(instance_ids),
                ShouldDecrementDesiredCapacity=False,
            )

    def set_process(self, group: str, process: str, *, runs: bool) -> None:
        """Suspend a process of a group, or resume it."""
        call = self._autoscaling.resume_processes if runs else self._autoscaling.suspend_processes
        with aws_errors(f"{'resuming' if runs else 'suspending'} {process} of {group}"):
            call(AutoScalingGroupName=group, ScalingProcesses=[process])

    def claim(self, group: str) -> None:
        """Tag a group with the id of this stack; its instances do not get the tag."""
        with aws_errors(f"claiming {group}"):
            self._autoscaling.create_or_update_tags(
                Tags=[
                    {
                        "ResourceId": group,
                        "ResourceType": "auto-scaling-group",
                        "Key": OWNER_TAG,
                        "Value": self._nonce,
                        "PropagateAtLaunch": False,
                    }
                ]
            )

    def drain(self, instance_ids: Sequence[str], gone_at: datetime, group: str) -> None:
        """Tag instances with the time when they end; workers read it from instance metadata."""
        with aws_errors("tagging instances as draining"):
            self._ec2.create_tags(
                Resources=list(instance_ids),
                Tags=[
                    {"Key": DRAINING_TAG, "Value": gone_at.isoformat()},
                    {"Key": GROUP_TAG, "Value": group},
                    {"Key": NONCE_TAG, "Value": self._nonce},
                ],
            )

    def unmark(self, instance_ids: Sequence[str]) -> None:
        """Take the tags off instances again; those that have ended have none any more."""
        with aws_errors("untagging instances"):
            self._ec2.delete_tags(
                Resources=list(instance_ids), Tags=[{"Key": key} for key in MARKS]
            )

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """End detached instances that AWS left running; it is no error if some have ended."""
        for instance_id in instance_ids:
            with suppress(Gone), aws_errors(f"terminating {instance_id}"):
                self._ec2.terminate_instances(InstanceIds=[instance_id])
