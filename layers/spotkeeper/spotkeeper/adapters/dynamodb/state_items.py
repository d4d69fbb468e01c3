"""The item of a fleet's state: leases, memories and notes, as they are kept."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from spotkeeper.adapters.dynamodb.earlier import memory_in_todays_words
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.decision import Controller
from spotkeeper.domain.health.memory import HealthMemory
from spotkeeper.ports import AtRiskNote, Lease

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.type_defs import AttributeValueTypeDef

_AVAILABILITY = TypeAdapter(AvailabilityMemory)
_HEALTH = TypeAdapter(HealthMemory)
NOTE = TypeAdapter(AtRiskNote)
_INSTANT = TypeAdapter(datetime)


def epoch(at: datetime) -> "AttributeValueTypeDef":
    """Write an instant as DynamoDB compares and expires it."""
    return {"N": str(int(at.timestamp()))}


def dumped(memory: AvailabilityMemory | HealthMemory) -> str:
    """Write a controller's memory."""
    if isinstance(memory, HealthMemory):
        return _HEALTH.dump_json(memory).decode()
    return _AVAILABILITY.dump_json(memory).decode()


def lease_from(
    item: "Mapping[str, AttributeValueTypeDef]", fleet: str, controller: Controller, holder: str
) -> Lease:
    """Read a lease out of the item that taking it answered."""
    notes = item[f"{controller}_notes"]["L"]
    kept = _Kept(item)
    read = [kept.read(NOTE.validate_json, note, f"{controller} note") for note in notes]
    return Lease(
        fleet=fleet,
        controller=controller,
        holder=holder,
        availability=kept.value(partial(_read, _AVAILABILITY), f"{Controller.AVAILABILITY}_memory")
        or AvailabilityMemory(),
        health=kept.value(partial(_read, _HEALTH), f"{Controller.HEALTH}_memory") or HealthMemory(),
        notes=tuple([note for note in read if note]),
        notes_seen=len(notes),
        written_at=kept.value(_INSTANT.validate_strings, f"{controller}_written"),
        unreadable=tuple(kept.unreadable),
    )


def _read[T](adapter: TypeAdapter[T], text: str) -> T:
    return adapter.validate_python(memory_in_todays_words(json.loads(text)), strict=False)


class _Kept:
    """A state item as it is read: what nobody understands is None, and named in `unreadable`.

    An older release, a person or a fault may have written it; it must cost its own fleet only.
    """

    def __init__(self, item: Mapping[str, Any]) -> None:
        self._item = item
        self.unreadable: list[str] = []

    def value[T](self, parse: Callable[[str], T], name: str) -> T | None:
        """Read an attribute; None too where there is none."""
        stored = self._item.get(name)
        return None if stored is None else self.read(parse, stored, name)

    def read[T](self, parse: Callable[[str], T], stored: Mapping[str, Any], name: str) -> T | None:
        """Read a value; one with a time that has no zone is not understood either."""
        try:
            value = parse(stored.get("S", ""))
        except ValueError as error:
            told = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            self.unreadable.append(f"{name}: {told}")
            return None
        if naive := next(_naive_times(value), None):
            self.unreadable.append(f"{name}: {naive.isoformat()} has no zone")
            return None
        return value


def _naive_times(value: object) -> Iterator[datetime]:
    """Find the times without a zone in a value of the domain."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            yield value
        return
    for part in _parts(value):
        # Most parts are none of those that hold times: a walk into each costs a turn more than all.
        if part is not None and not isinstance(part, (str, int, float)):
            yield from _naive_times(part)


def _parts(value: object) -> Iterable[object]:
    if is_dataclass(value):
        return [getattr(value, field.name) for field in fields(value)]
    if isinstance(value, Mapping):
        return chain(value, value.values())
    return value if isinstance(value, (tuple, list, set, frozenset)) else ()
