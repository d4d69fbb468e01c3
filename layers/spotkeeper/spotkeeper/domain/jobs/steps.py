"""The steps that a job may take: each is safe to repeat, and safe to lose."""

from dataclasses import dataclass
from datetime import datetime

from spotkeeper.domain.jobs.job import Job, Launch, Making


@dataclass(frozen=True, slots=True)
class Step:
    """One step, and why it is taken."""

    why: str


@dataclass(frozen=True, slots=True)
class Write(Step):
    """Write the job's item; refused if it was written meanwhile."""

    job: Job


@dataclass(frozen=True, slots=True)
class Start(Step):
    """Launch one machine, with the attempt as the client token."""

    launch: Launch


@dataclass(frozen=True, slots=True)
class CreateVolume(Step):
    """Create a volume, empty or from a seal."""

    making: Making


class RegisterImage(CreateVolume):
    """Register an image of the seal of a root."""


@dataclass(frozen=True, slots=True)
class OfMachine(Step):
    """A step that concerns a machine."""

    instance_id: str


class End(OfMachine):
    """Terminate a machine."""


@dataclass(frozen=True, slots=True)
class Drain(OfMachine):
    """Ask a machine to stop: at its next checkpoint, or within two minutes."""

    at_checkpoint: bool = False


@dataclass(frozen=True, slots=True)
class Point(OfMachine):
    """Tag a machine with the volume that it must find."""

    volume: str


@dataclass(frozen=True, slots=True)
class Limit(OfMachine):
    """Tell a machine when the job reaches a limit: its agent leaves then by itself."""

    until: datetime


@dataclass(frozen=True, slots=True)
class Grant(OfMachine):
    """Let a machine run as a generation: `G`, or `G VOLUME`."""

    grant: str


@dataclass(frozen=True, slots=True)
class KeepRoot(OfMachine):
    """Let the root volume of a machine stay after the machine's end."""

    device: str


@dataclass(frozen=True, slots=True)
class OfVolume(Step):
    """A step that concerns a volume."""

    volume: str


@dataclass(frozen=True, slots=True)
class Attach(OfVolume):
    """Attach a volume to a machine of its zone."""

    instance_id: str


class Detach(OfVolume):
    """Detach a volume that is of no use."""


class DeleteVolume(OfVolume):
    """Delete a volume."""


@dataclass(frozen=True, slots=True)
class TakeSnapshot(OfVolume):
    """Take a snapshot; a seal is a snapshot of a volume without a writer."""

    generation: int
    epoch: int
    seal: bool

    @property
    def key(self) -> str:
        """Return what tells it from the snapshots of other states of the job."""
        return f"{self.generation}/{self.epoch}/{'seal' if self.seal else 'backup'}"


@dataclass(frozen=True, slots=True)
class DeleteSnapshot(Step):
    """Delete a snapshot."""

    snapshot: str


@dataclass(frozen=True, slots=True)
class DeregisterImage(Step):
    """Deregister an image; its snapshot stays."""

    image: str


class Mail(Step):
    """Report the end of the job."""


class Remind(Step):
    """Report that the job's machine commits nothing."""
