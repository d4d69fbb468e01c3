"""Functions, their files, their environment, and where their failures go."""

from typing import Any

import pytest

from spotkeeper import wiring
from spotkeeper.adapters.dynamodb.leases import LEASE_LIFETIME
from spotkeeper.border.settings import (
    AvailabilitySettings,
    CollectSettings,
    ExamineSettings,
    HealthSettings,
    Settings,
)
from spotkeeper.turns.keep_jobs import STEPS_S
from spotkeeper.turns.turn import ASK_UNTIL_S
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
    assert all(function["CodeUri"] == f"functions/{snake(n)}" for n, function in functions.items())


def test_every_variable_that_is_set_is_read_and_accepted_and_the_reverse(stack: Stack) -> None:
    for name, settings in SETTINGS.items():
        variables = stack.functions()[name]["Environment"]["Variables"]
        ours = {key for key in variables if not key.startswith("POWERTOOLS_")}
        assert ours == {field.alias for field in settings.model_fields.values()}, name
        settings.parse({key: str(value) for key, value in variables.items()})


def test_a_function_ends_before_the_lease_that_it_holds(stack: Stack) -> None:
    assert template()["Globals"]["Function"]["Timeout"] < LEASE_LIFETIME.total_seconds()
    # One only reads, and a job takes no step so late that its answer would arrive after the lease.
    longer = {name for name, it in stack.functions().items() if "Timeout" in it}
    assert longer <= {"ExamineAccount", "KeepJobs"}
    slowest: Any = wiring.LAUNCH
    slowest_s = slowest.connect_timeout + slowest.read_timeout
    assert ASK_UNTIL_S + slowest_s < LEASE_LIFETIME.total_seconds()
    assert STEPS_S + slowest_s < stack.functions().get("KeepJobs", {"Timeout": 60})["Timeout"]


@pytest.mark.parametrize("of", ["an instance", "a wake-up"])
def test_what_is_requested_last_is_remembered_though_every_call_hangs(of: str) -> None:
    """The last request and the memory that is written after it hang in each of their tries."""
    requested = wiring.REQUESTED if of == "an instance" else wiring.SENT_AGAIN
    worst_s = sum(map(longest_s, (requested, wiring.TABLE)))
    assert ASK_UNTIL_S + worst_s < template()["Globals"]["Function"]["Timeout"]


def longest_s(config: Any) -> float:
    """How long a call takes that is never answered: the waits of a retry are below 1, 2, 4 s."""
    tries = config.retries["total_max_attempts"]
    pauses_s = 2.0 ** (tries - 1) - 1
    return float(tries * (config.connect_timeout + config.read_timeout) + pauses_s)


def test_final_failures_are_kept_and_events_are_retried_only_while_fresh(stack: Stack) -> None:
    events = stack.sources("ScheduleV2") + stack.sources("EventBridgeRule")
    for name in {name for name, _ in events}:
        config = stack.functions()[name]["EventInvokeConfig"]
        kept = {"Type": "SQS", "Destination": "FailedInvocations.Arn"}
        assert config["DestinationConfig"]["OnFailure"] == kept, name
    for name, _ in stack.sources("EventBridgeRule"):
        assert stack.functions()[name]["EventInvokeConfig"]["MaximumEventAgeInSeconds"] <= 120


def test_a_chain_of_wake_ups_is_not_stopped_as_a_recursive_loop(stack: Stack) -> None:
    recursive = {name: it.get("RecursiveLoop") for name, it in stack.functions().items()}
    assert recursive.pop("CheckAvailability") == "Allow"
    assert set(recursive.values()) == {None}


def test_a_wake_up_is_a_turn_and_waits_for_no_other(stack: Stack) -> None:
    [source] = [it for name, it in stack.sources("SQS") if name == "CheckAvailability"]
    assert source["Queue"] == "WakeUpQueue.Arn"
    assert "MaximumBatchingWindowInSeconds" not in source
    for name in (*CHECKERS, "HandleInterruption"):
        variables = stack.functions()[name]["Environment"]["Variables"]
        assert variables["WAKE_UP_QUEUE_URL"] == "WakeUpQueue"


def test_a_checker_runs_every_minute_and_is_not_repeated(stack: Stack) -> None:
    """Nor is anything else that a schedule runs; the ledger is kept as often as it says."""
    schedules = stack.sources("ScheduleV2")
    rates = {name: schedule["ScheduleExpression"] for name, schedule in schedules}
    assert {rates[name] for name in CHECKERS} == {"rate(1 minute)"}
    minutes = int(wiring.LEDGER_EVERY.total_seconds()) // 60
    assert rates["KeepLedger"] == f"rate({minutes} minutes)"
    for name, schedule in schedules:
        # SAM's own name for it would be the same in every stack of the account.
        assert schedule["Name"].startswith("ocr-")
        # A schedule's name has 64 letters at most, and a stack's should have room for a few words.
        assert len(schedule["Name"]) - len("ocr") <= 64 - 50
        assert stack.functions()[name]["EventInvokeConfig"]["MaximumRetryAttempts"] == 0


def test_the_own_layer_is_the_package_and_nothing_else() -> None:
    layer = template()["Resources"]["SpotkeeperLayer"]
    assert layer["Properties"]["RetentionPolicy"] == "Delete"
    visible = [path.name for path in (ROOT / "layers/spotkeeper").iterdir() if path.name[0] != "."]
    assert [name for name in visible if name != "__pycache__"] == ["spotkeeper"]


def test_new_accounts_have_concurrency_for_ten_invocations(stack: Stack) -> None:
    found = sum(it["ScalingConfig"]["MaximumConcurrency"] for _, it in stack.sources("SQS"))
    # Three queues and two schedules leave some for events. Only a stack of more than five fleets
    # uses the queue of further health turns.
    assert found + 2 <= (10 if "KeepJobs" in stack.functions() else 8)
    assert not any("ReservedConcurrentExecutions" in it for it in stack.functions().values())


def test_checkers_keep_concurrency_where_the_account_has_enough() -> None:
    """A hundred of the 120 that it asks for are left."""
    stack = Stack.with_parameters({**ADOPT, "ReserveConcurrency": "true"})
    reserved = {n: it.get("ReservedConcurrentExecutions") for n, it in stack.functions().items()}
    kept = {"CheckHealth": 4, "CheckAvailability": 6, "HandleInterruption": 10}
    assert {name: count for name, count in reserved.items() if count} == kept
    for name, source in stack.sources("SQS"):
        # The tick needs one beside the queue's.
        assert source["ScalingConfig"]["MaximumConcurrency"] < (reserved[name] or 10)
