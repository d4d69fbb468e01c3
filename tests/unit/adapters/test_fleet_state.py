"""What the states adapter leaves in its table; what the port promises is in tests/contract."""

import contextlib
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, get_args

import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.adapters.dynamodb.fleet_state import FleetStateTable
from spotkeeper.domain.availability.memory import AvailabilityMemory
from spotkeeper.domain.decision import Controller
from spotkeeper.domain.health_memory import HealthMemory
from spotkeeper.ports import AtRiskNote, Throttled
from tests.builders import TABLE, at
from tests.contract.conftest import table_client, taken

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

CONTROLLERS = (Controller.AVAILABILITY, Controller.HEALTH)


@pytest.fixture
def states(dynamodb: "DynamoDBClient") -> FleetStateTable:
    return FleetStateTable(dynamodb, TABLE, timedelta(days=30))


def items(dynamodb: "DynamoDBClient", beginning: str = "") -> list[dict[str, Any]]:
    found = [dict(item) for item in dynamodb.scan(TableName=TABLE)["Items"]]
    return [item for item in found if item["sk"]["S"].startswith(beginning)]


def state_item(dynamodb: "DynamoDBClient") -> dict[str, Any]:
    (item,) = items(dynamodb, "state")
    return item


# One number an instant: years, months, days and the rest of it would be a draw each.
st.register_type_strategy(
    datetime,
    st.integers(0, 10**16).map(lambda us: datetime(1990, 1, 1, tzinfo=UTC) + timedelta(0, 0, us)),
)
# Times and means are numbers; JSON has no others.
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
st.register_type_strategy(
    tuple, lambda of: st.lists(st.from_type(get_args(of)[0]), max_size=2).map(tuple)
)
st.register_type_strategy(
    Mapping, lambda of: st.dictionaries(*map(st.from_type, get_args(of)), max_size=3)
)


def test_a_worker_may_be_named_like_a_date(states: FleetStateTable) -> None:
    memory = HealthMemory(onprem_suspects={"2026-11-20": at(0), "2026-11-20T12:00:00": at(0)})
    states.commit(taken(states, controller=Controller.HEALTH), memory, at(1))
    lease = taken(states, 2, Controller.HEALTH)
    assert (lease.health, lease.unreadable) == (memory, ())


@given(availability=st.from_type(AvailabilityMemory), health=st.from_type(HealthMemory))
def test_the_whole_memory_is_read_back(
    availability: AvailabilityMemory, health: HealthMemory
) -> None:
    states = FleetStateTable(table_client(), TABLE, timedelta(days=30))
    assert states.commit(taken(states), availability, at(0))
    assert states.commit(taken(states, controller=Controller.HEALTH), health, at(0))
    lease = taken(states)
    states.release(lease)
    assert (lease.availability, lease.health) == (availability, health)
    assert lease.written_at == at(0)


def test_a_state_expires_a_week_after_its_last_turn(
    states: FleetStateTable, dynamodb: "DynamoDBClient"
) -> None:
    taken(states)
    states.commit(taken(states, controller=Controller.HEALTH), HealthMemory(), at(0))
    expire = {int(item["expires_at"]["N"]) for item in items(dynamodb)}
    assert expire == {at(7 * 86_400).timestamp()}


NAIVE = "2026-11-20T12:00:00"
SHAPES = ("", "{", "[]", "null", '{"backoff_s": "many", "replaced": "yesterday"}', "[" * 9999)


