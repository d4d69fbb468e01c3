"""Health turns: what they read, request and record, with a load rate or an objective."""

from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.decision import (
    Action,
    Answer,
    Awaiting,
    Controller,
    DecisionRecord,
    Request,
    RequestKind,
    Suspicion,
)
from spotkeeper.domain.health.decide import (
    HealthAssessment,
    HealthPlan,
    HealthSnapshot,
    apply,
    assess,
    plan,
)
from spotkeeper.domain.health_memory import HealthMemory
from spotkeeper.domain.load.history import LoadHistory
from spotkeeper.domain.load.load import LoadDigest
from spotkeeper.domain.settings.sizing import Objective, SizingPolicy
from spotkeeper.ports import Throttled, Unavailable
from spotkeeper.turns import check_health
from spotkeeper.turns.turn import Budget
from spotkeeper_lab.fakes import Crash, FakeLoadHistories, FakeRegions, digest, instant
from tests.builders import at, fleet, group, ids, judged
from tests.laws import shuffles
from tests.unit.turns.stage import START_S, Stage, hung, served


def test_an_unforeseen_error_stops_one_fleet_and_is_raised_after_all_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    stage.serve(0, dict.fromkeys(stage.spot, 0.9))
    met = replace(stage.fleet, name="met")
    # Releasing the lease fails too, which must not hide the first error.
    stage.faults.refusals["release"] = Unavailable("503")

    def failing(seen: HealthAssessment) -> HealthPlan:
        assert seen.snapshot.fleet.name != "met"
        return plan(seen)

    monkeypatch.setattr("spotkeeper.turns.check_health.plan", failing)
    with pytest.raises(ExceptionGroup) as caught:
        stage.turn(0, [met, stage.fleet])
    [error] = caught.value.exceptions
    assert isinstance(error, AssertionError)
    assert error.__notes__ == ["in the turn of fleet met"]
    assert stage.cloud.group("spot").desired == 6


@pytest.mark.parametrize(("known", "minute"), [(True, 4), (False, 4), (False, 40)])
def test_stale_logs_change_nothing_and_raise_alarms(known: bool, minute: int) -> None:
    """So they do where the memory was lost in the silence."""
    stage = Stage()
    stage.serve(0, dict.fromkeys(stage.spot, 0.9))
    if known:
        stage.turn(0)
    before = stage.cloud.group("spot").desired
    (record,) = stage.turn(minute).records
    alarms = ("stale-search-logs", "nobody-serves")
    assert (record.rule, record.alarms) == ("stale search logs", alarms)
    assert (record.stale, judged(record).search_log_age_s) == (True, 60 * minute)
    assert (record.outcomes, stage.cloud.group("spot").desired) == ((), before)


def test_no_logs_of_no_instances_are_not_missing() -> None:
    """An operator sets the spot group's maximum to 0."""
    stage = Stage()
    stage.serve(0, dict.fromkeys(stage.spot, 0.9))
    stage.turn(0)
    stage.cloud.set_bounds("spot", 0, 0)
    (record,) = stage.turn(9).records
    assert (record.rule, record.alarms) == ("spot maximum", ())
    assert "Search logs are stale" in record.reason


@pytest.mark.parametrize(("version", "counted"), [("7", 1), ("8", 0)])
def test_a_hung_worker_is_replaced_after_two_observations(version: str, counted: int) -> None:
    """A canary does not count against the hourly budget."""
    stage = Stage(sizing=SizingPolicy(enabled=False))
    for number, machine in enumerate(stage.cloud._group("spot").members.values()):
        machine.template = "7" if number else version
    victim = hung(stage)
    assert victim in stage.spot
    (record,) = stage.turn(7).records
    assert victim not in stage.spot
    assert judged(record).workers_replaced == 1
    assert len(remembered(stage, 7).replaced) == counted
    (suspect,) = record.suspects
    assert (suspect.instance_id, suspect.kind) == (victim, Suspicion.SILENT)
    assert suspect.replaced_at == record.at
    replaced = f"replace {victim}: finished no request for 360 s"
    assert record.outcomes[0].request.text().startswith(replaced)


def test_a_fleet_does_not_shrink_to_the_load_that_a_silent_instance_may_hide() -> None:
    """Three of four serve 2.7 erlangs. If the fourth serves as much, all four are needed."""
    stage = Stage(sizing=SizingPolicy(enabled=False))
    hung(stage)
    sized = SizingPolicy(scale_in_after_s=0, target_load_rate=1.0)
    (record,) = stage.turn(7, [replace(stage.fleet, sizing=sized)]).records
    assert record.rule == "partly known load"
    assert "Held at 4: 1 of 4 instances in service logged none" in record.reason
    assert all(one.request.kind is not RequestKind.END for one in record.outcomes)


