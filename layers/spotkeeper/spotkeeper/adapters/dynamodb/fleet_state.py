"""Fleet states, leases and decision records.

    pk fleet#NAME   sk state               per controller: holder, until, written, noted
    pk fleet#NAME   sk memory#CONTROLLER   what the controller remembers, packed
    pk notes#NAME   sk CONTROLLER#TIME#x   a note for the controller's next round
    pk fleet#NAME   sk decision#TIME#CONTROLLER#x   one decision record

Every write is charged by the size of its item, a refused one too. So the item that hundreds of
warnings ask for at once is small, and their notes are items of their own. A quiet turn takes the
lease, reads the memories, writes its own, gives the lease back, and leaves a record: five calls.

A release before kept memories and notes in the item of the lease. They are read there until their
controller writes again.
"""

import contextlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from itertools import batched, chain, count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from spotkeeper.adapters.dynamodb.earlier import memory_in_todays_words
from spotkeeper.adapters.errors import aws_errors
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.decision import Controller, DecisionRecord
from spotkeeper.domain.health_memory import HealthMemory
from spotkeeper.ports import AtRiskNote, Conflict, FleetError, Lease, Unavailable

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import AttributeValueTypeDef

# Longer than a function may run (template.yaml: 30 s), so that no living turn loses its lease.
LEASE_LIFETIME = timedelta(seconds=45)
# A fleet without a turn for a week starts afresh.
STATE_LIFETIME = timedelta(days=7)
# DynamoDB's limit of one call.
ITEMS_A_CALL = 25

_AVAILABILITY = TypeAdapter(AvailabilityMemory)
_HEALTH = TypeAdapter(HealthMemory)
_NOTE = TypeAdapter(AtRiskNote)
_INSTANT = TypeAdapter(datetime)
_RECORD = TypeAdapter(DecisionRecord)

type Item = Mapping[str, Any]


