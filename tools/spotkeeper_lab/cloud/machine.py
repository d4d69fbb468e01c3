"""One instance of the simulated cloud, and a pool's refusal to launch one."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spotkeeper_lab.cloud.values import InstanceView, Purchase, SpotRequestView
from spotkeeper_lab.cloud.words import PENDING, WARMED

if TYPE_CHECKING:
    from spotkeeper_lab.cloud.group import GroupState


@dataclass(slots=True, eq=False)
class SimulatedMachine:
    """A running instance; `doomed_s` is when the market takes it, `group` is None once detached.

    One that ended may still be in its group: the health check has not found it yet.
    `cancelled` is why its launch was, in AWS's words; they may be none. `waits` has the hooks that
    hold it, each with when its time is over; they do so since `held_s`.
    """

    number: int
    pool: str
    purchase: Purchase
    launched_s: float
    group: "GroupState | None"
    state: str = PENDING
    in_service_s: float | None = None
    serves_s: float | None = None
    healthy: bool = True
    gone_s: float | None = None
    tags: dict[str, str] = field(default_factory=dict)
    warned_s: float | None = None
    doomed_s: float | None = None
    ended_s: float | None = None
    lost: bool = False
    cancelled: str | None = None
    protected: bool = False
    waits: dict[str, float] = field(default_factory=dict)
    held_s: float = 0.0
    instance_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.instance_id = f"i-{self.number:017x}"

    @property
    def token(self) -> str:
        """The token of its lifecycle action."""
        return f"{self.number:08x}-0000-4000-8000-000000000000"

    @property
    def warm(self) -> bool:
        """Whether it is in a warm pool."""
        return self.state.startswith(WARMED)

    @property
    def zone(self) -> str:
        """The availability zone of its pool."""
        return self.pool.partition("/")[0]

    def spot_request(self) -> SpotRequestView:
        """The request that brought it, as AWS shows it from the warning on."""
        taken = self.ended_s is not None
        return SpotRequestView(
            request_id=f"sir-{self.number:08x}",
            instance_id=self.instance_id,
            status_code="instance-terminated-no-capacity" if taken else "marked-for-termination",
            updated_s=self.ended_s or self.warned_s or 0.0,
        )

    def view(self) -> InstanceView:
        """What AWS shows of it."""
        return InstanceView(
            instance_id=self.instance_id,
            pool=self.pool,
            purchase=self.purchase,
            group=self.group.spec.name if self.group else "",
            state=self.state,
            healthy=self.healthy,
            launched_s=self.launched_s,
            in_service_s=self.in_service_s,
            serves_s=self.serves_s,
            warned_s=self.warned_s,
            gone_s=self.gone_s,
            tags=dict(self.tags),
            ended_s=self.ended_s,
            lost=self.lost,
            protected=self.protected,
        )


@dataclass(frozen=True, slots=True)
class Refusal:
    """A pool refuses to launch, with AWS's words."""

    pool: str
    message: str
