"""A status says what is known now: each figure is fresh, carries its age, or is withheld."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from spotkeeper.domain.decision import (
    FAILED,
    Action,
    Alarm,
    Answer,
    AvailabilityFigures,
    Awaited,
    Awaiting,
    Controller,
    DecisionRecord,
    Failure,
    HealthFigures,
    NewVersion,
    RequestKind,
    Suspect,
    Suspicion,
)
from spotkeeper.domain.failure import FailureClass
from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.domain.load.load import LoadDigest
from spotkeeper.domain.load.request_queue import QueueLength
from spotkeeper.domain.permission import Control, Pause
from spotkeeper.domain.settings.sizing import Objective
from spotkeeper.domain.spread import Place, Report, Standing
from spotkeeper_lab.fakes import digest
from spotkeeper_operator.regions import FleetRegions, regions_text
from spotkeeper_operator.status.known import FleetStatus, StackStatus, State, fleet_status
from spotkeeper_operator.status.looked import Looked
from spotkeeper_operator.status.shown import exit_code, status_text
from spotkeeper_operator.text import labelled
from tests.builders import NOON, backfilled, done, failure, fleet, group, held, instances
from tests.search_logs import served

FLEET = fleet()
SIX = [f"i-{n}" for n in range(6)]


def ago(seconds: float) -> Any:
    return NOON - timedelta(seconds=seconds)


SIX_SERVE = AvailabilityFigures(spot_desired=6, spot_serving=6)


def availability(
    age_s: float = 20, figures: AvailabilityFigures = SIX_SERVE, **changes: Any
) -> DecisionRecord:
    changes.setdefault("reason", "spot 6 of 6 serving; nothing is missing")
    return held(controller=Controller.AVAILABILITY, at=ago(age_s), availability=figures, **changes)


NEEDED = HealthFigures(
    load_rate=32.0, workers_live=6, workers_needed=2, wait_p95_s=0.8, search_log_age_s=2.0
)


def health(age_s: float = 20, figures: HealthFigures = NEEDED) -> DecisionRecord:
    return held(at=ago(age_s), health=figures)


def logs(
    instances: Iterable[str], age_s: float, busy_s: float = 5.0, for_s: int = 60
) -> list[LoadDigest]:
    """Requests that instances finished every 10 s of `for_s`, until `age_s` ago."""
    each = [served(i, ago(age_s + slot), busy_s) for i in instances for slot in range(0, for_s, 10)]
    return list(digest(each, ago(age_s), "ocr")) if each else []


def groups(serving: Iterable[str] = SIX, on_demand: Iterable[str] = ()) -> dict[str, Group]:
    return {
        "spot": group("spot", 6, instances(serving)),
        "on-demand": group("on-demand", len(list(on_demand)), instances(on_demand)),
    }


def stopped(by_aws: bool) -> dict[str, Group]:
    """The groups; the spot group lacks an instance, and may launch none."""
    launch = frozenset({"Launch"})
    found = groups(serving=SIX[:5])
    spot = replace(
        found["spot"], suspended=launch, suspended_by_aws=launch if by_aws else frozenset()
    )
    return found | {"spot": spot}


def looked(fleet: Fleet = FLEET, **changes: Any) -> FleetStatus:
    plain: dict[str, Any] = {
        "groups": groups(),
        "records": (availability(), health()),
        "digests": logs(SIX, 5),
        "queue": QueueLength(waiting=0, in_flight=2),
    }
    return fleet_status(fleet, Looked(**{**plain, **changes}), NOON)


def screen(status: FleetStatus) -> str:
    """The text; the exit code is 0 where nothing is wrong."""
    whole = StackStatus(
        stack="s", region="r", at=NOON, fleets=(status,), ringing=(), ringing_fleets={}, troubles=()
    )
    serves = status.state in (State.WHOLE, State.IN_SERVICE)
    assert exit_code(whole) == (0 if serves and not status.failing else 1)
    text = status_text(whole)
    assert max(map(len, text.splitlines())) <= 80
    return " ".join(text.split())


def test_live_workers_are_those_of_instances_that_are_in_service() -> None:
    """Six logged until a moment ago; four of their instances are gone, two work at 90 %."""
    digests = [*logs(SIX[:2], 5, 9.0, 120), *logs(SIX[2:], 15, busy_s=2.0)]
    status = looked(groups=groups(serving=SIX[:2]), digests=digests)
    assert status.load
    assert (status.load.workers_live, status.load.workers_expected) == (2, 2)
    assert (status.load.busy or 0.0) > 0.8
    assert "2 of 2 workers served in the last minute; 4 more are draining" in screen(status)


def test_workers_are_live_whose_logs_came_with_those_of_a_machine_with_a_late_clock() -> None:
    late = [*(served(i, ago(10), 5.0) for i in SIX), served("box", ago(490), 5.0)]
    status = looked(digests=[*digest(late, ago(5), "ocr"), *logs(SIX[:1], 5)])
    assert status.load
    assert status.load.workers_live == status.known_to_serve == 6


def test_a_busy_share_is_withheld_while_idle_or_hung_workers_would_change_it() -> None:
    """Each of the workers that log is 90 % busy; of the others, or of before, nothing is known."""

    def busy(logging: int, for_s: int = 120) -> float | None:
        load = looked(digests=logs(SIX[:logging], 5, 9.0, for_s)).load
        return load.busy if load else None

    assert (busy(6) or 0.0) == pytest.approx(0.9, abs=0.05)
    assert [busy(1), busy(3), busy(4), busy(6, 60)] == [None] * 4


def test_a_reason_is_shown_once_and_no_number_is_split_from_its_unit() -> None:
    reason = "both groups are short: AWS has no capacity for 3 instances"
    turn = availability(figures=replace(SIX_SERVE, shortfall_unfilled=6), reason=reason)
    text = screen(looked(groups=groups(serving=()), records=(turn, health(47)), digests=[]))
    assert text.count(reason) == 1
    wrapped = labelled(
        "load", "3 of 3 workers served in the last minute; 3 are needed now (47 s ago)"
    )
    assert wrapped[-1].split() == ["(47", "s", "ago)"]


@pytest.mark.parametrize(
    ("looks", "logged_s", "expected"),
    [
        pytest.param([(20, 9, 0), (80, 9, 0), (140, 8, 0)], 900, 122, id="nobody took one"),
        pytest.param([(40, 9, 0), (80, 9, 1), (140, 8, 0)], 900, 22, id="one was in flight"),
        pytest.param([(40, 9, 0), (80, 12, 0)], 900, 22, id="some were taken"),
        pytest.param([(40, 9, 0), (80, 9, 0)], 50, 22, id="somebody logged since"),
        pytest.param([(15, 9, 0)], 900, None, id="too young"),
        pytest.param([(20, 0, 0)], 900, None, id="none waited"),
        pytest.param([], 900, None, id="no look"),
    ],
)
def test_how_long_the_oldest_request_has_waited_at_least(
    looks: list[tuple[float, int, int]], logged_s: float, expected: float | None
) -> None:
    turns = [
        health(age, replace(NEEDED, requests_queued=n, requests_in_flight=f, search_log_age_s=900))
        for age, n, f in looks
    ]
    waiting = QueueLength(waiting=9, in_flight=0)
    status = looked(records=turns, digests=logs(SIX, logged_s), queue=waiting).waiting
    assert status
    assert status.oldest_at_least_s == expected


STAND_INS = ["i-o0", "i-o1"]
BACKFILLED = {"groups": groups(SIX[:4], STAND_INS), "digests": logs([*SIX[:4], *STAND_INS], 5)}
FIVE = {"groups": groups(SIX[:5]), "digests": logs(SIX[:5], 5)}
FOUR_LOG = {"digests": logs(SIX[:4], 5)}
NONE_LOG: dict[str, Any] = {"digests": []}
# Auto Scaling throttled three turns; the groups are readable now.
THROTTLED = "Throttled: describing Auto Scaling groups"
FAILING = [availability(age, rule=FAILED, reason=THROTTLED) for age in (20, 80, 140)]
STOPPED = Failure(kind="Throttled", text="describing Auto Scaling groups")
STRICT = {"fleet": replace(FLEET, objective=Objective(wait_s=0.5, share=0.95))}
UNCOUNTED: dict[str, Any] = {"uncounted": 155, "dead": 3}
SILENT = "no request was logged for 211 s, where many are expected: nobody serves"
# A turn that only observed, one that nobody asks about, and one that AWS refused in part.
SLOW_DOWN = Failure(kind="Throttled", text="later")
OBSERVED = (replace(backfilled(7), answer=Answer.OBSERVED),)
ANSWERED = (
    done(RequestKind.REPLACE_WORKER, "i-4"),
    replace(done(RequestKind.REPLACE_WORKER, "i-5"), answer=Answer.REFUSED, error=SLOW_DOWN),
)
CHANGES = (
    held(at=ago(10), action=Action.RESIZE, outcomes=OBSERVED), availability(),
    held(at=ago(20), outcomes=ANSWERED, reason="load 2.0 erlangs"), held(action=Action.RESIZE),
)  # fmt: skip


DENIED = "on-demand: desired 9: Refused: AccessDenied: not authorized"
DRAINED = done(RequestKind.DRAIN, "i-1")
REFUSED = availability(
    action=Action.BACKFILL, reason="on-demand 8 -> 9",
    outcomes=(backfilled(9, Failure(kind="Refused", text="AccessDenied: not authorized")),),
)  # fmt: skip


def turns(figures: AvailabilityFigures, **found: Any) -> dict[str, Any]:
    return {"records": (replace(availability(figures=figures), **found), health())}


def judged(workers_suspect: int = 0, **found: Any) -> dict[str, Any]:
    figures = HealthFigures(workers_suspect=workers_suspect)
    return {"records": (availability(), held(at=ago(20), health=figures, **found))}


SUSPECTS = tuple(
    Suspect(instance_id=i, kind=Suspicion.SILENT, since=ago(60), why=why)
    for i, why in (("i-4", "finished nothing"), ("i-5", "hangs"))
)
HUNG = judged(2, suspects=SUSPECTS)
AGAIN = Awaited(what=Awaiting.REPLACEMENT)
LOGS_AGAIN = Awaited(what=Awaiting.SEARCH_LOGS)
PAUSED = Control(pause=Pause(until=ago(-3600), why="image", by="me", at=ago(60)))


@pytest.mark.parametrize(
    ("part", "state", "words"),
    [
        ({}, State.WHOLE, "whole: 6 wanted, 6 in service, 6 served in the last minute ... "
         "6 of 6 workers served in the last minute; 2 needed (20 s ago) ... "
         "no request waits now; 95 % of 36 requests started within"),
        (BACKFILLED, State.WHOLE, "6 wanted, 6 in service"),
        (FIVE, State.NOT_WHOLE, "5 of 6 wanted are in service"),
        (turns(replace(SIX_SERVE, shortfall_unfilled=2)), State.UNKNOWN,
         "2 of them were not known to serve"),
        (turns(replace(SIX_SERVE, shortfall_unfilled=1, spot_at_risk=1, early_replacements=1)),
         State.WHOLE, "6 served in"),
        # What AWS takes within two minutes is missing, unless it has left its group.
        (turns(replace(SIX_SERVE, spot_at_risk=1)), State.NOT_WHOLE,
         "5 of 6 wanted are in service, 1 more is warned"),
        (turns(replace(SIX_SERVE, spot_at_risk=6)), State.NOT_WHOLE,
         "0 of 6 wanted are in service, 6 more are warned"),
        # An instance whose workers hang is in service; a quiet fleet is no reason for an alarm.
        (FOUR_LOG, State.IN_SERVICE, "6 wanted, 6 in service, 4 served in"),
        (NONE_LOG, State.IN_SERVICE, "6 in service, 0 served in the last minute"),
        ({"digests": None}, State.IN_SERVICE, "6 in service; the search logs could not be read ... "
         "load unknown: the search logs could not be read"),
        # A warning brings availability turns alone, and a turn without requests changed nothing.
        ({"records": (availability(), health(600))}, State.WHOLE, "no health turn has succeeded "
         "for 10 min: see the log of the stack's functions, and whether its schedules are "
         "enabled ... in the last minute wait"),
        ({"records": (held(at=ago(20), action=Action.RESIZE), availability())}, State.WHOLE,
         "nothing is promised last turn"),
        ({"records": (availability(), replace(health(), new_version=NewVersion(version="lt/8")))},
         State.WHOLE, "whether version 8 on 0 instances is worse is unknown"),
        ({"control": PAUSED}, State.WHOLE,
         "in the last minute; PAUSED until 13:00: Spotkeeper changes nothing mode PAUSED until"),
        ({"records": (availability(), health(figures=replace(NEEDED, workers_missing=5)))},
         State.WHOLE, "minute; its promise needs 5 more workers than spot_max allows"),
        (HUNG | FOUR_LOG | {"fleet": replace(FLEET, maintenance="Fri 11:00-13:30")}, State.UNKNOWN,
         "i-5 hangs; in MAINTENANCE until 13:30: nothing is replaced spot"),
        ({"records": (availability(), health(figures=replace(NEEDED, on_prem_workers_silent=2)))},
         State.WHOLE, "minute; 2 workers on premises missing: no log of the last minutes names "),
        # One machine's clock is behind, and its logs are in the messages of the others.
        ({"digests": digest([served(i, ago(10), 5.0) for i in SIX] + [served("box", ago(490), 5.0)],
                            ago(5), "ocr")}, State.WHOLE,
         "load unknown: logs of gpu-box arrive minutes late: are their clocks right?"),
        ({"digests": logs(SIX, 70)}, State.IN_SERVICE, "(last 2 min, none for 70 s)"),
        ({"groups": {"spot": groups()["spot"]}}, State.NOT_WHOLE,
         "NOT WHOLE: on-demand does not exist"),
        ({"queue": QueueLength(waiting=9, in_flight=2), "oldest": (ago(60), 299.0)}, State.WHOLE,
         "9 requests wait now, the oldest for at least 4 min at 11:59"),
        # Two of six hang: the last health turn found them, and a promise is broken meanwhile.
        (HUNG | FOUR_LOG | STRICT, State.UNKNOWN,
         "4 of 6 served in the last minute; 2 suspected since 11:59 (20 s ago): i-4 "
         "finished nothing; i-5 hangs "
         "... promised: 95 % within 0.5 s, NOT KEPT"),
        # What is awaited is never past: the next turn does it.
        *[
            (judged(2, suspects=SUSPECTS, awaited=(replace(AGAIN, until=until),)) | FOUR_LOG,
             State.UNKNOWN, f"the next suspect is replaced at {shown}")
            for until, shown in ((ago(-120), "12:02"), (ago(120), "12:00"))
        ],
        (turns(replace(SIX_SERVE, shortfall_unfilled=2), awaited=(LOGS_AGAIN,)), State.UNKNOWN,
         "on-demand is kept until search logs arrive"),
        # All of them served since.
        (HUNG, State.WHOLE, "6 served in the last minute"),
        (judged(nobody_serves=SILENT, alarms=(Alarm.NOBODY_SERVES,)) | NONE_LOG, State.UNKNOWN,
         f"0 served in the last minute; 20 s ago: {SILENT}"),
        # Workers may serve as ever: their logs lie in the queue.
        (judged(nobody_serves=SILENT, alarms=(Alarm.NOBODY_SERVES,)) | NONE_LOG | UNCOUNTED,
         State.UNKNOWN, "6 in service; no search log was ever counted, while 155 messages "
         "wait, 3 are dead letters: see `spotkeeper doctor`"),
        (NONE_LOG | {"uncounted": None}, State.UNKNOWN, "while their queue does not exist"),
        (UNCOUNTED, State.WHOLE, "6 served in the last minute spot"),
        ({"records": CHANGES}, State.WHOLE, "hold [at target] replace i-4 last turn"),
        ({"records": (*FAILING, health(), availability(200))}, State.UNKNOWN,
         f"UNKNOWN: no availability turn has succeeded for 3 min: {THROTTLED} ... "
         f"FAILING availability: 3 turns have failed since 11:57:40: {THROTTLED} ... "
         "turns availability 3 min ago"),
        # Those of the function for events fail; each minute's succeeds.
        ({"records": (availability(), *FAILING[1:], health())}, State.WHOLE,
         f"failed availability: 2 turns have failed since 11:57:40, not the newest: {THROTTLED} "),
        # A headline leaves out nothing that hurts, whatever the state.
        ({"groups": groups(SIX, STAND_INS)} | HUNG, State.WHOLE,
         "6 served in the last minute; 2 may not work"),
        ({"queue": QueueLength(waiting=121, in_flight=2)} | FIVE, State.NOT_WHOLE,
         "5 of 6 wanted are in service; 121 requests wait"),
        (STRICT, State.WHOLE, "6 served in the last minute; its promise is NOT KEPT"),
        ({"records": (REFUSED, health())}, State.WHOLE,
         f"6 served in the last minute; turns are FAILING: availability ... {DENIED} ... "
         "FAILING availability: 1 turn has failed since ... last turn 20 s ago: on-demand 8 -> 9"),
        ({"records": (replace(REFUSED, outcomes=(DRAINED, *REFUSED.outcomes)), health())},
         State.WHOLE, "last change 11-20 11:59 backfill [at target] drain i-1 last"),
        ({"records": (availability(unread=("spot requests: Refused",)), health())}, State.WHOLE,
         "nothing is missing not read spot requests: Refused turns"),
        # AWS gave the launches up, or a person stopped them; and why they fail, no turn could read.
        *[
            (FIVE | {"groups": stopped(by_aws)}, State.NOT_WHOLE, f"are SUSPENDED{who}: resume")
            for by_aws, who in ((True, " by AWS, after a day without a launch"), (False, ""))
        ],
        (FIVE | {"records": (availability(unread=("spot's failures: Throttled",)), health())},
         State.NOT_WHOLE, "5 of 6 wanted are in service; why spot lacks instances is not known"),
        ({"records": (availability(error=STOPPED), health())}, State.WHOLE,
         f"turns are FAILING: availability ... 11:59:40: {THROTTLED}"),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_figures_have_their_age_and_the_rest_is_unknown(
    part: dict[str, Any], state: State, words: str
) -> None:
    status = looked(**part)
    assert status.state is state
    assert status.whole is {State.WHOLE: True, State.NOT_WHOLE: False}.get(state)
    text = screen(status)
    for each in words.split(" ... "):
        assert each in text


def test_what_a_region_serves_is_unknown_before_its_first_report() -> None:
    places = {"us-east-1": Place(), "us-east-2": Place(report=Report(at=ago(20), serving=2))}
    places["us-west-2"] = Place(standing=Standing.GONE)
    status = looked(records=(availability(), replace(health(), regions=places)))
    text = screen(status)
    assert "us-east-1 cover 0, ask 0; serving unknown; never known" in text
    assert "us-east-2 cover 0, ask 0; 2 on spot, 0 on demand; known at 11:59:40" in text
    of_fleet = FleetRegions(fleet="ocr", at=NOON, home="us-east-1", regions=status.regions)
    assert of_fleet.spot_shares == {}
    assert "nothing arrives from us-west-2, whose cover has moved: see `spotkeeper doctor`" in text
    assert "unknown unknown unknown - never" in " ".join(regions_text([of_fleet], NOON).split())


NO_CAPACITY = failure(FailureClass.CAPACITY)


@pytest.mark.parametrize(("gap_s", "since_s"), [(130, 150), (131, 20)])
def test_what_was_between_two_turns_is_not_known_if_they_are_far_apart(
    gap_s: int, since_s: int
) -> None:
    short = replace(SIX_SERVE, shortfall_unfilled=2)
    now, before = (
        availability(age_s, short, failures=(replace(NO_CAPACITY, at=ago(age_s)),))
        for age_s in (20, 20 + gap_s)
    )
    status = looked(records=(now, health(), before))
    assert (status.since, status.launches[0].since) == (ago(since_s), ago(since_s))


@pytest.mark.parametrize(("share", "kept"), [(0.8, True), (0.95, False)])
def test_a_promise_is_held_against_the_waits_of_its_share(share: float, *, kept: bool) -> None:
    """A sixth of the requests waited for 9 s."""
    each = [
        served(i, ago(5 + slot), 5.0, 9.0 if i == SIX[0] else 1.0)
        for i in SIX
        for slot in range(0, 60, 10)
    ]
    promise = replace(FLEET, objective=Objective(wait_s=5.0, share=share))
    text = screen(looked(fleet=promise, digests=list(digest(each, ago(5), "ocr"))))
    assert ("NOT KEPT" in text) is not kept
