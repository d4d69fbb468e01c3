"""The price of another promise: from the load that the history has, and in the command's words."""

import json
from dataclasses import replace
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.load.history import LoadHistory, Scores
from spotkeeper.domain.settings.sizing import Bounds, Objective
from spotkeeper_operator.aws import OperatorError
from spotkeeper_operator.text import as_json
from spotkeeper_operator.what_if import parse_promise, what_if, what_if_text
from tests.builders import fleet
from tests.laws import series, some

NOW = Objective(wait_s=10, share=0.95)


def history(minutes: int = 180, a_minute: float = 15.0) -> LoadHistory:
    """Requests of 8 s at a random rate around `a_minute`, twice that in one half hour."""
    random = Random(7)
    rates = [a_minute * (2 if 90 <= minute < 120 else 1) for minute in range(minutes)]
    requests = tuple(round(random.gauss(rate, rate**0.5)) for rate in rates)
    work_ms = tuple(8_000 * count for count in requests)
    return LoadHistory(
        next_step=100 + minutes // 5,
        requests=requests,
        work_ms=work_ms,
        scores=Scores(start_up_s=240.0),
    )


def promised(spot_max: int = 50) -> Fleet:
    bounds = Bounds(spot_min=0, spot_max=spot_max, on_demand_max=0)
    return replace(fleet(), objective=NOW, bounds=bounds)


# Sized for the looser promise alone, the cheapest rule costs 3.0 worker-hours in place of 2.7.
DEARER = tuple(
    byte % 61
    for byte in b"\x08\x12Gcp\x86\xb5\xc3\xca\xe8\xe8\x167FYc\x81\x86\x91\x9f\xb4\xb7\xdd\x97\x98"
    b"\xaf\xfd3PS\xe6\xf1$,67'=V^^bm\xa8\xc0\xc3\xe4\xf5\x1fGp\xa8\x07I\x97\xce\xdfq\xbe2"
)


@given(
    minutes=series(60, min_size=60, max_size=90),
    longer_s=st.sampled_from([0, 1, 5, 20, 60, 600]),
    less=st.sampled_from([0.0, 0.01, 0.05, 0.2]),
)
@example(minutes=DEARER, longer_s=0, less=0.05)
@some(4, of_many=200)
def test_a_looser_promise_is_never_dearer(
    minutes: tuple[int, ...], longer_s: int, less: float
) -> None:
    bursts = replace(
        history(len(minutes)), requests=minutes, work_ms=tuple(4_000 * each for each in minutes)
    )
    text = f"wait_s={NOW.wait_s + longer_s},share={NOW.share - less}"
    now, loose = what_if(promised(), bursts, text).prices
    assert loose.kept or not now.kept
    assert not now.kept or loose.worker_hours <= now.worker_hours
    assert not loose.kept or loose.in_time >= loose.share - 1e-4


def test_a_bound_that_keeps_no_promise_says_what_it_would_have_needed() -> None:
    found = what_if(promised(spot_max=2), history(), "share=0.9")
    now = found.prices[0]
    assert not now.kept
    assert now.in_time < 0.95
    assert now.unbound_hours is not None
    assert now.unbound_hours > now.worker_hours
    text = what_if_text([found])
    assert "With these bounds no rule keeps 0.95 within 10 s." in text
    assert f"Without bounds.spot_max: {now.unbound_hours:.1f} worker-hours." in text


def test_the_answer_has_a_row_for_each_promise_and_fits_80_columns() -> None:
    found = [what_if(promised(), history(), "wait_s=60,share=0.8")]
    lines = what_if_text(found).splitlines()
    assert lines[0].startswith("ocr: the last 2.8 h, ")
    assert [line.split("  ")[0] for line in lines[2:4]] == ["0.95 within 10 s", "0.8 within 60 s"]
    assert lines[4].startswith("The second promise costs -")
    assert max(map(len, lines)) <= 80
    (fleet_found,) = json.loads(as_json(fleets=found))["fleets"]
    assert [each["wait_s"] for each in fleet_found["prices"]] == [10, 60]


def test_a_fleet_on_its_own_machines_pays_for_none_of_them() -> None:
    own = replace(history(), scores=Scores(start_up_s=240.0, onprem=9))
    assert what_if(promised(), own, "share=0.9").prices[0].worker_hours == 0


def test_an_omitted_part_of_a_promise_stays_and_an_unknown_one_is_refused() -> None:
    assert parse_promise("share=0.9", NOW) == replace(NOW, share=0.9)
    assert parse_promise("wait_s=30, share=0.9", NOW) == replace(NOW, wait_s=30.0, share=0.9)
    wrong = ("", "wait=30", "wait_s", "wait_s=soon", "share=1", "share=0", "wait_s=-1", "share=nan")
    for text in wrong:
        with pytest.raises(OperatorError, match=r"wait_s"):
            parse_promise(text, NOW)
    with pytest.raises(OperatorError, match="less than half an hour"):
        what_if(promised(), history(minutes=10), "share=0.9")
