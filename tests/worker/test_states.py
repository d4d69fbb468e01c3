"""The table of states: what a machine is in, by what its metadata and its workers say."""

import pytest

from spotkeeper_worker.states import Leave, Local, Seen, State, Workers, leaving, state_of

ALL = Workers(expected=2, ready=("a", "b"))
ONE = Workers(expected=2, ready=("a",), not_ready=("b",))
BUSY = Workers(expected=2, ready=("a", "b"), busy=1)
WELL, STOPPED, ILL = Local(), Local(stopping=True), Local(ill="Xid 79 of PCI:0")

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
        Seen(target="InService", maintained_at=300.0, maintenance="system-reboot"),
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


@pytest.mark.parametrize(("seen", "local", "leave"), LEAVES)
def test_when_it_leaves(seen: Seen, local: Local, leave: Leave | None) -> None:
    assert leaving(seen, local, rebalance_drains=False) == leave
    # A recommendation to rebalance drains only where that is set.
    if seen.rebalance:
        assert leaving(seen, local, rebalance_drains=True) == Leave("rebalance recommendation")


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
def test_a_step(
    before: State, leave: Leave | None, workers: Workers, settled: bool, after: State
) -> None:
    served = before in (State.SERVING, State.DRAINING, State.IDLE)
    assert state_of(before, leave, workers, settled, served=served) is after


def test_it_says_who_is_not_ready() -> None:
    assert ONE.missing() == "b has not loaded its model"
    found = Workers(expected=3, not_ready=("a",))
    assert found.missing() == "a has not loaded its model; 2 of 3 workers are not running"
