from dataclasses import replace

import pytest

from spotkeeper_lab.endpoint.faults.values import LoseInstances
from spotkeeper_lab.endpoint.story import (
    Moment,
    Promises,
    Scenario,
    Step,
    longest_unasked_s,
    moment,
    released_s,
    served_share,
    verdicts,
)

WHOLE = Moment(
    at_s=0.0,
    spot_desired=3,
    spot_serving=3,
    spot_launching=0,
    on_demand_desired=0,
    on_demand_serving=0,
    spot_running=3,
    on_demand_running=0,
    queued=0,
    served=0,
)
SHORT = replace(WHOLE, spot_serving=2)
ASKED = replace(SHORT, on_demand_desired=1)
FILLED = replace(ASKED, on_demand_serving=1)


def timed(*looks: Moment) -> list[Moment]:
    return [replace(look, at_s=10.0 * number) for number, look in enumerate(looks)]


@pytest.mark.parametrize(
    ("looks", "longest_s"),
    [
        ([WHOLE, WHOLE], 0.0),
        ([WHOLE, SHORT, SHORT, ASKED, FILLED], 10.0),
        ([WHOLE, SHORT, ASKED, WHOLE, SHORT, SHORT, SHORT], 20.0),
        ([WHOLE, replace(SHORT, spot_launching=1)], 0.0),
    ],
)
def test_how_long_a_shortfall_is_not_asked_for(looks: list[Moment], longest_s: float) -> None:
    assert longest_unasked_s(timed(*looks)) == longest_s


def test_the_need_is_served_by_either_kind() -> None:
    assert served_share(timed(WHOLE, SHORT, ASKED, FILLED)) == 0.5


@pytest.mark.parametrize(
    ("looks", "after_s"),
    [([WHOLE, FILLED, FILLED, WHOLE], 10.0), ([FILLED, FILLED], None), ([WHOLE, WHOLE], 0.0)],
)
def test_when_on_demand_is_given_back(looks: list[Moment], after_s: float | None) -> None:
    assert released_s(timed(*looks), 10.0) == after_s


def test_a_warned_or_draining_instance_does_not_serve() -> None:
    def instance(**change: object) -> dict[str, object]:
        one = {"state": "InService", "draining": False, "warned": False, "purchase": "spot"}
        return one | change

    spot = [instance(), instance(warned=True), instance(draining=True), instance(state="Pending")]
    state = {
        "groups": [
            {"purchase": "spot", "desired": 4, "instances": spot},
            {"purchase": "on-demand", "desired": 0, "instances": []},
        ],
        "outside": [instance(draining=True)],
        "workers": {"queued": 2, "served": 7},
    }
    seen = moment(state, 1.0)
    assert (seen.spot_serving, seen.spot_launching, seen.short) == (1, 1, 2)
    assert (seen.spot_running, seen.queued, seen.served) == (5, 2, 7)


def scenario(**promises: object) -> Scenario:
    return Scenario(
        name="x",
        about="x",
        for_s=60.0,
        steps=(Step(at_s=10.0, fault=LoseInstances(do="loss")),),
        promises=Promises.model_validate(promises),
    )


@pytest.mark.parametrize(
    ("promises", "held"),
    [
        ({"asked_within_s": 10}, True),
        ({"asked_within_s": 9}, False),
        ({"served_share": 0.4}, True),
        ({"served_share": 0.5}, False),
        ({"released_within_s": 30}, False),
        ({"on_demand_at_most": 1}, True),
        ({"on_demand_at_most": 0}, False),
        ({"failed_invocations": 2}, True),
        ({"failed_invocations": 1}, False),
    ],
)
def test_promises_are_held_against_what_was_seen(promises: dict[str, object], held: bool) -> None:
    looks = timed(WHOLE, SHORT, SHORT, ASKED, FILLED)
    made = {"failed_invocations": None} | promises
    (verdict,) = verdicts(scenario(**made), looks, failed=2)
    assert verdict.held is held


def test_what_is_not_promised_is_not_judged() -> None:
    assert verdicts(scenario(failed_invocations=None), timed(WHOLE), failed=5) == []