class FleetStateTable:
    """The states port on a DynamoDB table."""

    def __init__(self, dynamodb: "DynamoDBClient", table: str, record_lifetime: timedelta) -> None:
        """Take a typed client and the table's name; nothing is called yet."""
        self._dynamodb = dynamodb
        self._table = table
        self._record_lifetime = record_lifetime
        # Orders what is written at one instant: a turn may leave several records.
        self._written = count()

    def acquire(
        self, fleet: str, controller: Controller, now: datetime, note: AtRiskNote | None
    ) -> Lease | None:
        """Take a controller's lease and read its memory; busy leaves the note and gives None."""
        holder = uuid4().hex
        if note:
            self._leave(fleet, controller, note, now)
        noted = ", #noted = :holder" if note else ""
        state = self._update(
            f"taking the lease of {fleet}",
            fleet,
            controller,
            f"SET #holder = :holder, #until = :until, expires_at = :expires{noted}",
            # It is this turn's already where the first answer was lost and botocore retried.
            "attribute_not_exists(#until) OR #until < :now OR #holder = :holder",
            {
                ":holder": {"S": holder},
                ":until": _epoch(now + LEASE_LIFETIME),
                ":now": _epoch(now),
                ":expires": _epoch(now + STATE_LIFETIME),
            },
        )
        if state is None:
            # The turn that holds the lease runs another round.
            self._update(
                f"leaving a note for {fleet}",
                fleet,
                controller,
                "SET #noted = :holder",
                "attribute_exists(pk)",
                {":holder": {"S": holder}},
            )
            return None
        memories = self._items(f"fleet#{fleet}", "memory#", f"reading the memory of {fleet}")
        notes: list[Item] = []
        if f"{controller}_noted" in state:
            reading = f"reading the notes for {fleet}"
            notes = self._items(f"notes#{fleet}", f"{controller}#", reading)
        return _lease_from(state, memories, notes, fleet, controller, holder, now)

    def commit(
        self,
        lease: Lease,
        memory: AvailabilityMemory | HealthMemory,
        now: datetime,
        *,
        release: bool = True,
    ) -> bool:
        """Write the memory and return the lease; False when notes arrived meanwhile.

        Raises `Unavailable` when the lease was lost: what another turn remembers is not touched.
        """
        operation = f"keeping the state of {lease.fleet}"
        self._keep(operation, lease, memory, now)
        values: dict[str, AttributeValueTypeDef] = {
            ":holder": {"S": lease.holder},
            ":written": {"S": now.isoformat()},
        }
        write = "SET #written = :written REMOVE #memory"
        if not release:
            if self._update(operation, lease.fleet, lease.controller, write, _MINE, values):
                return True
            raise Unavailable(f"{operation}: the lease was lost to another turn")
        self._forget_notes(lease)
        done = f"{write}, #holder, #until, #notes"
        quiet = f"{_MINE} AND attribute_not_exists(#noted)"
        if lease.noted:
            quiet = f"{_MINE} AND #noted = :noted"
            values[":noted"] = {"S": lease.noted}
        all_read = f"{done}, #noted"
        if self._update(operation, lease.fleet, lease.controller, all_read, quiet, values):
            return True
        values.pop(":noted", None)
        if self._update(operation, lease.fleet, lease.controller, done, _MINE, values):
            return False
        return self._was_kept(operation, lease, now)

    def _keep(
        self,
        operation: str,
        lease: Lease,
        memory: AvailabilityMemory | HealthMemory,
        now: datetime,
    ) -> None:
        """Write a memory, unless a later turn has written one."""
        milliseconds = round(1000 * lease.taken_at.timestamp()) if lease.taken_at else 0
        taken: AttributeValueTypeDef = {"N": str(milliseconds)}
        try:
            with aws_errors(operation):
                self._dynamodb.put_item(
                    TableName=self._table,
                    Item={
                        **_key(lease.fleet, f"memory#{lease.controller}"),
                        "memory": {"B": _packed(memory)},
                        "taken": taken,
                        "expires_at": _epoch(now + STATE_LIFETIME),
                    },
                    ConditionExpression="attribute_not_exists(taken) OR taken <= :taken",
                    ExpressionAttributeValues={":taken": taken},
                )
        except Conflict as error:
            raise Unavailable(f"{operation}: the lease was lost to another turn") from error

    def _was_kept(self, operation: str, lease: Lease, now: datetime) -> bool:
        """Look whether this turn gave its lease back with an answer that was lost; as `commit`."""
        with aws_errors(operation):
            item = self._dynamodb.get_item(
                TableName=self._table, Key=_key(lease.fleet), ConsistentRead=True
            ).get("Item", {})
        held, written = f"{lease.controller}_holder", f"{lease.controller}_written"
        if held in item or item.get(written) != {"S": now.isoformat()}:
            raise Unavailable(f"{operation}: the lease was lost to another turn")
        return f"{lease.controller}_noted" not in item

    def release(self, lease: Lease) -> None:
        """Release the lease; the notes stay."""
        self._update(
            f"giving back the lease of {lease.fleet}",
            lease.fleet,
            lease.controller,
            "REMOVE #holder, #until",
            _MINE,
            {":holder": {"S": lease.holder}},
        )

    def record(self, record: DecisionRecord) -> None:
        """Store a decision record for its lifetime."""
        unique = f"{next(self._written):06}-{uuid4().hex[:6]}"
        key = f"decision#{record.at.isoformat()}#{record.controller}#{unique}"
        with aws_errors(f"recording a decision of {record.fleet}"):
            self._dynamodb.put_item(
                TableName=self._table,
                Item={
                    **_key(record.fleet, key),
                    "record": {"S": _RECORD.dump_json(record).decode()},
                    "expires_at": _epoch(record.at + self._record_lifetime),
                },
            )

    def _leave(self, fleet: str, controller: Controller, note: AtRiskNote, now: datetime) -> None:
        unique = f"{next(self._written):06}-{uuid4().hex[:6]}"
        with aws_errors(f"leaving a note for {fleet}"):
            self._dynamodb.put_item(
                TableName=self._table,
                Item={
                    "pk": {"S": f"notes#{fleet}"},
                    "sk": {"S": f"{controller}#{now.isoformat()}#{unique}"},
                    "note": {"S": _NOTE.dump_json(note).decode()},
                    "expires_at": _epoch(now + STATE_LIFETIME),
                },
            )

    def _items(self, partition: str, beginning: str, operation: str) -> list[Item]:
        pages = self._dynamodb.get_paginator("query").paginate(
            TableName=self._table,
            KeyConditionExpression="pk = :pk AND begins_with(sk, :beginning)",
            ExpressionAttributeValues={":pk": {"S": partition}, ":beginning": {"S": beginning}},
            ConsistentRead=True,
        )
        with aws_errors(operation):
            return [item for page in pages for item in page["Items"]]

    def _forget_notes(self, lease: Lease) -> None:
        """Delete the notes that were read; those that stay are no news to the next round."""
        for some in batched(lease.note_keys, ITEMS_A_CALL, strict=False):
            keys = [{"pk": {"S": f"notes#{lease.fleet}"}, "sk": {"S": key}} for key in some]
            with contextlib.suppress(FleetError), aws_errors("deleting notes"):
                self._dynamodb.batch_write_item(
                    RequestItems={self._table: [{"DeleteRequest": {"Key": key}} for key in keys]}
                )

    def _update(
        self,
        operation: str,
        fleet: str,
        controller: Controller,
        update: str,
        condition: str,
        values: "Mapping[str, AttributeValueTypeDef]",
    ) -> "Mapping[str, AttributeValueTypeDef] | None":
        """Update the state item; None when the condition does not hold."""
        used = set(re.findall(r"#(\w+)", update + condition))
        names = {f"#{word}": f"{controller}_{word}" for word in used}
        with contextlib.suppress(Conflict), aws_errors(operation):
            return self._dynamodb.update_item(
                TableName=self._table,
                Key=_key(fleet),
                UpdateExpression=update,
                ConditionExpression=condition,
                ExpressionAttributeNames=names,
                ExpressionAttributeValues=values,
                ReturnValues="ALL_NEW",
            )["Attributes"]
        return None


