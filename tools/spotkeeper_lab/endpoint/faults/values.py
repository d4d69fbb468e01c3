"""What can go wrong in a lab, as a scenario or the page orders it; times are in seconds.

A fault with `for_s` ends by itself; one that is ordered again takes the place of the one before.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

type Seconds = Annotated[float, Field(ge=0, le=86_400)]
type Share = Annotated[float, Field(gt=0, le=1)]


class Refusal(StrEnum):
    """Why a group cannot launch."""

    CAPACITY = "capacity"
    QUOTA = "quota"
    CONFIGURATION = "configuration"
    PERMISSION = "permission"


class CallAnswer(StrEnum):
    """How a call fails: `lost` has its effect and no answer, `unreachable` neither."""

    THROTTLED = "throttled"
    ERROR = "error"
    LOST = "lost"
    DENIED = "denied"
    UNREACHABLE = "unreachable"


class Delivery(StrEnum):
    """How events reach the rules."""

    LATE = "late"
    TWICE = "twice"
    SHUFFLED = "shuffled"
    NEVER = "never"


class _Fault(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Capacity(_Fault):
    """Spot pools hold `capacity` from `in_s` on; without `pools`, every one of them."""

    do: Literal["capacity"]
    capacity: int = Field(ge=0, le=10_000)
    pools: tuple[str, ...] = ()
    in_s: Seconds = 0.0


class LoseInstances(_Fault):
    """`count` spot instances are taken back `in_s` from now; with a notice they are warned.

    They are those named as `instances`, or the newest.
    """

    do: Literal["loss"]
    instances: tuple[str, ...] = ()
    count: int = Field(default=1, ge=1, le=10_000)
    in_s: Seconds = 120.0


class RefuseLaunches(_Fault):
    """A group launches nothing for a while, in AWS's words for the reason."""

    do: Literal["refuse-launches"]
    group: Literal["spot", "on-demand"]
    why: Refusal = Refusal.CAPACITY
    for_s: Seconds


class Calls(_Fault):
    """Calls of the functions fail: one API action by its name, or all of one service."""

    do: Literal["calls"]
    action: str = Field(pattern=r"^[A-Za-z0-9]+$")
    answer: CallAnswer
    share: Share = 1.0
    for_s: Seconds


class Rebalance(_Fault):
    """AWS recommends that `count` spot instances be rebalanced: their risk is elevated."""

    do: Literal["rebalance"]
    count: int = Field(default=1, ge=1, le=10_000)


class Quota(_Fault):
    """The account may run so many vCPUs of a kind from now on; without `vcpus`, any number."""

    do: Literal["quota"]
    group: Literal["spot", "on-demand"]
    vcpus: int | None = Field(default=None, ge=0)


class KillFunction(_Fault):
    """The processes of a function are killed, at work or not.

    With `at_call`, once any function has made that call and before it hears the answer.
    """

    do: Literal["kill-function"]
    at_call: str = Field(default="", pattern=r"^[A-Za-z0-9]*$")
    function: Literal[
        "CheckAvailability", "CheckHealth", "CollectSearchLogs", "HandleInterruption", "KeepLedger"
    ]


class Events(_Fault):
    """The events of a while are late by `late_s`, come twice, out of order, or never."""

    do: Literal["events"]
    delivery: Delivery
    late_s: Seconds = 30.0
    for_s: Seconds


class OfferLoad(_Fault):
    """The workers are offered so much load, in erlangs; no load means that nothing is logged."""

    do: Literal["load"]
    erlangs: float = Field(ge=0, le=1000)


class SearchLogs(_Fault):
    """Workers serve and log nothing, or log again."""

    do: Literal["search-logs"]
    stopped: bool


type Fault = Annotated[
    Capacity
    | LoseInstances
    | RefuseLaunches
    | Rebalance
    | Quota
    | Calls
    | KillFunction
    | Events
    | OfferLoad
    | SearchLogs,
    Field(discriminator="do"),
]

FAULT: TypeAdapter[Fault] = TypeAdapter(Fault)
