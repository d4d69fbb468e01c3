"""The metadata client against the fake service: what it understands, and never concludes."""

import time
from contextlib import closing
from typing import Any

import pytest

from spotkeeper_worker.agent.metadata import Metadata, MetadataError, identity, look
from spotkeeper_worker.states import Seen
from spotkeeper_worker.testing import FakeMachine, FakeServer

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])


def test_every_notice_is_understood(machine: FakeMachine, metadata: Metadata) -> None:
    assert look(metadata, Seen())[0] == Seen()
    machine.launch()
    machine.interrupt(in_s=1200)
    machine.tag(in_s=600)
    machine.recommend_rebalance()
    seen = look(metadata, Seen())[0]
    assert seen.target == "InService"
    assert seen.taken_at == pytest.approx(time.time() + 1200, abs=60)
    assert seen.tagged_until == pytest.approx(time.time() + 600, abs=60)
    assert seen.rebalance
    machine.untag()
    assert look(metadata, seen)[0].tagged_until is None


def test_scheduled_maintenance_is_read(machine: FakeMachine, metadata: Metadata) -> None:
    machine.schedule(9000, "instance-retirement")
    machine.schedule(7200, "system-reboot")
    machine.schedule(60, "system-reboot", "completed")
    machine.schedule(60, "instance-dance")
    seen = look(metadata, Seen())[0]
    assert seen.maintained_at == pytest.approx(time.time() + 7200, abs=60)
    assert seen.maintenance == "system-reboot"
    machine.maintenance = [{"Code": "system-reboot", "State": "active"}]
    found, (trouble,) = look(metadata, seen)
    assert found == seen
    assert "events/maintenance/scheduled" in trouble
    machine.maintenance = []
    assert look(metadata, seen)[0].maintained_at is None


@pytest.mark.parametrize(
    ("befalls", "trouble"),
    [
        ({"fault": "hang"}, "timed out"),
        ({"fault": "html"}, "api/token: answered 200 and no token"),
        ({"fault": "401"}, "api/token: answered 401 and no token"),
        ({"fault": "503"}, "answered 503"),
        ({"target": "Quarantined"}, "target-lifecycle-state: 'Quarantined' is not a known state"),
        ({"action": {}}, "spot/instance-action"),
        ({"action": {"action": "terminate"}}, "spot/instance-action"),
        ({"action": {"action": "terminate", "time": "soon"}}, "spot/instance-action"),
    ],
)
def test_what_is_no_answer_is_no_order_to_drain(
    machine: FakeMachine,
    server: FakeServer,
    metadata: Metadata,
    befalls: dict[str, Any],
    trouble: str,
) -> None:
    machine.launch()
    before = look(metadata, Seen())[0]
    vars(machine).update(befalls)
    patience_s = 0.2 if machine.fault == "hang" else 60.0
    with closing(Metadata(server.endpoint, patience_s)) as client:
        after, troubles = look(client, before)
    assert after == before
    assert trouble in troubles[0]


def test_a_token_that_is_not_valid_any_more_is_renewed_once(
    machine: FakeMachine, metadata: Metadata
) -> None:
    machine.launch()
    assert look(metadata, Seen())[0].target == "InService"
    machine.tokens.clear()
    assert look(metadata, Seen())[1] == ()
    assert len(machine.tokens) == 1


def test_a_clock_that_is_behind_does_not_move_the_time_of_leaving(
    machine: FakeMachine, metadata: Metadata
) -> None:
    machine.clock_ahead_s = 300.0
    machine.interrupt(in_s=120)
    look(metadata, Seen())
    seen = look(metadata, Seen())[0]
    assert metadata.clock_offset_s == pytest.approx(300, abs=60)
    assert seen.taken_at == pytest.approx(time.time() + 120, abs=60)


def test_who_it_is(machine: FakeMachine, metadata: Metadata) -> None:
    assert identity(metadata) == (machine.instance_id, "us-east-1", "demo-spot", True)
    machine.tags = None
    assert identity(metadata) == (machine.instance_id, "us-east-1", "", False)
    machine.instance_id = "<html>"
    with pytest.raises(MetadataError, match="not EC2 metadata"):
        identity(metadata)
