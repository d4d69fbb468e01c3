"""Fleet states, leases and decision records.

    pk fleet#NAME   sk state               per controller: holder, until, written, noted
    pk fleet#NAME   sk memory#CONTROLLER   what the controller remembers, packed
    pk notes#NAME   sk CONTROLLER#TIME#x   a note for the controller's next round

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
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

from pydantic import TypeAdapter, ValidationError

from spotkeeper.adapters.dynamodb.earlier import memory_in_todays_words
from spotkeeper.adapters.dynamodb.leases import (
    IS_FREE,
    IS_MINE,
    LEASE_LIFETIME,
    RELEASE,
    TAKE,
    LeasedItems,
    lease_of,
)
from spotkeeper.adapters.table import LAST, Item, Value, epoch, key, only_if
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.decision import Controller
from spotkeeper.domain.health_memory import HealthMemory
from spotkeeper.ports import AtRiskNote, Conflict, FleetError, Lease, Unavailable

# A fleet whose lease is taken, although no turn has ended for this long, has no turn.
STALLED = timedelta(minutes=5)
# A fleet without a turn for a week starts afresh.
STATE_LIFETIME = timedelta(days=7)

_AVAILABILITY = TypeAdapter(AvailabilityMemory)
_HEALTH = TypeAdapter(HealthMemory)
_NOTE = TypeAdapter(AtRiskNote)
_INSTANT = TypeAdapter(datetime)
# A whole text of JSON, or nothing else. The keys of a memory are names, whatever they look like.
_NAIVE_TIME = re.compile(r'(?:^|")(\d{4}-\d\d-\d\d(?:[T ][\d:.]+)?)(?:"(?!\s*:)|$)')

_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)")


class FleetStateTable(LeasedItems):
    """The states port on a DynamoDB table."""

    def acquire(
        self, fleet: str, controller: Controller, now: datetime, note: AtRiskNote | None
    ) -> Lease | None:
        """Take a controller's lease and read its memory; busy leaves the note and gives None."""
        holder = uuid4().hex
        if note:
            self._put(
                f"leaving a note for {fleet}",
                f"notes#{fleet}",
                f"{controller}#{now.isoformat()}#{self._unique()}",
                note=_NOTE.dump_json(note).decode(),
                expires_at=epoch(now + STATE_LIFETIME),
            )
        noted = ", #noted = :holder" if note else ""
        update = partial(self._update_state, fleet=fleet, controller=controller)
        state = update(
            f"taking the lease of {fleet}",
            f"{TAKE}, expires_at = :expires{noted}",
            IS_FREE,
            {**lease_of(holder, now), "expires": epoch(now + STATE_LIFETIME)},
        )
        if state is None:
            # The turn that holds the lease runs another round.
            leave = ("SET #noted = :holder", "attribute_exists(pk)", {"holder": holder})
            holding = update(f"leaving a note for {fleet}", *leave) or {}
            written = _written(holding, controller)
            if written and now - written > STALLED:
                raise Unavailable(
                    f"no {controller} turn of {fleet} has ended since {written:%Y-%m-%d %H:%M} "
                    "UTC: one holds the lease; the log of the functions says why they do not end"
                )
            return None
        memories = self._memories(fleet)
        notes: list[Item] = []
        if f"{controller}_noted" in state:
            own = (f"{controller}#", f"{controller}#{LAST}")
            doing = f"reading the notes for {fleet}"
            notes = [*self._query(doing, f"notes#{fleet}", *own, ConsistentRead=True)]
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
        doing = f"keeping the state of {lease.fleet}"
        lost = f"{doing}: the lease was lost to another turn"
        taken = round(1000 * lease.taken_at.timestamp()) if lease.taken_at else 0
        try:
            self._put(
                doing,
                f"fleet#{lease.fleet}",
                f"memory#{lease.controller}",
                only_if("attribute_not_exists(taken) OR taken <= :taken", taken=taken),
                # That of 1,000 instances is a tenth of its JSON.
                memory=zlib.compress(
                    _HEALTH.dump_json(memory)
                    if isinstance(memory, HealthMemory)
                    else _AVAILABILITY.dump_json(memory)
                ),
                taken=taken,
                expires_at=epoch(now + STATE_LIFETIME),
            )
        except Conflict as error:
            raise Unavailable(lost) from error
        update = partial(self._update_state, doing, fleet=lease.fleet, controller=lease.controller)
        values: dict[str, Value] = {"holder": lease.holder, "written": now.isoformat()}
        write = "SET #written = :written REMOVE #memory"
        if not release:
            if update(write, IS_MINE, values):
                return True
            raise Unavailable(lost)
        self._forget_notes(lease)
        done = f"{write}, #holder, #until, #notes"
        quiet = "#noted = :noted" if lease.noted else "attribute_not_exists(#noted)"
        noted: dict[str, Value] = {"noted": lease.noted} if lease.noted else {}
        if update(f"{done}, #noted", f"{IS_MINE} AND {quiet}", values | noted):
            return True
        if update(done, IS_MINE, values):
            return False
        # This turn may have returned its lease with an answer that was lost.
        item = self._get(doing, f"fleet#{lease.fleet}", "state", consistent=True) or {}
        written = item.get(f"{lease.controller}_written")
        if f"{lease.controller}_holder" in item or written != {"S": now.isoformat()}:
            raise Unavailable(lost)
        return f"{lease.controller}_noted" not in item

    def look(self, fleet: str, controller: Controller, now: datetime) -> Lease:
        """Read what a controller remembers, and take nothing."""
        doing = f"reading the state of {fleet}"
        state = self._get(doing, f"fleet#{fleet}", "state", consistent=True) or {}
        return _lease_from(state, self._memories(fleet), (), fleet, controller, "", now)

    def _memories(self, fleet: str) -> list[Item]:
        of = (f"reading the memory of {fleet}", f"fleet#{fleet}", "memory#", f"memory#{LAST}")
        return [*self._query(*of, ConsistentRead=True)]

    def release(self, lease: Lease) -> None:
        """Release the lease; the notes stay."""
        doing = f"giving back the lease of {lease.fleet}"
        update = (RELEASE, IS_MINE, {"holder": lease.holder})
        self._update_state(doing, *update, fleet=lease.fleet, controller=lease.controller)

    def _forget_notes(self, lease: Lease) -> None:
        """Delete the notes that were read; those that stay are no news to the next round."""
        keys = (key(f"notes#{lease.fleet}", each) for each in lease.note_keys)
        with contextlib.suppress(FleetError):
            self._write_some("deleting notes", ({"DeleteRequest": {"Key": each}} for each in keys))

    def _update_state(
        self,
        doing: str,
        update: str,
        condition: str,
        values: Mapping[str, Value],
        *,
        fleet: str,
        controller: Controller,
    ) -> Item | None:
        """Update the state item; None when the condition does not hold."""
        used = re.findall(r"#(\w+)", update + condition)
        names = {f"#{word}": f"{controller}_{word}" for word in used}
        of = (f"fleet#{fleet}", "state")
        return self._update(doing, *of, update, condition, values, names)


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

    A value that cannot be read is left out and named: an older release, a person or a fault may
    have written it, and it must cost its own fleet only. A memory counts while the item of the
    leases knows when it was written: deleting that item begins the fleet afresh.
    """
    kept = {item["sk"]["S"].partition("#")[2]: item.get("memory", {}) for item in memories}
    known = {f"{c}_memory": kept[c] for c in Controller if c in kept and f"{c}_written" in state}
    stored = {**known, **state}
    # The other controller's turn reports its own memory: warnings may bring many turns of this one.
    unreadable: dict[Controller, list[str]] = {each: [] for each in Controller}

    def read(
        parse: Callable[[str], Any], name: str, value: Item | None, of: Controller
    ) -> Any | None:
        if value is None:
            return None
        try:
            text = zlib.decompress(value["B"]).decode() if "B" in value else value.get("S", "")
            if naive := _NAIVE_TIME.search(text):
                raise ValueError(f"{naive[1]} has no zone")
            return parse(text)
        except zlib.error as error:
            unreadable[of].append(f"{name}: not packed: {error}")
            return None
        except (ValueError, RecursionError) as error:
            why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            unreadable[of].append(f"{name}: {why}")
            return None

    def memory(adapter: TypeAdapter[Any], of: Controller) -> Any | None:
        name = f"{of}_memory"
        at = _written(state, of)
        ahead = at if at and at > now + LEASE_LIFETIME else None
        if ahead and of is Controller.HEALTH:
            # It knows logs by their times: until then it would find no worker silent.
            unreadable[of].append(
                f"{name}: it is of {ahead.isoformat()}, by a clock that was ahead"
            )
            return None

        def parse(text: str) -> Any:
            known = json.loads(_not_ahead(text, now, ahead) if ahead else text)
            return adapter.validate_python(memory_in_todays_words(known, of), strict=False)

        return read(parse, name, stored.get(name), of)

    texts = [
        *state.get(f"{controller}_notes", {"L": []})["L"],
        *[item.get("note", {}) for item in notes],
    ]
    own_notes = [read(_NOTE.validate_json, f"{controller} note", one, controller) for one in texts]
    written = f"{controller}_written"
    taken = [int(item.get("taken", {"N": "0"})["N"]) for item in memories]
    return Lease(
        fleet=fleet,
        controller=controller,
        holder=holder,
        availability=memory(_AVAILABILITY, Controller.AVAILABILITY) or AvailabilityMemory(),
        health=memory(_HEALTH, Controller.HEALTH) or HealthMemory(),
        notes=tuple([note for note in own_notes if note]),
        note_keys=tuple([item["sk"]["S"] for item in notes]),
        noted=state.get(f"{controller}_noted", {"S": ""})["S"],
        # A turn may have been started before the last one, and have waited for other fleets' turns.
        taken_at=max([now, *[datetime.fromtimestamp(each / 1000, UTC) for each in taken]]),
        written_at=read(_INSTANT.validate_strings, written, state.get(written), controller),
        unreadable=tuple(unreadable.pop(controller)),
        other_unreadable=any(unreadable.values()),
    )


def _written(state: Item, of: Controller) -> datetime | None:
    """When a controller last wrote; None where that is not known."""
    with contextlib.suppress(ValueError):
        at = datetime.fromisoformat(state.get(f"{of}_written", {}).get("S", ""))
        return at if at.tzinfo else None
    return None


def _not_ahead(text: str, now: datetime, until: datetime) -> str:
    """Put what a clock that was ahead called the past at `now`; what was planned stays."""

    def at(match: re.Match[str]) -> str:
        return now.isoformat() if now < datetime.fromisoformat(match[0]) <= until else match[0]

    return _TIME.sub(at, text)