def test_the_last_check_reads_the_logs_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(sizing=SizingPolicy(enabled=False))
    victim, now_s, read = hung(stage), START_S + 7 * 60, stage.table.since

    def since(fleet: str, since: datetime) -> tuple[LoadDigest, ...]:
        """Read what is there; then its last word arrives."""
        found = read(fleet, since)
        stage.table.add(digest([served(victim, now_s, 5.0)], instant(now_s), "ocr"))
        return found

    monkeypatch.setattr(stage.table, "since", since)
    (record,) = stage.turn(7).records
    assert (judged(record).workers_replaced, record.outcomes) == (0, ())
    assert victim in stage.spot


def test_an_instance_that_is_scaled_in_is_not_replaced_as_well() -> None:
    stage = Stage(sizing=SizingPolicy(enabled=False))
    victim = hung(stage, busy=0.62)
    sized = SizingPolicy(scale_in_after_s=0, target_load_rate=1.0)
    (record,) = stage.turn(7, [replace(stage.fleet, sizing=sized)]).records
    (kind,) = [one.kind for one in record.done if victim in one.instances]
    assert kind is RequestKind.END
    assert not record.refused


def test_a_fleet_that_may_not_grow_to_its_load_at_once_remembers_that_it_needs_more() -> None:
    stage = Stage(sizing=SizingPolicy(target_load_rate=0.05, growth_per_turn=0.5))
    stage.serve(0, dict.fromkeys(stage.spot, 0.9))
    (record,) = stage.turn(0).records
    assert "`growth_per_turn` limits this turn" in record.reason
    assert remembered(stage, 0).size_limited is True


