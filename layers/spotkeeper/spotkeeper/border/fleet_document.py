"""The fleet document: one JSON object a fleet, validated with every wrong field named."""

import json
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from spotkeeper.domain.fleet import (
    AvailabilityPolicy,
    Bounds,
    Fleet,
    Objective,
    RebalanceMeaning,
    SizingPolicy,
    WorkerHealthPolicy,
)
from spotkeeper.domain.permission import Mode

_AVAILABILITY = AvailabilityPolicy()
_SIZING = SizingPolicy()
_HEALTH = WorkerHealthPolicy()
_START_UP_S = Objective(wait_s=10, share=0.95).start_up_s

Count = Annotated[int, Field(ge=0, le=10_000)]
Seconds = Annotated[int, Field(ge=0, le=86_400)]
Share = Annotated[float, Field(gt=0, le=1)]
GroupName = Annotated[str, Field(min_length=1, max_length=255)]
QueueUrl = Annotated[
    str,
    Field(
        pattern=r"^(https://sqs\.[a-z0-9-]+\.amazonaws\.com(\.cn)?/[0-9]{12}/[A-Za-z0-9_-]{1,80}(\.fifo)?"
        r"|amazon-mq://[A-Za-z0-9_-]{1,50}/[^/\s]{1,255}/[^/\s]{1,255}"
        r"|rabbitmq://[^/\s]{1,255}/[^/\s]{1,255})$",
        max_length=600,
    ),
]


