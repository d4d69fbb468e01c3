"""`spotkeeper-agent job`: one life on this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from spotkeeper_worker.agent.aws import AwsError
from spotkeeper_worker.agent.loop import hold_machine
from spotkeeper_worker.agent.metadata import Metadata, MetadataError
from spotkeeper_worker.job.bucket import BucketError
from spotkeeper_worker.job.disks import Disks
from spotkeeper_worker.job.life import SILENT_S, Life
from spotkeeper_worker.job.machine import JobError, Machine, shut_down
from spotkeeper_worker.log import Sometimes, get_logger
from spotkeeper_worker.stop import Stop, on_signals

if TYPE_CHECKING:
    from spotkeeper_worker.agent.settings import Settings

_AGAIN_S = 2.0


def run(settings: Settings, disks: Disks | None = None) -> int:
    """Run this machine's job; raises AnotherAgent where one runs it already."""
    settings.job_folder.mkdir(parents=True, exist_ok=True)
    with hold_machine(settings.job_folder):
        return _run(settings, disks or Disks())


def _run(settings: Settings, disks: Disks) -> int:
    stop = Stop()
    on_signals(stop.set)
    metadata = Metadata(settings.metadata_endpoint)
    since, say, machine = time.monotonic(), Sometimes(get_logger("agent")), None
    while machine is None:
        try:
            machine = Machine(settings, metadata, disks)
        except (MetadataError, AwsError, BucketError, OSError, JobError) as error:
            say.warn("start", f"the job waits: {error}")
            if time.monotonic() - since > SILENT_S:
                shut_down(settings)
                return 0
            if stop.wait(_AGAIN_S):
                return 0
    life = Life(machine)
    while not life.step(time.monotonic()):
        life.stopping = stop.is_set()
        # After an order to stop there is nothing to wait for but the tick.
        time.sleep(settings.job_tick_s) if stop.is_set() else stop.wait(settings.job_tick_s)
    if machine.stream:
        machine.stream.close(5.0)
    return 0
