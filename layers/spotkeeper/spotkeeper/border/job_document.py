"""The job document: what to run, on what, where its state is kept, and when it ends.

Times may be given as text ("10m", "2h", "1d", "90s") or as seconds.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from spotkeeper.border import wrong_fields
from spotkeeper.domain.jobs.job import JobSpec, OnDone

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TIME = re.compile(r"(\d{1,9})([smhd])")
_RESERVED = (
    "SPOTKEEPER_JOB", "SPOTKEEPER_ATTEMPT", "SPOTKEEPER_CHECKPOINTS", "SPOTKEEPER_OUTPUTS",
    "SPOTKEEPER_DATA",
)  # fmt: skip
# What jobs do not do, refused by its name.
_REFUSED = {
    **dict.fromkeys(
        ("machines", "nodes"), "a job runs on one machine; several GPUs of one machine are fine"
    ),
    "multi_attach": "a volume has one writer",
    "fast_snapshot_restore": "it costs 0.75 USD an hour and zone",
    "hibernate": "a hibernated spot instance returns in its own zone and type only",
    "efs": "keep checkpoints in S3, or a volume",
    "image_uri": 'start the container by the command: ["docker", "run", ...]',
    "snapshot": "give data.s3 with mount = true, or a machine.image that has the data",
    "s3_files": "keep checkpoints in S3, or a volume",
}


class JobDocumentError(Exception):
    """A job document that does not validate; names every wrong field."""


def _seconds(value: Any) -> Any:
    if isinstance(value, str) and (match := _TIME.fullmatch(value.strip())):
        return int(match[1]) * _UNITS[match[2]]
    if isinstance(value, str):
        raise ValueError(f'{value!r} is not a time such as "90s", "10m", "2h" or "1d"')
    return value


# A parameter of SSM, or a secret of Secrets Manager, by its name.
SECRET = r"^(ssm|secretsmanager):[A-Za-z0-9/_+=.@-]{1,512}$"
type Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


def _deadline(value: Any) -> Any:
    """Read seconds after the start, or an instant with its zone."""
    at: Any = value
    with suppress(ValueError):
        at = datetime.fromisoformat(value) if isinstance(value, str) else value
    with suppress(ValueError):
        at = _seconds(at)
    if isinstance(at, datetime) and at.tzinfo is not None:
        return at
    if isinstance(at, int) and 600 <= at <= 366 * 86400:  # noqa: PLR2004
        return at
    raise ValueError(
        f'{value!r} is neither a time of 10 minutes to a year, such as "36h", nor an instant with'
        " its zone, such as 2026-12-01T08:00:00Z"
    )


type Seconds = Annotated[int, BeforeValidator(_seconds)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Machine(_Strict):
    """What the job runs on."""

    types: Annotated[list[Annotated[str, Field(pattern=r"^[a-z0-9-]+\.[a-z0-9-]+$")]],
                     Field(min_length=1, max_length=10)]  # fmt: skip
    on_demand: Literal["never", "only"] | Annotated[Seconds, Field(ge=0, le=7 * 86400)] = 600
    return_to_spot: bool = True
    root: Literal["drop", "keep"] = "drop"
    image: Annotated[str, Field(pattern=r"^ami-[0-9a-f]{8,17}$")] | None = None


class VolumeState(_Strict):
    """A volume that follows the job; `initialization_rate` in MiB/s is paid for, 0 is none."""

    mount: Annotated[str, Field(pattern=r"^/[A-Za-z0-9._/-]+$")]
    size_gib: Annotated[int, Field(ge=1, le=16384)]
    initialization_rate: Annotated[int, Field(ge=0, le=300)] = 0


class State(_Strict):
    """Where the job keeps what must survive its machine: a folder kept in S3, or a volume."""

    checkpoints: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$")] | None = None
    complete: str | None = None
    entries: Annotated[
        list[Annotated[str, Field(pattern=r"^[^/]{1,200}$")]],
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    ] = []
    commits_within: Annotated[Seconds, Field(ge=60, le=7 * 86400)] = 3600
    volume: VolumeState | None = None
    keep: Annotated[int, Field(ge=1, le=10)] = 2
    every: Annotated[Seconds, Field(ge=300, le=86400)] = 900

    @model_validator(mode="before")
    @classmethod
    def _checkpoints_by_default(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("volume") is None:
            return {"checkpoints": "checkpoints", **data}
        return data

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.checkpoints is None) == (self.volume is None):
            raise ValueError("give either checkpoints or volume")
        if self.volume and (self.complete or self.entries):
            raise ValueError("complete and entries are for checkpoints")
        return self


class End(_Strict):
    """When the job ends."""

    max_restarts: Annotated[int, Field(ge=0, le=1000)] = 3
    idle_after: Annotated[Seconds, Field(ge=300, le=7 * 86400)] = 1800
    max_hours: Annotated[float, Field(gt=0, le=24 * 365, strict=False)] = 48.0
    max_usd: Annotated[float, Field(gt=0, le=1_000_000, strict=False)] | None = None
    on_done: Literal["keep", "snapshot", "image", "delete"] = "snapshot"
    deadline: Annotated[datetime | int, BeforeValidator(_deadline)] | None = None
    work: Annotated[Seconds, Field(ge=60, le=366 * 86400)] | None = None
    steps: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _work_is_known(self) -> Self:
        if self.deadline is not None and self.work is None:
            raise ValueError(
                'end.deadline needs end.work: how long one machine takes for all, such as "20h"'
            )
        return self


class Data(_Strict):
    """What is read and never changed: copied before the command, or mounted where mount-s3 is."""

    s3: Annotated[str, Field(pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/\S*)?$")]
    into: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$")] = "data"
    mount: bool = False


class Git(_Strict):
    """Code that the machine clones."""

    url: Annotated[str, Field(pattern=r"^https://\S+$")]
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{7,40}$")]


class JobDocument(_Strict):
    """One job."""

    version: Literal[1]
    name: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,40}$")]
    command: Annotated[list[str], Field(min_length=1)]
    code: str | None = None
    git: Git | None = None
    user: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$")] | None = None
    environment: dict[Variable, str] = {}
    secrets: dict[Variable, Annotated[str, Field(pattern=SECRET)]] = {}
    setup: list[Annotated[str, Field(min_length=1)]] = []
    setup_within: Annotated[Seconds, Field(ge=60, le=86400)] = 1800
    data: Data | None = None
    outputs: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$")] | None = None
    machine: Machine
    state: State = State()
    end: End = End()

    @model_validator(mode="before")
    @classmethod
    def _not_offered(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            for section in (data, *(part for part in data.values() if isinstance(part, Mapping))):
                for name, why in _REFUSED.items():
                    if name in section:
                        raise ValueError(f"{name} is not offered: {why}")
        return data

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.machine.root == "keep" and self.state.volume:
            raise ValueError(
                'machine.root = "keep" is not offered with state.volume: keep the files on one of'
                " them"
            )
        has_disk = self.state.volume is not None or self.machine.root == "keep"
        if self.end.deadline is not None and (has_disk or self.machine.on_demand == "never"):
            raise ValueError(
                "end.deadline needs checkpoints in S3, and on-demand machines when time is short"
            )
        if self.end.on_done == "image" and self.machine.root != "keep":
            raise ValueError('end.on_done = "image" needs machine.root = "keep"')
        if self.code is not None and self.git is not None:
            raise ValueError("give code or git, not both")
        if reserved := [name for name in _RESERVED if name in self.environment | self.secrets]:
            raise ValueError(f"environment: {', '.join(reserved)} is set by Spotkeeper")
        if twice := sorted(self.environment.keys() & self.secrets):
            raise ValueError(f"{', '.join(twice)} is in environment and in secrets: give one")
        folders = [self.state.checkpoints, self.outputs, self.data.into if self.data else None]
        names = [name for name in folders if name]
        if len({*names}) < len(names):
            raise ValueError("checkpoints, outputs and data.into are folders of their own")
        return self

    def spec(self, zones: Sequence[str]) -> JobSpec:
        """Return what the job's steps depend on; `zones` are those of the stack's subnets."""
        on_demand = self.machine.on_demand
        after = timedelta(seconds=on_demand) if isinstance(on_demand, int) else None
        return JobSpec(
            name=self.name,
            zones=tuple(zones),
            types=tuple(self.machine.types),
            initialization_rate=self.state.volume.initialization_rate if self.state.volume else 0,
            size_gib=self.state.volume.size_gib if self.state.volume else None,
            spot=on_demand != "only",
            on_demand_after=timedelta(0) if on_demand == "only" else after,
            return_to_spot=self.machine.return_to_spot,
            snapshot_every=timedelta(seconds=self.state.every),
            commits_within=timedelta(seconds=self.state.commits_within),
            max_restarts=self.end.max_restarts,
            max_hours=self.end.max_hours,
            max_usd=self.end.max_usd,
            on_done=OnDone(self.end.on_done),
            keeps_root=self.machine.root == "keep",
            image=self.machine.image or "",
            deadline=timedelta(seconds=self.end.deadline)
            if isinstance(self.end.deadline, int)
            else self.end.deadline,
            work=timedelta(seconds=self.end.work or 0),
            steps=self.end.steps,
        )


# Every name that a document may have, with an example of what has a form.
_SECTIONS: Mapping[str, type[BaseModel]] = {
    "machine": Machine, "state": State, "state.volume": VolumeState, "end": End, "data": Data,
    "git": Git,
}  # fmt: skip
_FIELDS = {f"{section}.{name}": "" for section, of in _SECTIONS.items() for name in of.model_fields}
_FIELDS |= dict.fromkeys(JobDocument.model_fields, "") | {
    "name": "resnet-50", "user": "ubuntu", "secrets": "ssm:/team/wandb", "outputs": "runs",
    "machine.types": "g5.xlarge", "machine.image": "ami-0abc1234def567890",
    "state.checkpoints": "checkpoints", "state.volume.mount": "/data", "data.into": "data",
    "data.s3": "s3://team-data/imagenet", "git.url": "https://github.com/team/train",
    "git.commit": "637e70f",
}  # fmt: skip


def parse_job(document: Mapping[str, Any]) -> JobDocument:
    """Read a job document; raises `JobDocumentError` with every wrong field named."""
    try:
        return JobDocument.model_validate(document)
    except ValidationError as error:
        raise JobDocumentError(wrong_fields(error, "document", _FIELDS)) from error
