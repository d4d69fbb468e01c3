"""Pages as text and what a timeline hands to them; what they say cannot become markup."""

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper_charts.page import (
    Block,
    Chart,
    Figure,
    Heading,
    Notes,
    Page,
    Point,
    Row,
    Series,
    Table,
    Text,
    Tiles,
    Timeline,
    changed,
    page_html,
    scatter,
)

HOSTILE = "<script>alert('&')</script>"


def html(*blocks: Block) -> str:
    return page_html(Page(title="A page", blocks=blocks))


def chart(*values: float | None, label: str = "a", **more: Any) -> Chart:
    t = [float(n) for n in range(len(values))]
    drawn = Series(label=label, colour="spot", t=t, values=values)
    return Chart(title=label, unit="", series=[drawn], **more)


def drawn(page: str) -> list[Any]:
    return [json.loads(d) for d in re.findall(r'<script type="application/json">(.*?)</s', page)]


def test_text_cannot_become_markup() -> None:
    blocks: list[Block] = [
        Heading(HOSTILE),
        Text(HOSTILE, HOSTILE),
        Tiles([Figure(label=HOSTILE, value=HOSTILE)]),
        Table(columns=[HOSTILE], rows=[Row(cells=[HOSTILE])]),
        scatter([Point(name=HOSTILE, served=0.9, cost=0.5)]),
        Timeline(
            length_s=10.0,
            charts=[chart(1.0, label=HOSTILE)],
            notes=[Notes(name="why", t=[0.0], texts=[HOSTILE])],
        ),
    ]
    page = page_html(Page(title=HOSTILE, subtitle=HOSTILE, footer=HOSTILE, blocks=blocks))
    assert HOSTILE not in page
    assert page.count("&lt;script&gt;") >= 9
    assert page.count("<script") == page.count("</script>") == 2
    assert drawn(page)[0]["charts"][0]["title"] == HOSTILE


def test_a_row_leads_to_its_instant_and_numbers_stand_right() -> None:
    rows = [Row(cells=("10:00", "3"), at_s=36.5), Row(cells=("10:05", "4"), style="ours")]
    page = html(Table(columns=("time", "count"), numbers=("count",), rows=rows))
    assert (
        '<tr data-at="36.5"><td data-label="time"><button type="button">10:00</button></td>' in page
    )
    ours = '<tr class="ours"><td data-label="time">10:05</td>'
    assert f'{ours}<td data-label="count" class="number">4</td></tr>' in page


def test_a_folded_table_opens_on_click() -> None:
    page = html(Table(caption="Settings", columns=("name",), rows=[], folded=True))
    assert "<details><summary>Settings</summary>" in page
    assert page.count("<details>") == page.count("</details>") == 1


def test_each_timeline_has_its_own_data() -> None:
    page = html(*(Timeline(length_s=length, charts=[chart(1.0)]) for length in (60.0, 120.0)))
    assert [one["length_s"] for one in drawn(page)] == [60.0, 120.0]


@pytest.mark.parametrize(
    ("axis", "end"),
    [
        pytest.param(chart(2.0, 4.0), 4.2, id="a little above the highest"),
        pytest.param(chart(2.0, None, 4.0), 4.2, id="a gap is no value"),
        pytest.param(chart(), 1.05, id="nothing to draw"),
        pytest.param(chart(0.0, 0.0), 1.05, id="nothing but zeros"),
        pytest.param(chart(3.0, whole=True), 3.4, id="whole numbers"),
        pytest.param(chart(300.0, top=20.0), 20.0, id="as it was asked for"),
    ],
)
def test_where_an_axis_ends(axis: Chart, end: float) -> None:
    assert axis.end() == pytest.approx(end)


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
