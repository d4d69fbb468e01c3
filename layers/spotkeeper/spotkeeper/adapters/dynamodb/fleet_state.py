"""Fleet states, leases and decision records: one item a fleet, one item a record.

    pk fleet#NAME  sk state                 per controller: memory, holder, until, written, notes
    pk fleet#NAME  sk decision#TIME#CONTROLLER#x  one decision record

Taking the lease reads the memory in the same call, and giving it back writes it: a turn costs
two calls here, and a third for its record.
"""

from datetime import datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING
from uuid import uuid4

from botocore.exceptions import ClientError
from pydantic import TypeAdapter

from spotkeeper.adapters.dynamodb.state_items import NOTE, dumped, epoch, lease_from
from spotkeeper.adapters.errors import CONDITION_FAILED, aws_errors
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.decision import Controller, DecisionRecord
from spotkeeper.domain.health.memory import HealthMemory
from spotkeeper.ports import AtRiskNote, Lease, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import AttributeValueTypeDef

# Longer than a function may run (template.yaml: 30 s), so that no living turn loses its lease.
LEASE_LIFETIME = timedelta(seconds=45)
# A fleet that nobody turned for a week starts afresh.
STATE_LIFETIME = timedelta(days=7)
# An expression of DynamoDB's has 4 KB at most. The rest is read again by the next round, to which a
# note that it was told before is no news.
NOTES_REMOVED_AT_ONCE = 100

_RECORD = TypeAdapter(DecisionRecord)


class FleetStateTable:
    """The states port on a DynamoDB table."""

    def __init__(self, dynamodb: "DynamoDBClient", table: str, record_lifetime: timedelta) -> None:
        """Take a typed client and the table's name; nothing is called yet."""
        self._dynamodb = dynamodb
        self._table = table
        self._record_lifetime = record_lifetime
        # Orders the records of one instant: a turn that goes round again leaves several.
        self._recorded = count()

    def acquire(
        self, fleet: str, controller: Controller, now: datetime, note: AtRiskNote | None
    ) -> Lease | None:
        """Take a controller's lease and read its memory; busy leaves the note and gives None."""
        holder = uuid4().hex
        notes = [NOTE.dump_json(note).decode()] if note else []
        item = self._update(
            f"taking the lease of {fleet}",
            fleet,
            controller,
            "SET #holder = :holder, #until = :until, expires_at = :expires, "
            "#notes = list_append(if_not_exists(#notes, :none), :added)",
            # It is this turn's already where the first answer was lost and botocore asked again.
            "attribute_not_exists(#until) OR #until < :now OR #holder = :holder",
            {
                ":holder": {"S": holder},
                ":until": epoch(now + LEASE_LIFETIME),
                ":now": epoch(now),
                ":expires": epoch(now + STATE_LIFETIME),
                ":none": {"L": []},
                ":added": {"L": [{"S": text} for text in notes]},
            },
        )
        if item is None:
            self._leave(fleet, controller, note or AtRiskNote(instance_ids=(), at=now))
            return None
        return lease_from(item, fleet, controller, holder)

    def commit(
        self,
        lease: Lease,
        memory: AvailabilityMemory | HealthMemory,
        now: datetime,
        *,
        release: bool = True,
    ) -> bool:
        """Write the memory and give the lease back; False when notes came in meanwhile.

        Raises `Unavailable` when the lease was lost: what another turn remembers is not touched.
        """
        values: dict[str, AttributeValueTypeDef] = {
            ":holder": {"S": lease.holder},
            ":memory": {"S": dumped(memory)},
            ":written": {"S": now.isoformat()},
        }
        write = "SET #memory = :memory, #written = :written"
        operation = f"keeping the state of {lease.fleet}"
        if release:
            expected: dict[str, AttributeValueTypeDef] = {":seen": {"N": str(lease.notes_seen)}}
            quiet = "#holder = :holder AND size(#notes) = :seen"
            done = f"{write} REMOVE #holder, #until, #notes"
            if self._update(
                operation, lease.fleet, lease.controller, done, quiet, values | expected
            ):
                return True
            some = range(min(lease.notes_seen, NOTES_REMOVED_AT_ONCE))
            seen = "".join(f", #notes[{i}]" for i in some)
            write = f"{write} REMOVE #holder, #until{seen}"
        mine = "#holder = :holder"
        if self._update(operation, lease.fleet, lease.controller, write, mine, values):
            return not release
        return self._was_kept(operation, lease, values)

    def _was_kept(
        self, operation: str, lease: Lease, values: "Mapping[str, AttributeValueTypeDef]"
    ) -> bool:
        """Look whether this turn gave its lease back with an answer that was lost; as `commit`."""
        with aws_errors(operation):
            item = self._dynamodb.get_item(
                TableName=self._table, Key=_key(lease.fleet), ConsistentRead=True
            ).get("Item", {})
        if any(
            item.get(f"{lease.controller}_{name}") != values[f":{name}"]
            for name in ("memory", "written")
        ):
            raise Unavailable(f"{operation}: the lease was lost to another turn")
        return f"{lease.controller}_notes" not in item

    def release(self, lease: Lease) -> None:
        """Give the lease back; the notes stay."""
        self._update(
            f"giving back the lease of {lease.fleet}",
            lease.fleet,
            lease.controller,
            "REMOVE #holder, #until",
            "#holder = :holder",
            {":holder": {"S": lease.holder}},
        )

    def record(self, record: DecisionRecord) -> None:
        """Store a decision record for its lifetime."""
        unique = f"{next(self._recorded):06}-{uuid4().hex[:6]}"
        key = f"decision#{record.at.isoformat()}#{record.controller}#{unique}"
        with aws_errors(f"recording a decision of {record.fleet}"):
            self._dynamodb.put_item(
                TableName=self._table,
                Item={
                    "pk": {"S": f"fleet#{record.fleet}"},
                    "sk": {"S": key},
                    "record": {"S": _RECORD.dump_json(record).decode()},
                    "expires_at": epoch(record.at + self._record_lifetime),
                },
            )

    def _leave(self, fleet: str, controller: Controller, note: AtRiskNote) -> None:
        """Leave a note for the turn at work; were it just done, the next turn finds the note."""
        self._update(
            f"leaving a note for {fleet}",
            fleet,
            controller,
            "SET #notes = list_append(if_not_exists(#notes, :none), :added)",
            "attribute_exists(pk)",
            {":none": {"L": []}, ":added": {"L": [{"S": NOTE.dump_json(note).decode()}]}},
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
        words = ("holder", "until", "memory", "written", "notes")
        names = {
            f"#{word}": f"{controller}_{word}" for word in words if f"#{word}" in update + condition
        }
        with aws_errors(operation):
            try:
                return self._dynamodb.update_item(
                    TableName=self._table,
                    Key=_key(fleet),
                    UpdateExpression=update,
                    ConditionExpression=condition,
                    ExpressionAttributeNames=names,
                    ExpressionAttributeValues=values,
                    ReturnValues="ALL_NEW",
                )["Attributes"]
            except ClientError as error:
                if error.response["Error"]["Code"] != CONDITION_FAILED:
                    raise
                return None


def _key(fleet: str) -> dict[str, "AttributeValueTypeDef"]:
    return {"pk": {"S": f"fleet#{fleet}"}, "sk": {"S": "state"}}
