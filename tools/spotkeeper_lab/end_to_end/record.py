"""What a demo writes down while it runs: the fleet over time, every notice, every decision."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spotkeeper_lab.cloud.api import Cloud
from spotkeeper_lab.cloud.values import CloudEvent, InstanceView, Purchase
from spotkeeper_lab.cloud.words import IN_SERVICE, PENDING
from spotkeeper_lab.end_to_end.scene import ON_DEMAND_GROUP, SPOT_GROUP
from spotkeeper_lab.workers import Workforce


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The fleet from `at_s` on, in instances: asked for and serving, by how they are bought.

    Serving is an instance whose workers take requests: not one that was warned, drains or hangs.
    """

    at_s: float
    target: int
    spot: int
    on_demand: int
    on_demand_desired: int
    workers: int


@dataclass(slots=True, kw_only=True)
class Notice:
    """A warning and what came of it; the warned instance serves until `stopped_s`.

    `asked_s` is when its replacement was asked for, `served_s` when enough served without it, and
    `back_s` when spot alone did.
    """

    at_s: float
    instance_id: str
    pool: str
    asked_s: float | None = None
    stopped_s: float | None = None
    served_s: float | None = None
    back_s: float | None = None

    @property
    def whole_after_s(self) -> float | None:
        """How long the fleet was short of the warned instance; None while it still is."""
        if self.served_s is None or self.stopped_s is None:
            return None
        return self.served_s - self.stopped_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A decision record as the functions left it, at its second."""

    at_s: float
    text: str

    @property
    def values(self) -> dict[str, object]:
        """The record's fields."""
        values: dict[str, object] = json.loads(self.text)
        return values


@dataclass(slots=True)
class Record:
    """Everything of one demo."""

    looks: list[Look] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    metrics: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    _open: list[Notice] = field(default_factory=list)

    def sent(self, at_s: float, metrics: Mapping[str, float]) -> None:
        """Note the metrics that an invocation sent."""
        for name, value in metrics.items():
            self.metrics.setdefault(name, []).append((at_s, value))

    def warn(self, event: CloudEvent, pool: str) -> None:
        """Note a warning."""
        notice = Notice(at_s=event.at_s, instance_id=event.instance_id, pool=pool)
        self.notices.append(notice)
        self._open.append(notice)

    def look(self, cloud: Cloud, force: Workforce, instances: Sequence[InstanceView]) -> Look:
        """Note the fleet as it is now, where it differs from before; bring notices up to now."""
        spot_group, on_demand_group = cloud.group(SPOT_GROUP), cloud.group(ON_DEMAND_GROUP)
        serving = [view for view in instances if force.serving(view.instance_id)]
        spot = sum(view.purchase is Purchase.SPOT for view in serving)
        lost = cloud.bill().losses - len(self.losses)
        self.losses.extend([cloud.now_s] * lost)
        look = Look(
            at_s=cloud.now_s,
            target=spot_group.desired,
            spot=spot,
            on_demand=len(serving) - spot,
            on_demand_desired=on_demand_group.desired,
            workers=force.accepting,
        )
        if not self.looks or _state(self.looks[-1]) != _state(look):
            self.looks.append(look)
        if self._open:
            self._follow_notices(look, sum(map(_will_serve, spot_group.instances)), force)
        return look

    def _follow_notices(self, look: Look, spot_launching: int, force: Workforce) -> None:
        """A replacement is asked for once what serves, comes, or was asked for makes it whole.

        As long as the warned instance serves itself, the fleet is not whole without it.
        """
        now_s = look.at_s
        for notice in self._open:
            if notice.asked_s is None and spot_launching + look.on_demand_desired >= look.target:
                notice.asked_s = now_s
            if force.serving(notice.instance_id):
                continue
            if notice.stopped_s is None:
                notice.stopped_s = now_s
            if notice.served_s is None and look.spot + look.on_demand >= look.target:
                notice.served_s = now_s
            if look.spot >= look.target and not look.on_demand_desired:
                notice.back_s = now_s
        self._open = [notice for notice in self._open if notice.back_s is None]


def _will_serve(view: InstanceView) -> bool:
    return view.state in (PENDING, IN_SERVICE) and view.warned_s is None and view.healthy


def _state(look: Look) -> tuple[int, ...]:
    return (look.target, look.spot, look.on_demand, look.on_demand_desired, look.workers)