_MINE = "#holder = :holder"


def _key(fleet: str, item: str = "state") -> dict[str, "AttributeValueTypeDef"]:
    return {"pk": {"S": f"fleet#{fleet}"}, "sk": {"S": item}}


def _epoch(at: datetime) -> "AttributeValueTypeDef":
    """Write an instant as DynamoDB compares and expires it."""
    return {"N": str(int(at.timestamp()))}


def _taken(item: Item) -> datetime:
    """Return when the lease was taken under which a memory was written."""
    return datetime.fromtimestamp(int(item.get("taken", {"N": "0"})["N"]) / 1000, UTC)


def _packed(memory: AvailabilityMemory | HealthMemory) -> bytes:
    """Write a controller's memory; that of 1,000 instances is a tenth of its JSON."""
    if isinstance(memory, HealthMemory):
        return zlib.compress(_HEALTH.dump_json(memory))
    return zlib.compress(_AVAILABILITY.dump_json(memory))


def _lease_from(
    state: Item,
    memories: Sequence[Item],
    notes: Sequence[Item],
    fleet: str,
    controller: Controller,
    holder: str,
    now: datetime,
) -> Lease:
    """Read a lease out of its item, the memories and the notes.

    A memory counts while the item of the leases knows when it was written: deleting that item
    begins the fleet afresh.
    """
    kept = {item["sk"]["S"].partition("#")[2]: item["memory"] for item in memories}
    known = {f"{c}_memory": kept[c] for c in Controller if c in kept and f"{c}_written" in state}
    # The other controller's turn reports its own memory: warnings may bring many turns of this one.
    read, other = _Kept({**known, **state}), _Kept({**known, **state})
    of = {each: read if each == controller else other for each in Controller}
    told = [*state.get(f"{controller}_notes", {"L": []})["L"], *[item["note"] for item in notes]]
    found = [read.read(_NOTE.validate_json, note, f"{controller} note") for note in told]
    return Lease(
        fleet=fleet,
        controller=controller,
        holder=holder,
        availability=of[Controller.AVAILABILITY].value(
            partial(_read, _AVAILABILITY), f"{Controller.AVAILABILITY}_memory"
        )
        or AvailabilityMemory(),
        health=of[Controller.HEALTH].value(partial(_read, _HEALTH), f"{Controller.HEALTH}_memory")
        or HealthMemory(),
        notes=tuple([note for note in found if note]),
        notes_seen=len(told),
        note_keys=tuple([item["sk"]["S"] for item in notes]),
        noted=state.get(f"{controller}_noted", {"S": ""})["S"],
        # A turn may have been started before the last one, and have waited for other fleets' turns.
        taken_at=max([now, *map(_taken, memories)]),
        written_at=read.value(_INSTANT.validate_strings, f"{controller}_written"),
        unreadable=tuple(read.unreadable),
        other_unreadable=bool(other.unreadable),
    )


def _read[T](adapter: TypeAdapter[T], text: str) -> T:
    return adapter.validate_python(memory_in_todays_words(json.loads(text)), strict=False)


def _text(stored: Item) -> str:
    """Read a text, packed or plain; raises ValueError for what is neither."""
    if "B" not in stored:
        return str(stored.get("S", ""))
    try:
        return zlib.decompress(stored["B"]).decode()
    except zlib.error as error:
        raise ValueError(f"not packed: {error}") from error


class _Kept:
    """A state item as it is read: a value that cannot be read is None, and named in `unreadable`.

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
            value = parse(_text(stored))
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
    parts: Iterable[object] = ()
    if isinstance(value, datetime):
        if value.tzinfo is None:
            yield value
    elif is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, name) for name in _names_of(type(value))]
    elif isinstance(value, Mapping):
        parts = chain(value, value.values())
    elif isinstance(value, (tuple, list, set, frozenset)):
        parts = value
    for part in parts:
        # Most parts are none of those that hold times: a walk into each costs a turn more than all.
        if part is not None and not isinstance(part, (str, int, float)):
            yield from _naive_times(part)


@cache
def _names_of(cls: type) -> tuple[str, ...]:
    return tuple([field.name for field in fields(cls)])
