"""The health controller remembers what AWS accepted, or may have accepted, and nothing else."""

from contextlib import suppress
from dataclasses import replace
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.domain.capacity_request import CapacityRequest
from spotkeeper.domain.decision import Answer, Controller
from spotkeeper.domain.health.memory import HealthMemory
from spotkeeper.domain.settings.sizing import SizingPolicy
from spotkeeper.domain.sizing.actions import EndInstance, HealthAction, ReplaceWorker, ResizeSpot
from spotkeeper.domain.sizing.decide import apply
from spotkeeper.ports import Throttled, Unavailable
from spotkeeper_lab.fakes import Crash, instant
from tests.builders import at, ids
from tests.laws import shuffles
from tests.unit.turns.stage import START_S, Stage, hung

WHO = ids("a", 6)
REQUEST = CapacityRequest(at=at(0), need=4, spare=1)
ACTIONS: list[HealthAction] = [
    *(ResizeSpot(group="spot", desired=n, request=REQUEST, reason="load") for n in range(10)),
    *(EndInstance(instance_id=one, request=REQUEST, reason="") for one in WHO),
    *(ReplaceWorker(instance_id=one, reason="silent") for one in WHO),
]
PAIRS = st.lists(st.sampled_from([*product(ACTIONS, Answer)]), max_size=8)
BEFORE = HealthMemory(suspects=dict.fromkeys(WHO, at(-60)), replaced=(at(-900),))


def applied(pairs: list[tuple[HealthAction, Answer]]) -> HealthMemory:
    return apply(BEFORE, [a for a, _ in pairs], [answer for _, answer in pairs], at(0))


@given(PAIRS)
def test_what_was_refused_or_skipped_leaves_no_trace(
    pairs: list[tuple[HealthAction, Answer]],
) -> None:
    asked = [pair for pair in pairs if pair[1] in (Answer.DONE, Answer.LOST)]
    assert applied(pairs) == applied(asked)
    refused = [(action, Answer.REFUSED) for action, _ in pairs]
    assert applied(refused) == BEFORE


@given(PAIRS, shuffles)
def test_the_order_of_failures_does_not_matter(
    pairs: list[tuple[HealthAction, Answer]], random: Random
) -> None:
    assert applied(random.sample(pairs, len(pairs))) == applied(pairs)


def test_a_resize_that_was_refused_is_asked_for_again_and_remembered_once_it_is_done() -> None:
    stage = Stage()
    stage.faults.refusals["set_desired"] = Throttled("slow down")
    for minute in (0, 1):
        stage.serve(minute, dict.fromkeys(stage.spot, 0.9))
        (record,) = stage.turn(minute).records
        assert [outcome.asked for outcome in record.outcomes] == ["spot: desired 6"]
        assert remembered(stage, minute).capacity_request is None
    stage.faults.refusals.clear()
    stage.serve(2, dict.fromkeys(stage.spot, 0.9))
    stage.turn(2)
    assert stage.cloud.group("spot").desired == 6
    ask = remembered(stage, 2).capacity_request
    assert ask is not None
    assert ask.need == 6


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
    stage.faults.refusals["replace"] = error
    (record,) = stage.turn(7).records
    assert record.seen["WorkersReplaced"] == 0
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
        first_act = stage.faults.calls.count("replace") == 0
        stage.faults.crash_after = len(stage.faults.calls) + later if minute > 5 else None
        if not first_act:
            stage.faults.crash_after = None
        with suppress(Crash):
            stage.turn(minute)
        gone |= {i for i in ill if i not in stage.spot}
    assert len(gone) <= 1


def test_the_budget_is_written_before_the_act() -> None:
    stage = Stage(sizing=SizingPolicy(enabled=False))
    hung(stage)
    before = len(stage.faults.calls)
    stage.turn(7)
    calls = stage.faults.calls[before:]
    assert calls.index("commit") < calls.index("replace")
