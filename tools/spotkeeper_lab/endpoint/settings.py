"""What a lab is made of; the options of `spotkeeper lab up`."""

from dataclasses import fields
from typing import Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    TypeAdapter,
    ValidationError,
    field_validator,
)

from spotkeeper_lab.cloud.values import GroupSpec, Physics, two_groups

PHYSICS: TypeAdapter[Physics] = TypeAdapter(Physics)


class LabSettings(BaseModel):
    """One lab: its endpoint, its groups and its market; times are in seconds.

    `pools` are "zone/type" with how many spot instances each can hold. `physics` has any other
    property of the simulated cloud, by the names of `Physics`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    port: int = Field(default=4566, ge=1024, le=65535)
    auth: bool = True
    spot_group: str = "ocr-spot"
    on_demand_group: str = "ocr-on-demand"
    desired: NonNegativeInt = 3
    maximum: int = Field(default=20, ge=1)
    pools: dict[str, NonNegativeInt] = {
        "us-east-1a/g5.xlarge": 4,
        "us-east-1b/g5.xlarge": 4,
        "us-east-1c/g5.xlarge": 4,
    }
    cold_start_s: float = Field(default=20.0, ge=0)
    notice_s: float = Field(default=120.0, ge=0)
    event_delay_s: float = Field(default=1.0, ge=0)
    physics: dict[str, Any] = {}

    @field_validator("physics")
    @classmethod
    def _known(cls, given: dict[str, Any]) -> dict[str, Any]:
        if unknown := sorted(set(given) - {field.name for field in fields(Physics)}):
            raise ValueError(f"{', '.join(unknown)}: the simulated cloud knows nothing of it")
        try:
            PHYSICS.validate_python(given)
        except ValidationError as error:
            wrong = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            raise ValueError("; ".join(wrong)) from error
        return given

    def made(self) -> Physics:
        """How the simulated cloud behaves: as strict as AWS where that needs no patience."""
        strict: dict[str, Any] = {"cancellations_shown": True, "pending_ends_refused": True}
        return Physics(
            cold_start_s=self.cold_start_s,
            notice_s=self.notice_s,
            event_delay_s=self.event_delay_s,
            **(strict | self.physics),
        )

    def groups(self) -> tuple[GroupSpec, GroupSpec]:
        """Both groups, as a stack adopts them."""
        return two_groups(
            self.spot_group,
            self.on_demand_group,
            pools=tuple(self.pools),
            maximum=self.maximum,
            desired=self.desired,
        )
