"""What a lab is made of; the options of `spotkeeper lab up`."""

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt


class LabSettings(BaseModel):
    """One lab: its endpoint, its groups and its market; times are in seconds.

    `pools` are "zone/type" with how many spot instances each can hold.
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
