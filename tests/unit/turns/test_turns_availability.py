"""The availability turn on an AWS that refuses, throttles and loses answers: one story each."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import NoReturn

import pytest

from spotkeeper.adapters.errors import SPOT_FINAL_STATUSES, SPOT_MARKED_STATUSES
from spotkeeper.domain.decision import Action, Controller, DecisionRecord, RequestKind
from spotkeeper.domain.failure import FailureClass
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from spotkeeper.ports import FleetError, Gone, Refused, Throttled, TimedOut, Unavailable
from spotkeeper.turns.check_availability import (
    MOST_WAKE_UPS,
    check_availability,
    handle_interruption,
)
from spotkeeper_lab.cloud.values import Physics
from spotkeeper_lab.fakes import Crash, FakeGroups, FakeLoadTable, instant
from tests.builders import counted
from tests.simulation.golden import FakeFleet, warning

CALM = AvailabilityPolicy(early_replacement=False, notice_s=0)


def turned(fleet: FakeFleet, at_s: float) -> DecisionRecord:
    report = check_availability([fleet.fleet], fleet.ports, instant(at_s))
    return report.records[-1]


# --- memory and metrics follow outcomes -------------------------------------------------------


@pytest.mark.parametrize("error", [Refused("no"), Throttled("slow"), Unavailable("lost")])
def test_a_refused_backfill_counts_once_it_is_done(error: FleetError) -> None:
    fleet = FakeFleet(a=((0.0, 4), (1200.0, 2)), policy=CALM)
    fleet.to(1070)
    fleet.faults.refusals["set_desired"] = error
    fleet.to(1330)
    assert fleet.on_demand == 0
    assert fleet.total(lambda seen: seen.backfilled) == 0
    fleet.faults.refusals.clear()
    fleet.to(1400)
    assert (fleet.on_demand, fleet.total(lambda seen: seen.backfilled)) == (2, 2)


# --- all or nothing ---------------------------------------------------------------------------


class OneUnknown(FakeGroups):
    """A group one of whose instances AWS does not know any more."""

    unknown = ""
    asked = 0

    def drain(self, instance_ids: Sequence[str], gone_at: datetime, group: str) -> None:
        self.asked += 1
        if self.unknown in instance_ids:
            raise Gone(f"The instance ID '{self.unknown}' does not exist")
        super().drain(instance_ids, gone_at, group)

    def detach(self, group: str, instance_ids: Sequence[str]) -> None:
        if self.unknown in instance_ids:
            raise Gone(f"The instance {self.unknown} is not part of Auto Scaling group {group}")
        super().detach(group, instance_ids)


def test_one_bad_id_among_forty_costs_a_few_calls_and_not_one_for_each() -> None:
    fleet = FakeFleet(target=40)
    groups = OneUnknown(fleet.cloud, fleet.faults)
    ports = replace(fleet.ports, groups=groups, writer=groups)
    fleet.to(600)
    warned = fleet.spot_ids()
    groups.unknown = warned[7]
    handle_interruption(warning(*warned, at_s=600), [fleet.fleet], ports, instant(600))
    assert [i for i in warned if not fleet.cloud.instance(i).draining] == [warned[7]]
    assert set(fleet.spot_ids()) & set(warned) == {warned[7]}
    # Two for each halving of 40, and the first.
    assert groups.asked <= 13


@pytest.mark.parametrize("error", [Throttled("slow down"), TimedOut("no answer")])
def test_a_batch_that_is_throttled_is_not_sent_again_in_halves(error: FleetError) -> None:
    """More calls are what AWS asks not to make: the next turn sends it."""
    fleet = FakeFleet(target=40)
    fleet.to(600)
    warned, start = fleet.spot_ids(), len(fleet.faults.calls)
    fleet.faults.refusals["drain"] = error
    handle_interruption(warning(*warned, at_s=600), [fleet.fleet], fleet.ports, instant(600))
    assert [call for call in fleet.faults.calls[start:] if call == "drain"] == ["drain"]
    fleet.faults.refusals.clear()
    check_availability([fleet.fleet], fleet.ports, instant(660))
    assert all(fleet.cloud.instance(i).draining for i in warned)
    # AWS detaches 20 in one call.
    assert fleet.faults.calls[start:].count("detach") == 2


def test_warnings_that_arrive_one_by_one_during_a_turn_are_all_its_own() -> None:
    """Each event of a storm finds the lease taken, and leaves a note for the turn that has it."""
    fleet = FakeFleet(target=8)
    fleet.to(600)
    first, *others = fleet.spot_ids()

    def next_warning() -> None:
        if others:
            handle_interruption(
                warning(others.pop(), at_s=600), [fleet.fleet], fleet.ports, instant(600)
            )
            fleet.faults.meanwhile["drain"] = next_warning

    fleet.faults.meanwhile["drain"] = next_warning
    warned = fleet.spot_ids()
    handle_interruption(warning(first, at_s=600), [fleet.fleet], fleet.ports, instant(600))
    assert all(fleet.cloud.instance(i).draining for i in warned)


class AnsweredLate(FakeGroups):
    """A group that detaches on a first attempt, whose answer is lost: the second is refused."""

    now_s = slow_s = 0.0

    def detach(self, group: str, instance_ids: Sequence[str]) -> None:
        with suppress(FleetError):
            super().detach(group, instance_ids)
        self.now_s += self.slow_s
        raise Gone(f"The instance {instance_ids[0]} is not part of Auto Scaling group {group}")


@pytest.mark.parametrize("slow_s", [0.0, 8.0], ids=["one by one", "no time left"])
def test_a_batch_that_was_detached_without_an_answer_is_remembered(slow_s: float) -> None:
    fleet = FakeFleet(target=8)
    groups = AnsweredLate(fleet.cloud, fleet.faults)
    groups.slow_s = slow_s
    ports = replace(fleet.ports, groups=groups, writer=groups)
    fleet.to(600)
    groups.now_s, warned = 600.0, fleet.spot_ids()
    ports = replace(ports, clock=lambda: instant(groups.now_s))
    handle_interruption(warning(*warned, at_s=600), [fleet.fleet], ports, instant(600))
    lease = fleet.states.acquire("ocr", Controller.AVAILABILITY, instant(700), None)
    assert lease is not None
    assert set(lease.availability.detached) == set(warned)


def test_what_aws_took_and_the_group_still_lists_is_replaced_without_a_mark() -> None:
    fleet = FakeFleet()
    fleet.to(600)
    gone = fleet.spot_ids()[0]
    fleet.cloud.suspend(fleet.fleet.spot_group, "HealthCheck")
    fleet.cloud.reclaim([gone], 610)
    fleet.cloud.advance(640)
    record = turned(fleet, 640)
    assert RequestKind.DRAIN not in {done.kind for done in record.done}
    assert gone not in fleet.spot_ids()


def test_what_a_turn_detached_before_it_died_is_ended_where_aws_leaves_it_running() -> None:
    fleet = FakeFleet()
    fleet.to(600)
    warned = fleet.spot_ids()[0]

    def die() -> None:
        raise Crash

    fleet.faults.meanwhile["detach"] = die
    with pytest.raises(Crash):
        handle_interruption(warning(warned, at_s=600), [fleet.fleet], fleet.ports, instant(600))
    assert (warned in fleet.spot_ids(), fleet.cloud.instance(warned).draining) == (False, True)
    fleet.to(3000)
    assert warned not in {i.instance_id for i in fleet.cloud.instances()}


@pytest.mark.parametrize("status", sorted(SPOT_MARKED_STATUSES | SPOT_FINAL_STATUSES))
@pytest.mark.parametrize(
    ("event_s", "status_s"), [(0, 0), (0, 50), (50, 0), (None, 0), (None, 50), (0, None)]
)
def test_an_instance_that_aws_takes_is_marked_then_detached_and_remembered_until_it_is_gone(
    status: str, event_s: int | None, status_s: int | None
) -> None:
    """Whatever its spot request says meanwhile, and whether that or the event is first."""
    physics = Physics(cold_start_s=60, warm_start_s=40, warm_pool=4, spot_status=status)
    warm = AvailabilityPolicy(on_demand_warm=True)
    fleet = FakeFleet(policy=warm, physics=physics)
    fleet.to(600)
    going, since_s = fleet.spot_ids()[0], min(it for it in (event_s, status_s) if it is not None)
    fleet.cloud.reclaim([going], 720)
    unread, calls = Throttled("Rate exceeded"), fleet.faults.refusals
    for second in (0, 50, 90, 130):
        fleet.cloud.advance(600 + second)
        calls.pop("troubled_spot_requests", None)
        if status_s is None or second < status_s:
            calls["troubled_spot_requests"] = unread
        now = instant(600 + second)
        if event_s == second:
            told = warning(going, at_s=600)
            handle_interruption(told, [fleet.fleet], fleet.ports, now)
        check_availability([fleet.fleet], fleet.ports, now)
        lease = fleet.states.acquire("ocr", Controller.AVAILABILITY, now, None)
        assert lease is not None
        fleet.states.release(lease)
        memory, gone = lease.availability, second > 120
        warned = second >= since_s and not gone
        assert fleet.cloud.instance(going).draining is (second >= since_s)
        assert set(memory.detached) == ({going} if warned or status_s is None else set())
        assert dict(memory.risk.deferral.gone_at) == ({going: instant(720)} if warned else {})
    marked, detached = (
        next(n for n, it in enumerate(fleet.asked()) if verb in it and going in it)
        for verb in ("drain", "replace")
    )
    assert marked < detached


# --- what is read -----------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["troubled_spot_requests", "failures", "marked"])
def test_optional_reads_do_not_stop_a_turn(call: str) -> None:
    fleet = FakeFleet(a=((0.0, 4), (1200.0, 2)), policy=CALM)
    fleet.faults.refusals[call] = Throttled("Rate exceeded")
    fleet.to(3660)
    record = next(r for r in fleet.states.records if r.action is Action.BACKFILL)
    assert fleet.on_demand == 2
    told = [r.unread for r in fleet.states.records if r.unread]
    assert told
    assert "Throttled: Rate exceeded" in told[0][0]
    assert all(not outcome.error for outcome in record.outcomes)


def test_fifty_warnings_in_a_second_are_read_for_once_and_none_is_lost() -> None:
    fleet = FakeFleet(target=40, physics=Physics(cold_start_s=120))
    fleet.to(600)
    warned = fleet.spot_ids()
    start = len(fleet.faults.calls)

    def storm() -> None:
        for instance_id in (*warned[1:], *warned[:10]):
            event = warning(instance_id, at_s=600)
            handle_interruption(event, [fleet.fleet], fleet.ports, instant(600))

    fleet.faults.meanwhile["acquire"] = storm
    handle_interruption(warning(warned[0], at_s=600), [fleet.fleet], fleet.ports, instant(600))
    calls = fleet.faults.calls[start:]
    assert calls[:2] == ["groups_of", "acquire"]
    assert fleet.total(lambda seen: seen.interruptions) == 40
    assert set(warned).isdisjoint(fleet.spot_ids())
    assert calls.count("describe") <= 3
    assert calls.count("failures") <= 4


def test_a_record_has_no_failure_from_before_the_last_gap_was_filled() -> None:
    fleet = FakeFleet(a=((0.0, 4), (1200.0, 2), (2100.0, 3)), policy=CALM)
    fleet.to(2000)
    assert {f.failure_class for f in fleet.states.records[-1].failures} == {FailureClass.CAPACITY}
    fleet.cloud.set_desired(fleet.fleet.spot_group, 2)
    fleet.to(2110)
    fleet.cloud.set_desired(fleet.fleet.spot_group, 3)
    fleet.to(2170)
    record = fleet.states.records[-1]
    assert counted(record).spot_launching == 1
    assert [f.at for f in record.failures if f.at < instant(2040)] == []


# --- chains of wake-ups -----------------------------------------------------------------------

WARM = Physics(cold_start_s=120, warm_start_s=30.0, warm_pool=8)


@pytest.mark.parametrize(("woken", "deferred"), [(0, True), (MOST_WAKE_UPS, False)])
def test_a_chain_of_wake_ups_ends(woken: int, deferred: bool) -> None:
    policy = AvailabilityPolicy(on_demand_warm=True, lost_notice_share=0, early_replacement=False)
    fleet = FakeFleet(a=((0.0, 4), (900.0, 3), (960.0, 4)), physics=WARM, policy=policy)
    fleet.to(1500)
    note = warning(fleet.spot_ids()[0], at_s=1501)
    before = len(fleet.wake_ups.due_s)
    fleet.faults.refusals["describe"] = Throttled("so that only the note is left")
    handle_interruption(note, [fleet.fleet], fleet.ports, instant(1501))
    fleet.faults.refusals.clear()
    check_availability([fleet.fleet], fleet.ports, instant(1502), woken=woken)
    assert (len(fleet.wake_ups.due_s) > before) is deferred
    assert fleet.on_demand == (0 if deferred else 1)
    assert fleet.ready == 4


def test_on_demand_is_released_when_busy_shares_are_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise Throttled("slow down")

    monkeypatch.setattr(FakeLoadTable, "since", refuse)
    fleet = FakeFleet(a=((0.0, 4), (1200.0, 2), (2400.0, 4)), policy=CALM)
    fleet.to(3000)
    (record,) = (r for r in fleet.states.records if r.action is Action.RELEASE)
    assert record.unread == ("which instances are busy: Throttled: slow down",)
    assert fleet.on_demand == 0


def test_the_hours_for_which_on_demand_stands_in_are_counted_until_it_goes() -> None:
    fleet = FakeFleet(a=((0.0, 4), (1200.0, 2), (9000.0, 4)), policy=CALM)
    fleet.to(4600)
    assert not any(counted(record).on_demand_h for record in fleet.states.records)
    fleet.to(8900)
    hours = [counted(record).on_demand_h or 0 for record in fleet.states.records]
    assert hours[-1] == pytest.approx((8900 - 1080) / 3600, abs=0.1)
    fleet.to(10_000)
    assert fleet.on_demand == 0
    assert counted(fleet.states.records[-1]).on_demand_h is None
