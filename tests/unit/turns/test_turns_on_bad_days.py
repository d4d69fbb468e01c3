"""Bad days of the search logs, from the queue's messages to what the turn asks for.

Each holds or degrades as docs/bad-days.md says: never in on missing data, never beyond the bound.
"""

from dataclasses import replace

import pytest

from spotkeeper_lab.fakes import instant
from tests.builders import judged
from tests.unit.turns.stage import Workday

SPOT_MAX = 30
# Requests of two seconds, of which four workers serve this many a second at 90 %.
RATE = 1.8


def a_day(*, objective: bool = True, service_s: float = 2.0, onprem: int = 0) -> Workday:
    """A day of a fleet of four instances, sized by either rule."""
    day = Workday(4, service_s=service_s, objective=objective, spot_max=SPOT_MAX)
    day.fleet = replace(day.fleet, onprem_workers=onprem)
    return day


def rack(count: int, release: str = "rack") -> list[str]:
    return [f"{release}-{n}" for n in range(count)]


@pytest.mark.parametrize(("objective", "ahead_s"), [(False, 240.0), (True, 36_000.0)])
def test_clocks_that_are_ahead_are_put_right(objective: bool, ahead_s: float) -> None:
    right, ahead = a_day(objective=objective), a_day(objective=objective)
    ahead.behind_s = -ahead_s
    for each in (right, ahead):
        each.pass_minutes(20, RATE)
    assert ahead.desired == right.desired


def test_clocks_hours_behind_hold_the_fleet_and_ring() -> None:
    """Local time that is written as UTC: every log seems long over, though workers are full."""
    day = a_day()
    day.behind_s = 5 * 3600.0
    day.pass_minutes(20, 2.0)
    assert (day.sized.rule, set(day.desired)) == ("stale search logs", {4})
    assert "stale-search-logs" in day.sized.alarms
    assert "arrived over 15 min late: are the workers' clocks right?" in day.sized.reason


def test_replayed_messages_change_nothing() -> None:
    day = a_day()
    day.pass_minutes(20, RATE)
    (before,) = day.turn(day.minute).records
    flood = day.messages * 3
    day.random.shuffle(flood)
    later = [replace(m, sent_at=instant(day.now_s)) for m in day.messages[-40:]]
    for messages in (flood, later):
        day.deliver(messages)
    (after,) = day.turn(day.minute).records
    assert after.health == before.health
    assert day.cloud.group("spot").desired == day.desired[-1]


def test_a_flood_of_forged_logs_ends_at_the_bound_and_lowers_nothing() -> None:
    """Where it is known how many workers are on premises."""
    day = a_day(onprem=1)
    day.pass_minutes(15, RATE)
    for n in range(50):
        day.send([day.log(f"forged-{n}-{k}", day.now_s - k, 60.0) for k in range(60)])
    for _ in range(3):
        day.pass_minutes(1, RATE)
        assert day.desired[-1] <= max(2 * day.desired[-2], day.desired[-2] + 10)
    assert day.desired[-1] == SPOT_MAX
    assert day.desired == sorted(day.desired)


def test_one_log_of_a_day_is_not_a_day_of_load() -> None:
    """It drove a fleet of nine to forty: its worker can have served no more than the window."""
    day = a_day(objective=False)
    day.pass_minutes(30, RATE)
    before = day.desired[-1]
    day.send([day.log(day.spot[0], day.now_s, 86_390.0)])
    day.pass_minutes(10, RATE)
    assert max(day.desired[30:]) <= before + 2


def with_machines_of_its_own() -> Workday:
    """A day on which six on-premises workers and the cloud's served eight erlangs for long."""
    day = a_day(onprem=6)
    day.onprem = rack(6)
    day.pass_minutes(36, 4.0)
    return day


def test_a_cluster_that_dies_at_once_is_alarmed_about_and_made_up_for() -> None:
    day = with_machines_of_its_own()
    before, day.onprem = day.desired[-1], ()
    # Eight erlangs for what is left: half of them wait.
    day.pass_minutes(10, 4.0)
    assert judged(day.sized).on_prem_workers_suspect == 6
    assert "onprem-workers" in day.sized.alarms
    assert min(day.desired[36:]) >= before
    assert before < day.desired[-1] <= SPOT_MAX


def test_a_cloud_that_dies_at_once_is_replaced_within_the_budget_and_made_no_smaller() -> None:
    day = with_machines_of_its_own()
    before = day.desired[-1]
    for _ in range(20):
        day.hung |= {*day.spot}
        day.pass_minutes(1, 4.0)
    assert day.replaced == day.fleet.worker_health.replacements_per_hour
    assert min(day.desired[36:]) >= before
    assert max(day.desired) <= SPOT_MAX


@pytest.mark.parametrize("service_s", [10.0, 42.0])
def test_on_premises_workers_restarted_under_new_ids_end_no_instance(service_s: float) -> None:
    """Old ids stay in the window for minutes; all of the cloud's workers were ended for them."""
    day = a_day(service_s=service_s)
    day.onprem = rack(20, "one")
    day.pass_minutes(40, 24.0 / service_s)
    before, day.onprem = day.desired[-1], rack(20, "two")
    day.pass_minutes(20, 24.0 / service_s)
    assert before > 3
    # By then its shadows may know a cheaper rule: the load of 24 is served with some to spare.
    assert min(day.desired[40:]) >= min(before - 2, 24 + 2 - 20)
    assert max(day.desired[40:]) <= before + 3


def test_more_workers_on_premises_are_used_before_the_cloud_once_they_have_stayed() -> None:
    day = a_day()
    day.onprem = rack(4)
    day.pass_minutes(30, 3.0)
    before, day.onprem = day.desired[-1], rack(12)
    day.pass_minutes(6, 3.0)
    assert day.desired[-1] == before > 0
    day.pass_minutes(24, 3.0)
    assert day.desired[-1] == 0


def test_one_request_that_waited_long_by_itself_is_no_queue() -> None:
    """A lost worker's request returns after its visibility timeout: 5 workers became 20."""
    day = a_day()
    day.pass_minutes(60, RATE)
    before = day.desired[-1]
    for _ in range(3):
        day.send([day.log(day.spot[0], day.now_s - 0.1, 0.1, waited_s=900.0)])
        day.pass_minutes(1, RATE)
    assert set(day.desired[60:]) == {before}


def test_requests_that_fail_at_once_are_no_reason_to_shrink() -> None:
    """A dependency is down: twenty milliseconds each, and clients go on asking."""
    day = a_day()
    day.pass_minutes(40, RATE)
    before = day.desired[-1]
    for _ in range(30):
        ends = [day.now_s + second for second in range(0, 60, 5)]
        day.pass_minutes(1)
        day.send([day.log(i, end_s, 0.02, status="error") for end_s in ends for i in day.spot])
    assert day.desired[-1] == before
    assert "requests failed, so the real load is not known" in day.sized.reason
