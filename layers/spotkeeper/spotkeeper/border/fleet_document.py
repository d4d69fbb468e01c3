"""The fleet document: one JSON object a fleet, validated with every wrong field named.

Its sections are made of the settings that the dataclasses of the domain define.
"""

import json
import re
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, Self

from pydantic import TypeAdapter, ValidationError, model_validator

from spotkeeper.border import wrong_fields
from spotkeeper.border.sections import Section, section, settings_of
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from spotkeeper.domain.settings.sizing import Bounds, Objective, SizingPolicy
from spotkeeper.domain.settings.worker_health import WorkerHealthPolicy

# As search logs may name it; Parameter Store allows longer ones.
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# The ciphertext of a SecureString; a word is none.
_BASE64 = re.compile(r"[A-Za-z0-9+/]{20,}=*")


class FleetDocumentError(Exception):
    """A fleet document that does not validate; stops that fleet only."""


class _OrderedBounds(Section):
    @model_validator(mode="after")
    def _ordered(self) -> Self:
        least, most = (self.model_dump()[name] for name in ("spot_min", "spot_max"))
        if least > most:
            raise ValueError(f"spot_min {least} is above spot_max {most}")
        return self


class _Availability(Section):
    retired = frozenset({
        "settle_s", "warm_settle_s", "quiet_s", "release_step", "breaker_count",
        "breaker_window_s", "breaker_recovery_s", "spell_settle_s", "spell_window_s", "spell_s",
        "elevated_risk_s", "spare_share", "proven_after_s",
    })  # fmt: skip
    renamed: ClassVar = {"bridge_margin_s": "deferral_margin_s"}


class _WorkerHealth(Section):
    retired = frozenset({"peers_finished"})


class _TwoGroups(Section):
    @model_validator(mode="after")
    def _two_groups(self) -> Self:
        named = self.model_dump()
        if named["spot_group"] == named["on_demand_group"]:
            raise ValueError("spot_group and on_demand_group must be two groups")
        return self


SECTIONS = {
    "bounds": section(Bounds, _OrderedBounds),
    "objective": section(Objective),
    "sizing": section(SizingPolicy),
    "availability": section(AvailabilityPolicy, _Availability),
    "worker_health": section(WorkerHealthPolicy, _WorkerHealth),
}
AvailabilitySection = SECTIONS["availability"]
FleetDocument = section(
    Fleet,
    _TwoGroups,
    version=(Literal[1], ...),
    bounds=(SECTIONS["bounds"], ...),
    objective=(SECTIONS["objective"] | None, None),
    **{
        name: (SECTIONS[name], SECTIONS[name]())
        for name in ("sizing", "availability", "worker_health")
    },
)

_FLEET = TypeAdapter(Fleet)
# Every name that a document may have, with its example.
_FIELDS = {f"{name}.{each}": "" for name, of in SECTIONS.items() for each in of.model_fields}
_FIELDS |= dict.fromkeys(FleetDocument.model_fields, "")
_FIELDS |= {field.name: setting.example for field, setting in settings_of(Fleet)}


# A warm function is given the same documents every minute.
@lru_cache(maxsize=100)
def parse_fleet(name: str, text: str, overrides: str | None = None) -> Fleet:
    """Read one fleet document; raises `FleetDocumentError` with every wrong field named.

    `overrides` is laid over it as a JSON merge patch (RFC 7396): its fields go before the
    document's, null gives a field its default.
    """
    if not _NAME.fullmatch(name):
        message = (
            "is not the name of a fleet: use 1 to 64 of A-Z a-z 0-9 _ . -, directly below the path"
        )
        raise FleetDocumentError(f"fleet document {name}: {message}")
    try:
        given = _object(name, text)
        if overrides is not None:
            given = _merged(given, _object(f"{name}.overrides", overrides))
        document = FleetDocument.model_validate_json(json.dumps(given))
    except ValidationError as error:
        message = f"fleet document {name}: {wrong_fields(error, 'document', _FIELDS)}"
        raise FleetDocumentError(message) from error
    except RecursionError as error:
        raise FleetDocumentError(f"fleet document {name}: is nested too deeply") from error
    fleet = _FLEET.validate_python(document.model_dump(exclude={"version"}) | {"name": name})
    if fleet.objective and not fleet.objective.wait_s:
        fleet = replace(fleet, objective=None)
    return replace(fleet, unused=_unused(given))


def _unused(document: dict[str, Any]) -> tuple[str, ...]:
    """Name the settings of earlier releases that a document has."""
    return tuple(
        f"{name}.{setting}"
        for name, of in SECTIONS.items()
        for setting in sorted(of.retired.intersection(document.get(name) or ()))
    )


def _object(name: str, text: str) -> dict[str, Any]:
    if not text.strip("\ufeff \t\r\n"):
        raise FleetDocumentError(f"fleet document {name}: is empty")
    try:
        value = json.loads(
            # Some editors begin a file with a byte order mark.
            text.removeprefix("\ufeff"),
            object_pairs_hook=_each_once,
        )
    except ValueError as error:
        # Numbers of thousands of digits, too.
        must = "write one object, without comments"
        if _BASE64.fullmatch(text.strip()):
            must = "its parameter must be of type String, not SecureString"
        raise FleetDocumentError(f"fleet document {name}: is not JSON: {error}; {must}") from error
    if not isinstance(value, dict):
        raise FleetDocumentError(f"fleet document {name}: must be a JSON object")
    return value


def _each_once(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object that has a field twice: which of them is meant is not guessed."""
    if twice := sorted(
        {name for name, count in Counter(n for n, _ in fields).items() if count > 1}
    ):
        raise ValueError(f"{', '.join(twice)} stands twice in one object")
    return dict(fields)


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
