"""Functions, their files, their environment, and where their failures go."""

from pathlib import Path

import pytest

from spotkeeper import wiring
from spotkeeper.adapters.dynamodb.fleet_state import LEASE_LIFETIME
from spotkeeper.border.settings import (
    AvailabilitySettings,
    CollectSettings,
    ExamineSettings,
    HealthSettings,
    Settings,
)
from tests.template.stack import ADOPT, JOBS, ROOT, Stack, snake, template

SETTINGS: dict[str, type[Settings]] = {
    "CollectSearchLogs": CollectSettings,
    "CheckHealth": HealthSettings,
    "CheckAvailability": AvailabilitySettings,
    "HandleInterruption": AvailabilitySettings,
    "KeepLedger": Settings,
    "ExamineAccount": ExamineSettings,
}
CHECKERS = ("CheckHealth", "CheckAvailability")


def test_every_function_has_its_file_and_every_file_its_function() -> None:
    functions = Stack.with_parameters(JOBS).functions()
    files = {path.parent.name for path in (ROOT / "functions").glob("*/app.py")}
    assert {snake(name) for name in functions} == files
    assert {Path(function["CodeUri"]).name for function in functions.values()} == files
    assert all(function["CodeUri"] == f"functions/{snake(n)}" for n, function in functions.items())


def test_every_variable_that_is_set_is_read_and_accepted_and_the_reverse(stack: Stack) -> None:
    for name, settings in SETTINGS.items():
        variables = stack.functions()[name]["Environment"]["Variables"]
        ours = {key for key in variables if not key.startswith("POWERTOOLS_")}
        assert ours == {field.alias for field in settings.model_fields.values()}, name
        settings.parse({key: str(value) for key, value in variables.items()})


def test_a_function_ends_before_the_lease_that_it_holds(stack: Stack) -> None:
    assert template()["Globals"]["Function"]["Timeout"] < LEASE_LIFETIME.total_seconds()
    longer = {name for name, it in stack.functions().items() if "Timeout" in it}
    # It only reads.
    assert longer == {"ExamineAccount"}


def test_what_fails_for_good_is_kept(stack: Stack) -> None:
    for name in (*CHECKERS, "HandleInterruption", "KeepLedger", "ExamineAccount"):
        config = stack.functions()[name]["EventInvokeConfig"]["DestinationConfig"]
        assert config["OnFailure"] == {"Type": "SQS", "Destination": "FailedInvocations.Arn"}, name


def test_a_chain_of_wake_ups_is_not_stopped_as_a_recursive_loop(stack: Stack) -> None:
    recursive = {name: it.get("RecursiveLoop") for name, it in stack.functions().items()}
    assert recursive.pop("CheckAvailability") == "Allow"
    assert set(recursive.values()) == {None}


def test_a_wake_up_is_a_turn_and_waits_for_no_other(stack: Stack) -> None:
    events = stack.functions()["CheckAvailability"]["Events"]
    [source] = [event["Properties"] for event in events.values() if event["Type"] == "SQS"]
    assert source["Queue"] == "WakeUpQueue.Arn"
    assert "MaximumBatchingWindowInSeconds" not in source
    for name in (*CHECKERS, "HandleInterruption"):
        variables = stack.functions()[name]["Environment"]["Variables"]
        assert variables["WAKE_UP_QUEUE_URL"] == "WakeUpQueue"


def test_an_event_is_tried_again_only_while_it_is_news(stack: Stack) -> None:
    invoke = stack.functions()["HandleInterruption"]["EventInvokeConfig"]
    assert invoke["MaximumEventAgeInSeconds"] <= 120


@pytest.mark.parametrize("name", CHECKERS)
def test_a_checker_runs_every_minute_and_is_not_repeated(stack: Stack, name: str) -> None:
    function = stack.functions()[name]
    [schedule] = [it for it in function["Events"].values() if it["Type"] == "ScheduleV2"]
    assert schedule["Properties"]["ScheduleExpression"] == "rate(1 minute)"
    # SAM's own name for it would be the same in every stack of the account.
    assert schedule["Properties"]["Name"].startswith("ocr-")
    # A schedule's name has 64 letters at most, and a stack's should have room for a few words.
    assert len(schedule["Properties"]["Name"]) - len("ocr") <= 64 - 50
    assert function["EventInvokeConfig"]["MaximumRetryAttempts"] == 0


def test_the_ledger_is_kept_as_often_as_it_says_that_it_is(stack: Stack) -> None:
    events = stack.functions()["KeepLedger"]["Events"].values()
    [schedule] = [it["Properties"] for it in events if it["Type"] == "ScheduleV2"]
    minutes = int(wiring.LEDGER_EVERY.total_seconds()) // 60
    assert schedule["ScheduleExpression"] == f"rate({minutes} minutes)"
    assert schedule["Name"] == "ocr-keep-ledger"


def test_the_own_layer_is_the_package_and_nothing_else() -> None:
    layer = template()["Resources"]["SpotkeeperLayer"]
    assert layer["Properties"]["RetentionPolicy"] == "Delete"
    visible = [path.name for path in (ROOT / "layers/spotkeeper").iterdir() if path.name[0] != "."]
    assert [name for name in visible if name != "__pycache__"] == ["spotkeeper"]


def test_new_accounts_have_concurrency_for_ten_invocations(stack: Stack) -> None:
    sources = [
        event["Properties"]["ScalingConfig"]["MaximumConcurrency"]
        for function in stack.functions().values()
        for event in function["Events"].values()
        if event["Type"] == "SQS"
    ]
    # Three queues and two schedules leave some for events. Only a stack of more than five fleets
    # uses the queue of further health turns.
    assert sum(sources) + 2 <= 8
    assert not any("ReservedConcurrentExecutions" in it for it in stack.functions().values())


def test_checkers_keep_concurrency_where_the_account_has_enough() -> None:
    """A hundred of the 120 that it asks for are left."""
    functions = Stack.with_parameters({**ADOPT, "ReserveConcurrency": "true"}).functions()
    reserved = {name: it.get("ReservedConcurrentExecutions") for name, it in functions.items()}
    kept = {"CheckHealth": 4, "CheckAvailability": 6, "HandleInterruption": 10}
    assert {name: count for name, count in reserved.items() if count} == kept
    for name, function in functions.items():
        for event in function["Events"].values():
            if scaling := event["Properties"].get("ScalingConfig"):
                # The tick needs one beside the queue's.
                assert scaling["MaximumConcurrency"] < (reserved[name] or 10)