class FleetDocumentError(Exception):
    """A fleet document that does not validate; stops that fleet only."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    retired: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _without_retired(cls, section: Any) -> Any:
        """Pass over the settings of earlier releases, whatever they say."""
        if not isinstance(section, dict):
            return section
        return {name: value for name, value in section.items() if name not in cls.retired}


class BoundsSection(_Section):
    """How many instances the operator allows."""

    spot_min: Count = 0
    spot_max: Count
    on_demand_max: Count

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.spot_min > self.spot_max:
            raise ValueError(f"spot_min {self.spot_min} is above spot_max {self.spot_max}")
        return self


class SizingSection(_Section):
    """How load becomes workers; see docs/operations.md."""

    enabled: bool = _SIZING.enabled
    target_load_rate: Share = _SIZING.target_load_rate
    window_s: Annotated[int, Field(ge=60, le=3600)] = _SIZING.window_s
    scale_in_after_s: Seconds = _SIZING.scale_in_after_s
    stale_after_s: Annotated[int, Field(ge=30, le=3600)] = _SIZING.stale_after_s
    quiet_after_s: Annotated[int, Field(ge=300, le=86_400)] = _SIZING.quiet_after_s


class ObjectiveSection(_Section):
    """The promise about waiting; a wait of 0 is none, and the load rate sizes the fleet."""

    wait_s: Annotated[float, Field(ge=0, le=3600)]
    share: Annotated[float, Field(ge=0.5, le=0.9999)]
    start_up_s: Annotated[int, Field(ge=1, le=3600)] = _START_UP_S

    def objective(self) -> Objective | None:
        """The objective as the domain has it."""
        return Objective(**self.model_dump()) if self.wait_s else None


class AvailabilitySection(_Section):
    """How the gap in the spot group is filled and given back; see docs/operations.md."""

    retired = frozenset({
        "settle_s", "warm_settle_s", "quiet_s", "release_step", "breaker_count",
        "breaker_window_s", "breaker_recovery_s", "spell_settle_s", "spell_window_s",
    })  # fmt: skip

    launch_deadline_s: Seconds = _AVAILABILITY.launch_deadline_s
    request_grace_s: Seconds = _AVAILABILITY.request_grace_s
    configuration_cap: Count = _AVAILABILITY.configuration_cap
    busy_patience_s: Seconds = _AVAILABILITY.busy_patience_s
    notice_s: Annotated[int, Field(ge=0, le=3600)] = _AVAILABILITY.notice_s
    spell_s: Seconds = _AVAILABILITY.spell_s
    spare_share: Annotated[float, Field(ge=0, le=1)] = _AVAILABILITY.spare_share
    proven_after_s: Seconds = _AVAILABILITY.proven_after_s
    lost_notice_share: Annotated[float, Field(ge=0, le=1)] = _AVAILABILITY.lost_notice_share
    early_replacement: bool = _AVAILABILITY.early_replacement
    rebalance: Literal["ignore", "at_risk"] = _AVAILABILITY.rebalance.value
    suspend_az_rebalance: bool = _AVAILABILITY.suspend_az_rebalance
    on_demand_warm: bool = _AVAILABILITY.on_demand_warm
    bridge_margin_s: Seconds = _AVAILABILITY.bridge_margin_s


class WorkerHealthSection(_Section):
    """When a worker that does not work is replaced; see docs/operations.md."""

    retired = frozenset({"peers_finished"})

    enabled: bool = _HEALTH.enabled
    silent_after_s: Annotated[int, Field(ge=60, le=3600)] = _HEALTH.silent_after_s
    failing_share: Share = _HEALTH.failing_share
    failing_requests: Annotated[int, Field(ge=1)] = _HEALTH.failing_requests
    slow_factor: Annotated[float, Field(gt=1, le=100)] = _HEALTH.slow_factor
    slow_requests: Annotated[int, Field(ge=1)] = _HEALTH.slow_requests
    replacements_per_hour: Count = _HEALTH.replacements_per_hour


class FleetDocument(_Section):
    """The whole document; what is left out has the defaults of docs/operations.md."""

    version: Literal[1]
    spot_group: GroupName
    on_demand_group: GroupName
    mode: Literal["act", "observe"] = "act"
    workers_per_instance: Annotated[int, Field(ge=1, le=1000)] = 1
    onprem_workers: Count = 0
    request_queue_url: QueueUrl | None = None
    bounds: BoundsSection
    objective: ObjectiveSection | None = None
    sizing: SizingSection = SizingSection()
    availability: AvailabilitySection = AvailabilitySection()
    worker_health: WorkerHealthSection = WorkerHealthSection()

    @model_validator(mode="after")
    def _two_groups(self) -> Self:
        if self.spot_group == self.on_demand_group:
            raise ValueError("spot_group and on_demand_group must be two groups")
        return self


def parse_fleet(name: str, text: str, overrides: str | None = None) -> Fleet:
    """Read one fleet document; raises `FleetDocumentError` with every wrong field named.

    `overrides` is laid over it as a JSON merge patch (RFC 7396): its fields go before the
    document's, null gives a field its default.
    """
    try:
        if overrides is not None:
            text = json.dumps(_merged(_object(name, text), _object(f"{name}.overrides", overrides)))
        document = FleetDocument.model_validate_json(text)
    except ValidationError as error:
        raise FleetDocumentError(f"fleet document {name}: {_wrong(error)}") from error
    return Fleet(
        name=name,
        spot_group=document.spot_group,
        on_demand_group=document.on_demand_group,
        mode=Mode(document.mode),
        workers_per_instance=document.workers_per_instance,
        onprem_workers=document.onprem_workers,
        request_queue_url=document.request_queue_url,
        bounds=Bounds(**document.bounds.model_dump()),
        objective=document.objective.objective() if document.objective else None,
        sizing=SizingPolicy(**document.sizing.model_dump()),
        availability=_availability(document.availability),
        worker_health=WorkerHealthPolicy(**document.worker_health.model_dump()),
        unused=_unused(json.loads(text)),
    )


def _unused(document: dict[str, Any]) -> tuple[str, ...]:
    """Name the settings of earlier releases that a document has."""
    sections: dict[str, type[_Section]] = {
        "availability": AvailabilitySection,
        "worker_health": WorkerHealthSection,
    }
    return tuple(
        f"{name}.{setting}"
        for name, section in sections.items()
        for setting in sorted(section.retired.intersection(document.get(name, ())))
    )


def _wrong(error: ValidationError) -> str:
    """Name every wrong field; ciphertext is no JSON, and its owner should be told why."""
    told = [
        f"{'.'.join(str(part) for part in e['loc']) or 'document'}: {e['msg']}"
        for e in error.errors()
    ]
    if any(e["type"] == "json_invalid" for e in error.errors()):
        told.append("it must be one JSON object in a parameter of type String, not SecureString")
    return "; ".join(told)


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise FleetDocumentError(f"fleet document {name}: no JSON: {error}") from error
    if not isinstance(value, dict):
        raise FleetDocumentError(f"fleet document {name}: must be a JSON object")
    return value


def _merged(document: Any, patch: Any) -> Any:
    """Lay a merge patch over a document (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    kept = dict(document) if isinstance(document, dict) else {}
    for field, value in patch.items():
        if value is None:
            kept.pop(field, None)
        else:
            kept[field] = _merged(kept.get(field), value)
    return kept


def _availability(section: AvailabilitySection) -> AvailabilityPolicy:
    values: dict[str, Any] = section.model_dump()
    values["rebalance"] = RebalanceMeaning(section.rebalance)
    return AvailabilityPolicy(**values)
