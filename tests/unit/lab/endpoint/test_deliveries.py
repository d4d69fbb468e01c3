import pytest

from spotkeeper_lab.endpoint.faults.deliveries import Deliveries
from spotkeeper_lab.endpoint.faults.values import Delivery, Events
from spotkeeper_lab.local_aws.events import Event

ONE: Event = {"id": "1"}
TWO: Event = {"id": "2"}


@pytest.mark.parametrize(
    ("delivery", "now", "later"),
    [
        (Delivery.NEVER, [], []),
        (Delivery.TWICE, [ONE, ONE], []),
        (Delivery.LATE, [], [ONE]),
    ],
)
def test_events_of_a_bad_while(delivery: Delivery, now: list[Event], later: list[Event]) -> None:
    clock = [0.0]
    way = Deliveries(lambda: clock[0])
    way.order(Events(do="events", delivery=delivery, late_s=30.0, for_s=10.0))
    assert way.on_their_way([ONE]) == now
    clock[0] = 29.0
    assert way.on_their_way([]) == []
    clock[0] = 30.0
    assert way.on_their_way([]) == later


def test_shuffled_events_all_arrive_in_another_order() -> None:
    clock = [0.0]
    way = Deliveries(lambda: clock[0])
    way.order(Events(do="events", delivery=Delivery.SHUFFLED, late_s=30.0, for_s=10.0))
    sent: list[Event] = [{"id": str(n)} for n in range(20)]
    arrived = way.on_their_way(sent)
    for second in range(1, 31):
        clock[0] = float(second)
        arrived += way.on_their_way([])
    assert arrived != sent
    assert sorted(arrived, key=str) == sorted(sent, key=str)


def test_a_good_way_changes_nothing() -> None:
    clock = [0.0]
    way = Deliveries(lambda: clock[0])
    way.order(Events(do="events", delivery=Delivery.NEVER, for_s=10.0))
    clock[0] = 10.0
    assert way.on_their_way([ONE, TWO]) == [ONE, TWO]
