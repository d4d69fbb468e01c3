"""What a machine is in, and what becomes of its hooks: tables, stories and laws."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper_worker.agent.hooks import Call, HookMemory, HookPolicy, after, calls, watch_target
from spotkeeper_worker.agent.loop import bytes_loaded
from spotkeeper_worker.states import TARGETS, Hook, Leave, Seen, State, Workers, leaving, state_of

ALL = Workers(expected=2, ready=("a", "b"))
ONE = Workers(expected=2, ready=("a",), not_ready=("b",))
BUSY = Workers(expected=2, ready=("a", "b"), busy=1)
WELL, STOPPED, ILL = "", "stopping", "gpu: Xid 79 of PCI:0"

LEAVES = [
    (Seen(), WELL, None),
    (Seen(target="InService"), WELL, None),
    (Seen(target="InService", rebalance=True), WELL, None),
    (Seen(target="InService", taken_at=200.0), WELL, Leave("interruption", 200.0, 200.0)),
    (Seen(target="InService", tagged_until=200.0), WELL, Leave("tagged", 200.0, 200.0)),
    (Seen(target="Detached", tagged_until=200.0), WELL, Leave("tagged", 200.0, 200.0)),
    (Seen(taken_at=300.0, tagged_until=200.0), WELL, Leave("interruption", 200.0, 200.0)),
    # Tags are off: the notice of EC2 alone says until when a detached machine serves.
    (Seen(target="Detached", taken_at=300.0), WELL, Leave("interruption", 300.0, 300.0)),
    (
        Seen(target="InService", maintenance=(300.0, "system-reboot")),
        WELL,
        Leave("maintenance: system-reboot", 300.0, 300.0),
    ),
    (Seen(target="Detached"), WELL, Leave("detached")),
    (Seen(target="Standby"), WELL, Leave("standby")),
    (Seen(target="Terminated"), WELL, Leave("terminated")),
    (Seen(target="Terminated", taken_at=300.0), WELL, Leave("terminated", 300.0)),
    (Seen(target="Warmed:Stopped"), WELL, Leave("warmed")),
    (Seen(target="Warmed:Running"), WELL, Leave("warmed")),
    (Seen(target="Warmed:Hibernated"), WELL, Leave("warmed")),
    (Seen(target="Warmed:Terminated"), WELL, Leave("terminated")),
    # The machine itself says so: at once, also where a warning would leave it some time.
    (Seen(target="InService"), STOPPED, Leave("stopping")),
    (Seen(target="InService", taken_at=9.0), STOPPED, Leave("stopping", 9.0)),
    (Seen(target="InService", taken_at=9.0), ILL, Leave("gpu: Xid 79 of PCI:0", 9.0)),
]


@pytest.mark.parametrize(("seen", "own", "leave"), LEAVES)
def test_a_machine_leaves_for_a_reason(seen: Seen, own: str, leave: Leave | None) -> None:
    assert leaving(seen, own, rebalance_drains=False) == leave
    # A recommendation to rebalance drains only where that is set.
    if seen.rebalance:
        assert leaving(seen, own, rebalance_drains=True) == Leave("rebalance recommendation")


TERMINATED = Leave("terminated")
WARMED = Leave("warmed")

STEPS = [
    (State.BOOTING, None, ONE, False, State.BOOTING),
    (State.BOOTING, None, ALL, False, State.SERVING),
    # A worker that starts again does not keep the others from serving.
    (State.SERVING, None, ONE, False, State.SERVING),
    (State.SERVING, TERMINATED, BUSY, False, State.DRAINING),
    (State.SERVING, TERMINATED, ALL, True, State.IDLE),
    (State.GONE, TERMINATED, ALL, True, State.GONE),
    # Into the warm pool: loaded, and not serving.
    (State.BOOTING, WARMED, ONE, False, State.BOOTING),
    (State.BOOTING, WARMED, ALL, False, State.READY),
    (State.READY, None, ALL, False, State.SERVING),
    # Back to the pool, from serving.
    (State.SERVING, WARMED, BUSY, False, State.DRAINING),
    (State.SERVING, WARMED, ALL, True, State.IDLE),
    # A warning that was taken back.
    (State.DRAINING, None, ONE, False, State.SERVING),
    (State.IDLE, None, ALL, True, State.SERVING),
    # A machine that was stopped and started finds its earlier state.
    (State.GONE, None, ONE, False, State.BOOTING),
]


@pytest.mark.parametrize(("before", "leave", "workers", "settled", "after"), STEPS)
def test_a_state_follows_another(
    before: State, leave: Leave | None, workers: Workers, settled: bool, after: State
) -> None:
    served = before in (State.SERVING, State.DRAINING, State.IDLE)
    assert state_of(before, leave, workers, settled, served=served) is after


def test_workers_that_are_not_ready_are_named() -> None:
    found = Workers(expected=3, not_ready=("a",))
    assert found.missing() == (
        "a has not called ready(), or its probe fails; 2 of 3 workers are not running"
    )


# --- hooks ----------------------------------------------------------------------------------------


POLICY = HookPolicy(timeout_s=120, drain_at_most_s=600)
READY = Call(Hook.READY)
DRAIN = Call(Hook.DRAIN)
BEAT = Call(Hook.DRAIN, heartbeat=True)

STORIES = [
    # ready, idle
    ("InService", 0, False, False, []),
    ("InService", 0, True, False, [READY]),
    # The launch hook fires on the way into the warm pool too, and again out of it.
    ("Warmed:Stopped", 0, False, False, [BEAT]),
    ("Warmed:Stopped", 0, True, True, [READY, DRAIN]),
    ("Terminated", 0, True, False, [BEAT]),
    ("Terminated", 0, True, True, [DRAIN]),
    # The deadline: whatever still runs is cut off.
    ("Terminated", 600, True, False, [DRAIN]),
    ("Detached", 0, True, True, []),
    ("Standby", 0, True, True, []),
    (None, 0, True, True, []),
]


@pytest.mark.parametrize(("target", "now", "ready", "idle", "expected"), STORIES)
def test_calls_follow_the_target(
    target: str | None, now: float, ready: bool, idle: bool, expected: Sequence[Call]
) -> None:
    memory = watch_target(HookMemory(), target, 0.0)
    assert calls(memory, POLICY, now, ready=ready, idle=idle) == expected


def asked(
    target: str, seconds: Sequence[int], accepted: bool | None, *, loads: int = 0, **state: bool
) -> tuple[list[tuple[int, Call]], HookMemory]:
    """The calls made at these seconds, when every call gets the same answer."""
    memory = watch_target(HookMemory(), target, 0.0)
    made = []
    for now in seconds:
        loaded = min(now, loads) << 20
        for call in calls(memory, POLICY, now, **state, loaded=loaded):
            made.append((now, call))
            memory = after(memory, POLICY, call, accepted, now, loaded)
    return made, memory


def test_a_long_drain_is_kept_waiting_by_half_of_the_time_out() -> None:
    beats, _ = asked("Terminated", range(0, 240, 10), True, ready=True, idle=False)
    assert beats == [(now, BEAT) for now in (0, 60, 120, 180)]


def test_the_launch_hook_is_kept_waiting_while_the_machine_loads() -> None:
    """A pull of ten minutes, then a container that only waits: its hook may run out."""
    state = {"ready": False, "idle": False}
    beats, _ = asked("InService", range(0, 1200, 10), True, loads=600, **state)
    due = [20, *range(80, 620, 60), 620]
    assert beats == [(now, Call(Hook.READY, heartbeat=True)) for now in due]
    memory = watch_target(HookMemory(), "InService", 0.0)
    assert calls(memory, POLICY, 3600.0, **state, loaded=1 << 40) == []


def test_what_a_machine_has_loaded_is_what_it_received_and_wrote(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    head = "Inter-|   Receive\n face |bytes\n"
    (tmp_path / "net" / "dev").write_text(f"{head}    lo: 999 1\n  eth0:1000 7 0 0\n")
    (tmp_path / "diskstats").write_text(
        "   7 0 loop0 1 2 3 4 5 6 900 8\n 259 0 nvme0n1 1 2 3 4 5 6 10 8 9\n"
    )
    assert bytes_loaded(tmp_path) == 1000 + 10 * 512
    assert bytes_loaded(tmp_path / "none") == 0


def test_a_drain_is_no_longer_than_aws_allows() -> None:
    policies = [HookPolicy(*given) for given in ((120, 600), (30, 172_800), (7200, 1e9))]
    assert [policy.longest_s for policy in policies] == [600, 3000, 172_800]


def test_no_active_action_is_success_once_the_target_has_stood_for_a_while() -> None:
    """The hook may begin after the target is seen, so the calls are repeated for a minute."""
    made, memory = asked("InService", range(0, 120, 5), False, ready=True, idle=False)
    assert made == [(now, READY) for now in range(0, 70, 10)]
    assert memory.all_done
    # Another target is another hook.
    again = watch_target(memory, "Terminated", 200.0)
    assert calls(again, POLICY, 200.0, ready=True, idle=True) == [DRAIN]


def test_a_refused_call_is_repeated_for_as_long_as_it_takes() -> None:
    made, memory = asked("Terminated", range(0, 3600, 10), None, ready=True, idle=True)
    assert made == [(now, DRAIN) for now in range(0, 3600, 10)]
    assert not memory.all_done


@given(
    target=st.sampled_from([None, *TARGETS]),
    age=st.floats(0, POLICY.longest_s, exclude_max=True),
    ready=st.booleans(),
)
def test_nothing_that_ends_the_machine_is_completed_while_a_request_runs(
    target: str | None, age: float, ready: bool
) -> None:
    memory = watch_target(HookMemory(), target, 0.0)
    assert DRAIN not in calls(memory, POLICY, age, ready=ready, idle=False)