@pytest.mark.parametrize(
    ("controller", "attribute", "stored"),
    [
        *((controller, "memory", {"S": shape}) for controller in CONTROLLERS for shape in SHAPES),
        (Controller.AVAILABILITY, "written", {"S": "yesterday"}),
        (Controller.AVAILABILITY, "written", {"S": NAIVE}),
        (Controller.AVAILABILITY, "written", {"N": "5"}),
        (Controller.AVAILABILITY, "memory", {"S": json.dumps({"gap_since": NAIVE})}),
        (Controller.AVAILABILITY, "memory", {"S": json.dumps({"at_risk": {"i-0a": NAIVE}})}),
        (Controller.AVAILABILITY, "memory", {"S": json.dumps({"asks": [{"at": NAIVE}]})}),
        (Controller.AVAILABILITY, "memory", {"B": b"1"}),
    ],
)
def test_an_unreadable_item_starts_afresh_and_is_named(
    states: FleetStateTable, dynamodb: "DynamoDBClient", controller: Controller, attribute: str,
    stored: Any,
) -> None:  # fmt: skip
    name = f"{controller}_{attribute}"
    item: dict[str, Any] = {"pk": {"S": "fleet#ocr"}, "sk": {"S": "state"}, name: stored}
    dynamodb.put_item(TableName=TABLE, Item=item)
    lease = taken(states, controller=controller)
    assert (lease.availability, lease.health) == (AvailabilityMemory(), HealthMemory())
    assert (lease.written_at, lease.other_unreadable) == (None, False)
    (wrong,) = lease.unreadable
    assert wrong.startswith(f"{name}: ")
    (other,) = set(CONTROLLERS) - {controller}
    others = taken(states, controller=other)
    assert (others.unreadable, others.other_unreadable) == ((), attribute == "memory")
    memory = HealthMemory() if controller is Controller.HEALTH else AvailabilityMemory()
    assert states.commit(lease, memory, at(1))
    assert taken(states, 2, controller).unreadable == ()


def test_items_of_a_wrong_shape_are_named_like_those_that_cannot_be_read(
    states: FleetStateTable, dynamodb: "DynamoDBClient"
) -> None:
    assert states.commit(taken(states), AvailabilityMemory(), at(1))
    notes = {"pk": {"S": "notes#ocr"}, "sk": {"S": "availability#x"}}
    memory = {"pk": {"S": "fleet#ocr"}, "sk": {"S": "memory#availability"}}
    dynamodb.put_item(TableName=TABLE, Item=notes)
    dynamodb.put_item(TableName=TABLE, Item=memory)
    note = AtRiskNote(instance_ids=("i-0a",), at=at(2))
    lease = states.acquire("ocr", Controller.AVAILABILITY, at(2), note)
    assert lease
    assert lease.notes == (note,)
    assert [why.partition(":")[0] for why in lease.unreadable] == [
        "availability note", "availability_memory",
    ]  # fmt: skip


def test_a_thousand_notes_are_read_by_one_turn_and_cost_a_few_units_each() -> None:
    """A zone that goes warns of its instances one by one, while turns are at work."""
    dynamodb = table_client()
    states = FleetStateTable(dynamodb, TABLE, timedelta(days=30))
    first, late = taken(states), AtRiskNote(instance_ids=("i-late",), at=at(3))
    told = [AtRiskNote(instance_ids=(f"i-{n}",), at=at(1)) for n in range(1_000)]
    for note in told:
        assert states.acquire("ocr", Controller.AVAILABILITY, at(1), note) is None
    states.release(first)
    turn = taken(states, 2)
    assert turn.notes == tuple(told)
    # Each is written, and asks twice for the item of the leases, which is charged by its size.
    assert max(len(json.dumps(item)) for item in items(dynamodb, "availability#")) < KIB
    assert len(json.dumps(state_item(dynamodb))) < KIB
    assert states.acquire("ocr", Controller.AVAILABILITY, at(3), late) is None
    assert not states.commit(turn, AvailabilityMemory(backoff_s=4), at(3))
    again = taken(states, 4)
    assert again.availability.backoff_s == 4
    assert again.notes == (late,)
    assert states.commit(again, AvailabilityMemory(), at(4))
    assert taken(states, 5).notes == ()


# A write is charged by the KiB.
KIB = 1024
ITEM_BYTES = 40 * KIB


def test_what_is_remembered_of_a_thousand_instances_costs_forty_units(
    states: FleetStateTable, dynamodb: "DynamoDBClient"
) -> None:
    """All were launched, and are warned, marked and detached in one turn: their pools are taken."""
    ids = tuple(f"i-0abc1234def56{n:04x}" for n in range(1_000))
    times = dict.fromkeys(ids, at(0.123456))
    availability = AvailabilityMemory(
        launching_since=times, spot_launching=ids, at_risk=times, risky=ids, drained=ids,
        detached=times,
    )  # fmt: skip
    health = HealthMemory(
        in_service_since=times, last_logs=times, expected=dict.fromkeys(ids, math.pi)
    )
    assert states.commit(taken(states), availability, at(1))
    assert states.commit(taken(states, controller=Controller.HEALTH), health, at(1))
    for item in items(dynamodb, "memory#"):
        assert len(item["memory"]["B"]) < ITEM_BYTES


