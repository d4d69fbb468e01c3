"""Public trace formats: what they say, where they end, and the line that cannot be read."""

import json
from pathlib import Path
from typing import Any

import pytest

from spotkeeper_lab.traces.export import pool_name, read_public_traces
from spotkeeper_lab.traces.market import (
    Change,
    MarketError,
    MarketFileError,
    read_market,
    write_market,
)


def write(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def trace(gap: float = 300, data: list[object] | None = None, **metadata: object) -> str:
    return json.dumps({"metadata": {"gap_seconds": gap, **metadata}, "data": data or [0, 4, 4, 2]})


def test_skypilot_json_is_one_pool_per_file(tmp_path: Path) -> None:
    market = read_public_traces(
        [
            write(tmp_path, "us-east-1f_v100_1.json", trace(data=[0, 0, 4, 3])),
            write(tmp_path, "us-east-2a_v100_1.json", trace(data=[4, 4, 4])),
        ],
        "aws",
    )
    assert market.pools == ("us-east-1f/v100_1", "us-east-2a/v100_1")
    assert (market.name, market.end_s) == ("aws", 900)
    assert [change.capacity for change in market.changes()] == [0, 4, 4]
    write_market(market, tmp_path / "aws.csv.gz")
    assert read_market(tmp_path / "aws.csv.gz") == market


def test_a_wrong_step_can_be_corrected(tmp_path: Path) -> None:
    path = write(tmp_path, "z_v100.json", trace())
    assert read_public_traces([path], "m", gap_s=195).end_s == 4 * 195


@pytest.mark.parametrize(("inverted", "capacities"), [(True, [1, 0, 1]), (False, [0, 1, 0])])
def test_inverted_json_needs_its_option(
    tmp_path: Path, inverted: bool, capacities: list[int]
) -> None:
    path = write(tmp_path, "z_v100_1/full.json", trace(data=[0, 1, 0], price_info={"price": 1}))
    with pytest.raises(MarketFileError, match="1 means not available; give --inverted"):
        read_public_traces([path], "m")
    market = read_public_traces([path], "m", inverted=inverted)
    assert market.pools == ("z/v100_1",)
    assert [change.capacity for change in market.changes()] == capacities


SKYNOMAD = (
    "date,availability\n2023-02-15 22:08:16,0\n2023-02-15 22:11:31,1\n2023-02-15 22:14:46,1\n"
)


def test_skynomad_csv_is_laid_on_the_common_time(tmp_path: Path) -> None:
    late = SKYNOMAD.replace("22:08:16,0", "22:09:16,0")
    market = read_public_traces(
        [write(tmp_path, "a_v100_1.csv", SKYNOMAD), write(tmp_path, "b_v100_1.csv", late)], "m"
    )
    # From 22:09:16 to the end of the sample of 22:14:46; the late file's steps are shorter.
    assert market.end_s == 330 + min(195, (195 + 135) / 2)
    assert list(market.changes()) == [
        Change(0, "a/v100_1", 0),
        Change(0, "b/v100_1", 0),
        Change(135, "a/v100_1", 1),
        Change(135, "b/v100_1", 1),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "time,count\n2021-09-17 04:00:00,0.0\n2021-09-17 04:01:00,9.0\n",
        "timestamp,count\n2021-07-26T18:42:00Z,0\n2021-07-26T18:43:00Z,9\n",
    ],
)
def test_bamboo_samples_read_alike(tmp_path: Path, text: str) -> None:
    market = read_public_traces([write(tmp_path, "group.csv", text)], "m")
    assert (market.pools, market.end_s) == (("any/group",), 120)
    assert market.capacity("any/group", 60) == 9


BAMBOO = "0,add,node1\n0,add,node2\n60000,remove,node1\n120000,add,node3\n120000,add,node1\n"


def test_bamboo_events_count_the_nodes(tmp_path: Path) -> None:
    path = write(tmp_path, "p3-trace.csv", BAMBOO)
    market = read_public_traces([path], "m", pool="us-east-1/p3.2xlarge")
    assert market.end_s == 180
    found = [(change.at_s, change.capacity) for change in market.changes()]
    assert found == [(0, 2), (60, 1), (120, 3)]
    late = read_public_traces([write(tmp_path, "t.csv", "60000,add,node1\n")], "m")
    assert late.capacity("any/t", 0) == 0


