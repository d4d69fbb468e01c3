"""Pages as text: what blocks become, and that what they say cannot become markup."""

import json
import re
from typing import Any

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
    page_html,
    scatter,
)

HOSTILE = "<script>alert('&')</script>"


def html(*blocks: Block) -> str:
    return page_html(Page(title="A page", blocks=blocks))


def steps(*values: float | None, label: str = "spot") -> Series:
    return Series(
        label=label, colour="spot", t=[float(n) for n in range(len(values))], values=values
    )


def drawn(page: str) -> list[Any]:
    return [json.loads(d) for d in re.findall(r'<script type="application/json">(.*?)</s', page)]


def test_what_is_said_cannot_become_markup() -> None:
    chart = Chart(title=HOSTILE, unit="", series=[steps(1.0, label=HOSTILE)])
    page = page_html(
        Page(
            title=HOSTILE,
            subtitle=HOSTILE,
            footer=HOSTILE,
            blocks=[
                Heading(HOSTILE),
                Text(HOSTILE, HOSTILE),
                Tiles([Figure(label=HOSTILE, value=HOSTILE)]),
                Table(columns=[HOSTILE], rows=[Row(cells=[HOSTILE])]),
                scatter([Point(name=HOSTILE, served=0.9, cost=0.5)]),
                Timeline(
                    length_s=10.0,
                    charts=[chart],
                    notes=[Notes(name="why", t=[0.0], texts=[HOSTILE])],
                ),
            ],
        )
    )
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


def test_a_folded_table_opens_when_asked() -> None:
    page = html(Table(caption="Settings", columns=("name",), rows=[], folded=True))
    assert "<details><summary>Settings</summary>" in page
    assert page.count("<details>") == page.count("</details>") == 1


def test_each_timeline_has_its_own_data() -> None:
    page = html(
        *(
            Timeline(length_s=length, charts=[Chart(title="a", unit="", series=[steps(1.0)])])
            for length in (60.0, 120.0)
        )
    )
    assert [one["length_s"] for one in drawn(page)] == [60.0, 120.0]