def test_a_throttled_table_is_throttled_and_not_busy(
    states: FleetStateTable, dynamodb: "DynamoDBClient"
) -> None:
    with Stubber(dynamodb) as stub, pytest.raises(Throttled, match="taking the lease of ocr"):
        stub.add_client_error("update_item", "ProvisionedThroughputExceededException")
        states.acquire("ocr", Controller.AVAILABILITY, at(0), None)


class _AskedAgain:
    """A table whose first answer is lost after the call had its effect: botocore asks again."""

    def __init__(self, dynamodb: "DynamoDBClient") -> None:
        self._dynamodb = dynamodb

    def update_item(self, **asked: Any) -> Any:
        """Update twice, and return only the second answer."""
        with contextlib.suppress(ClientError):
            self._dynamodb.update_item(**asked)
        return self._dynamodb.update_item(**asked)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dynamodb, name)


@pytest.fixture
def asked_again(dynamodb: "DynamoDBClient") -> FleetStateTable:
    client: Any = _AskedAgain(dynamodb)
    return FleetStateTable(client, TABLE, timedelta(days=30))


@pytest.mark.parametrize("late_s", [0.001, 1.0, 3600.0])
def test_a_turn_that_was_started_before_the_last_one_keeps_its_memory(
    states: FleetStateTable, late_s: float
) -> None:
    """The turns of an invocation have the time of its begin; a clock may be ahead of another."""
    assert states.commit(taken(states, late_s), AvailabilityMemory(backoff_s=1), at(late_s))
    lease = taken(states, 0)
    assert lease.availability.backoff_s == 1
    assert states.commit(lease, AvailabilityMemory(backoff_s=2), at(0))
    assert taken(states, 1).availability.backoff_s == 2


def test_a_lease_is_taken_although_the_answer_was_lost(
    asked_again: FleetStateTable, states: FleetStateTable
) -> None:
    note = AtRiskNote(instance_ids=("i-0a",), at=at(0))
    lease = taken(asked_again, left=note)
    assert set(lease.notes) == {note}
    assert states.acquire("ocr", Controller.AVAILABILITY, at(1), None) is None
    assert not states.commit(lease, AvailabilityMemory(), at(2))
    assert taken(states, 3).notes == ()


@pytest.mark.parametrize("noted", [False, True])
def test_a_write_counts_although_its_answer_was_lost(
    asked_again: FleetStateTable, states: FleetStateTable, *, noted: bool
) -> None:
    """A note that arrived meanwhile is reported."""
    notes = (AtRiskNote(instance_ids=("i-0a",), at=at(1)),) * noted
    lease = taken(states)
    for note in notes:
        assert states.acquire("ocr", Controller.AVAILABILITY, at(1), note) is None
    assert asked_again.commit(lease, AvailabilityMemory(backoff_s=4), at(2)) is not noted
    after = taken(states, 3)
    assert (after.notes, after.availability.backoff_s) == (notes, 4)
    assert states.commit(after, AvailabilityMemory(), at(4))


def test_of_a_clock_that_was_ahead_no_time_is_believed(states: FleetStateTable) -> None:
    """A worker of the future is not late for an hour; what is planned beyond it stays planned."""
    lease, hour = taken(states, 3600), {"i-1": at(3600), "i-2": at(7200), "i-3": at(-60)}
    assert states.commit(lease, AvailabilityMemory(launching_since=hour, backoff_s=60), at(3600))
    health = taken(states, 3600, controller=Controller.HEALTH)
    assert states.commit(health, HealthMemory(silent=("i-1",)), at(3600))
    found = taken(states, 60)
    assert found.availability.launching_since == {"i-1": at(60), "i-2": at(7200), "i-3": at(-60)}
    assert (found.availability.backoff_s, found.other_unreadable) == (60, True)
    own = taken(states, 61, controller=Controller.HEALTH)
    assert own.health == HealthMemory()
    assert "by a clock that was ahead" in own.unreadable[0]