@pytest.mark.parametrize(
    ("path", "pool"),
    [("us-east-1a_v100_1.json", "us-east-1a/v100_1"), ("x.csv", "any/x"), ("a_b/full.json", "a/b")],
)
def test_a_pool_is_named_by_its_file(path: str, pool: str) -> None:
    assert pool_name(Path(path)) == pool


NEXT_DAY = SKYNOMAD + "2023-02-16 00:00:00"
BROKEN = '{"metadata":\n{"gap_seconds": 1},\n"data": [1,]]}'
BAD_JSON = {
    "no json": (BROKEN, "line 3: is not JSON"),
    "other json": ('{"data": [1]}', "line 1: has no"),
    "no data": ('{"metadata": {"gap_seconds": 1}, "data": []}', "line 1: has no"),
    "no step": (trace(gap=0), "line 1: gap_seconds is 0"),
    "entry": (trace(data=[1, "two"]), r"data\[1\] is 'two'"),
    "negative entry": (trace(data=[1, -1]), r"data\[1\] is -1"),
}
BAD_CSV = {
    "empty": ("", "is empty"),
    "stranger": ("zone,price\n", "line 1: neither a header"),
    "no date": (SKYNOMAD + "yesterday,1\n", "line 5: 'yesterday' is not a date"),
    "no count": (NEXT_DAY + ",many\n", "line 5: 'many' is not a number"),
    "half": (NEXT_DAY + ",0.5\n", "line 5: '0.5' is not a number"),
    "back in time": (SKYNOMAD + "2023-02-15 00:00:00,1\n", "line 5: .* is not after the row"),
    "three fields": (NEXT_DAY + ",1,1\n", "line 5: 3 fields"),
    "one sample": ("date,availability\n2023-02-16 00:00:00,1\n", "fewer than two"),
    "other event": (BAMBOO + "180000,pause,node1\n", "line 6: is not an event"),
    "added twice": (BAMBOO + "180000,add,node1\n", "line 6: add of 'node1', which is there"),
    "never there": (BAMBOO + "180000,remove,x\n", "line 6: remove of 'x', which is not"),
    "events back": (BAMBOO + "90000,remove,node1\n", "line 6: 90000 ms is before"),
    "no milliseconds": (BAMBOO + "-1,add,node9\n", "line 6: '-1' is not a whole number"),
    "quote": ('date,availability\n"2023', "is not CSV"),
    "bytes": (b"date,availability\n\xff\n", "line 2: is not UTF-8"),
}
BAD = [("a.json", *bad) for bad in BAD_JSON.values()] + [
    ("a.csv", *bad) for bad in BAD_CSV.values()
]


@pytest.mark.parametrize(("name", "text", "problem"), BAD, ids=[*BAD_JSON, *BAD_CSV])
def test_the_line_that_cannot_be_read_is_named(
    tmp_path: Path, name: str, text: str | bytes, problem: str
) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(MarketFileError, match=problem) as caught:
        read_public_traces([path], "m")
    assert str(caught.value).startswith(str(path))


def test_files_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    dated, undated = write(tmp_path, "a.csv", SKYNOMAD), write(tmp_path, "b.json", trace())
    later = write(tmp_path, "c.csv", SKYNOMAD.replace("2023", "2024"))
    for paths, problem in (
        ([], "no trace file"),
        ([dated, dated], "a second file for the pool"),
        ([dated, undated], "cannot be laid beside"),
        ([dated, later], "no time in common"),
        ([tmp_path / "none.csv"], "cannot be read"),
    ):
        with pytest.raises(MarketFileError, match=problem):
            read_public_traces(paths, "m")
    with pytest.raises(MarketFileError, match="one pool name"):
        read_public_traces([dated, undated], "m", pool="a/b")


@pytest.mark.parametrize(
    ("name", "option", "problem"),
    [
        ("a.json", {"gap_s": 0.0}, "a step of 0 s has no length"),
        ("a.json", {"gap_s": float("nan")}, "a step of nan s has no length"),
        ("a.json", {"inverted": True}, r"data\[1\] is 4; inverted is 0 or 1"),
        ("a.csv", {"gap_s": 60.0}, "are for JSON files only"),
        ("a.csv", {"inverted": True}, "are for JSON files only"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(
    tmp_path: Path, name: str, option: dict[str, Any], problem: str
) -> None:
    path = write(tmp_path, name, trace() if name.endswith("json") else BAMBOO)
    with pytest.raises(MarketError, match=problem):
        read_public_traces([path], "m", **option)