def test_a_scale_in_takes_no_time_of_other_fleets(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(sizing=SizingPolicy(enabled=False))
    hung(stage, busy=0.62)
    monkeypatch.setattr(Budget, "is_shared_out", lambda _: True)
    sized = SizingPolicy(scale_in_after_s=0, target_load_rate=1.0)
    (record,) = stage.turn(7, [replace(stage.fleet, sizing=sized)]).records
    assert record.action is Action.RESIZE
    assert not [one for one in record.outcomes if one.request.kind is RequestKind.END]


# --- a fleet with an objective --------------------------------------------------------------------


class Writes(FakeLoadHistories):
    """Histories that count how often they are written."""

    written = 0

    refused = False

    def write(self, fleet: str, history: LoadHistory, now: datetime) -> None:
        if not self.refused:
            self.refused = True
            raise Throttled("the table is busy")
        self.written += 1
        super().write(fleet, history, now)


def test_a_history_is_written_once_a_step_and_a_record_has_the_cost_of_its_rules() -> None:
    """Of the followed rule and of the cheapest, once the fleet's own log chooses."""
    stage, histories, records = Stage(), Writes(), list[DecisionRecord]()
    stage.fleet = replace(stage.fleet, objective=Objective(wait_s=10.0, share=0.95))
    stage.ports = replace(stage.ports, histories=histories)
    members = stage.spot
    for minute in range(56):
        stage.serve(minute, dict.fromkeys(members, 0.5))
        records += stage.turn(minute).records
    refused = [outcome.request.kind for one in records for outcome in one.refused]
    assert refused == [RequestKind.KEEP_HISTORY]
    history = histories.read("ocr")
    # A write that the table refuses stops nothing, and the next turn writes.
    # The first five minutes were served before the first turn.
    assert histories.written == len(history.work_ms) / 5 == 11
    assert sum(history.work_ms[5:]) == pytest.approx(10 * 600_000, rel=0.02)
    for one in records:
        followed = judged(one).hours_followed
        assert (followed is not None) == ("in the last days" in one.reason)
    seen = judged(records[-1])
    assert 0 < (seen.hours_least or 0) <= (seen.hours_followed or 0)


# --- what a record keeps --------------------------------------------------------------------------


def test_a_request_that_comes_too_late_is_recorded_as_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    stage.serve(0, dict.fromkeys(stage.spot, 0.9))
    monkeypatch.setattr("spotkeeper.turns.act.ASK_UNTIL_S", 0.0)
    (record,) = stage.turn(0).records
    (outcome,) = record.refused
    assert (outcome.request.kind, record.changed) == (RequestKind.RESIZE_SPOT, False)
    assert stage.cloud.group("spot").desired == 4


def test_a_record_says_until_when_maintenance_keeps_a_hung_worker() -> None:
    stage = Stage(sizing=SizingPolicy(enabled=False))
    stage.fleet = replace(stage.fleet, maintenance="00:00-00:00")
    victim = hung(stage)
    (record,) = stage.turn(7).records
    assert victim in stage.spot
    assert "nothing is replaced until 00:00 UTC, for maintenance." in record.reason
    (again,) = record.awaited
    assert again.what is Awaiting.REPLACEMENT
    assert again.until and (again.until.hour, again.until.minute) == (0, 0)


def test_a_record_names_no_more_suspects_than_an_item_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, suspects, records = Stage(6), 2, list[DecisionRecord]()
    for minute in range(8):
        stage.serve(minute, dict.fromkeys(stage.spot[suspects * (minute >= 2) :], 0.9))
        monkeypatch.setattr(check_health, "SUSPECTS", 1)
        records += stage.turn(minute).records
    record = records[-1]
    assert judged(record).workers_suspect == suspects
    assert len(record.suspects) == 1
    assert "1 more suspects" in record.reason


def test_the_last_check_knows_the_logs_of_other_regions() -> None:
    """Of two at the home, one is slow: only its peers elsewhere show it."""
    stage = Stage(spot=2, sizing=SizingPolicy(enabled=False))
    regions = "arn:aws:dynamodb:us-west-2:123456789012:table/t"
    stage.fleet = replace(stage.fleet, regions=regions)
    stage.ports = replace(stage.ports, regions=FakeRegions("us-east-1", {}, set()))
    slow, well = stage.spot
    records = list[DecisionRecord]()
    for minute in range(12):
        for who, service_s in (slow, 12.0), (well, 2.0):
            stage.table.add(digest([served(who, s, service_s) for s in spread_over(minute)],
                            instant(START_S + 60 * minute), "ocr"))  # fmt: skip
        for who in ids("b", 4):
            stage.table.add(digest([served(who, s, 2.0) for s in spread_over(minute)],
                            instant(START_S + 60 * minute), "ocr@us-west-2"))  # fmt: skip
        records += stage.turn(minute).records
    assert [r.suspects[0].instance_id for r in records if judged(r).workers_replaced] == [slow]


def spread_over(minute: int) -> list[float]:
    return [START_S + 60 * minute - 12 * n for n in range(5)]


# --- the memory follows what AWS may have accepted ------------------------------------------------


WHO = ids("a", 6)
REQUESTS = [
    *(Request(kind=RequestKind.RESIZE_SPOT, group="spot", desired=n) for n in range(10)),
    *(Request(kind=RequestKind.END, instances=(one,)) for one in WHO),
    *(Request(kind=RequestKind.REPLACE_WORKER, instances=(one,)) for one in WHO),
]
PAIRS = st.lists(st.sampled_from([*product(REQUESTS, Answer)]), max_size=8)
SPOT = group("spot", 6)
NOTHING = HealthSnapshot(
    fleet=fleet(), spot=SPOT, sized=SPOT, on_demand=group("on-demand", 0), digests=(), queue=None,
    history=None, now=at(0),
)  # fmt: skip
WANTED = plan(assess(NOTHING, HealthMemory()))
BEFORE = HealthMemory(suspects=dict.fromkeys(WHO, at(-60)), replaced=(at(-900),))


def applied(pairs: list[tuple[Request, Answer]]) -> HealthMemory:
    return apply(BEFORE, WANTED, pairs)


@given(PAIRS)
def test_refused_or_skipped_actions_leave_no_trace(
    pairs: list[tuple[Request, Answer]],
) -> None:
    asked = [pair for pair in pairs if pair[1] in (Answer.DONE, Answer.LOST)]
    assert applied(pairs) == applied(asked)
    refused = [(request, Answer.REFUSED) for request, _ in pairs]
    assert applied(refused) == BEFORE


@given(PAIRS, shuffles)
def test_the_order_of_failures_does_not_matter(
    pairs: list[tuple[Request, Answer]], random: Random
) -> None:
    assert applied(random.sample(pairs, len(pairs))) == applied(pairs)


def remembered(stage: Stage, minute: int) -> HealthMemory:
    lease = stage.states.acquire("ocr", Controller.HEALTH, instant(START_S + 60 * minute + 1), None)
    assert lease is not None
    stage.states.release(lease)
    return lease.health


@pytest.mark.parametrize(("error", "counted"), [(Throttled("no"), 0), (Unavailable("?"), 1)])
def test_a_replacement_of_which_the_answer_was_lost_counts_against_the_budget(
    error: Throttled | Unavailable, counted: int
) -> None:
    stage = Stage(sizing=SizingPolicy(enabled=False))
    hung(stage)
    stage.faults.refusals["end"] = error
    (record,) = stage.turn(7).records
    assert judged(record).workers_replaced == 0
    assert len(remembered(stage, 7).replaced) == counted


@pytest.mark.parametrize("later", range(1, 6))
def test_a_turn_that_dies_after_any_call_does_not_exceed_the_budget(later: int) -> None:
    """The lease of a turn that died ends after 45 s, so that each minute another tries."""
    stage = Stage(spot=8, sizing=SizingPolicy(enabled=False))
    policy = replace(stage.fleet.worker_health, replacements_per_hour=1)
    stage.fleet = replace(stage.fleet, worker_health=policy)
    ill, well = stage.spot[:3], stage.spot[3:]
    stage.serve(0, dict.fromkeys(stage.spot, 0.9))
    stage.turn(0)
    gone: set[str] = set()
    for minute in range(1, 20):
        stage.serve(minute, dict.fromkeys([i for i in well if i in stage.spot], 0.9))
        first_act = stage.faults.calls.count("end") == 0
        stage.faults.crash_after = len(stage.faults.calls) + later if minute > 5 else None
        if not first_act:
            stage.faults.crash_after = None
        with suppress(Crash):
            stage.turn(minute)
        gone |= {i for i in ill if i not in stage.spot}
    assert len(gone) <= 1
