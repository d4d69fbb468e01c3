"""What a timeline hands to the page: where axes end, gaps, texts that repeat, steps that do not."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper_charts.page import Chart, Series, changed


def chart(*values: float | None, **more: Any) -> Chart:
    t = [float(n) for n in range(len(values))]
    return Chart(
        title="a", unit="", series=[Series(label="a", colour="spot", t=t, values=values)], **more
    )


@pytest.mark.parametrize(
    ("drawn", "end"),
    [
        pytest.param(chart(2.0, 4.0), 4.2, id="a little above the highest"),
        pytest.param(chart(2.0, None, 4.0), 4.2, id="a gap is no value"),
        pytest.param(chart(), 1.05, id="nothing to draw"),
        pytest.param(chart(0.0, 0.0), 1.05, id="nothing but zeros"),
        pytest.param(chart(3.0, whole=True), 3.4, id="whole numbers"),
        pytest.param(chart(300.0, top=20.0), 20.0, id="as it was asked for"),
    ],
)
def test_where_an_axis_ends(drawn: Chart, end: float) -> None:
    assert drawn.end() == pytest.approx(end)


@given(st.lists(st.integers(0, 3)))
def test_a_step_function_without_its_repeats_is_the_same(values: list[int]) -> None:
    t, kept = changed([float(n) for n in range(len(values))], values)
    at = dict(zip(t, kept, strict=True))
    latest, rebuilt = 0.0, []
    for n in range(len(values)):
        latest = at.get(float(n), latest)
        rebuilt.append(latest)
    assert rebuilt == values
    assert all(one != two for one, two in pairwise(kept))
