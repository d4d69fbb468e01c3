"""Markets: questions, windows, files and the errors of files that are not markets."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper_lab.traces.market import (
    Market,
    MarketError,
    MarketFileError,
    market_of,
    market_text,
    read_market,
    region_of,
    write_market,
)
from tests.laws import rows

GOOD = "time_s,pool,capacity\n0,a/g,2\n0,b/g,0\n60,b/g,3\n90,a/g,1\n120,,\n"


def write(folder: Path, text: str | bytes, name: str = "m.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(("start", "length"), [(0, 121), (100, 21), (-1, 10), (0, 0)])
def test_a_window_that_does_not_fit_is_refused(start: float, length: float) -> None:
    with pytest.raises(MarketError, match="does not fit"):
        market_of("m", 120.0, {"a/g": [(0.0, 2)]}).window(start, length)


@pytest.mark.parametrize(
    ("pool", "region"),
    [
        ("us-east-1f/p3.2xlarge", "us-east-1"),
        ("ap-southeast-2a/g5.xlarge", "ap-southeast-2"),
        ("us-gov-west-1b/g4dn.xlarge", "us-gov-west-1"),
        ("eusc-de-east-1a/g6.xlarge", "eusc-de-east-1"),
        ("us-west-2-lax-1a/g5.xlarge", "us-west-2"),
        ("us-east-1/any", "us-east-1"),
        ("us-central1-a/a3-highgpu-1g", "us-central1"),
        ("northamerica-northeast1-b/v100", "northamerica-northeast1"),
        ("any/p3.2xlarge", "any"),
        ("zone-1/g5.xlarge", "zone-1"),
    ],
)
def test_the_zone_of_a_pool_names_its_region(pool: str, region: str) -> None:
    assert region_of(pool) == region


def test_one_region_of_a_market_is_a_market() -> None:
    pools = ("us-east-1a/g", "us-west-2a/g", "us-east-1b/g")
    whole = market_of("m", 60.0, {pool: [(0.0, n)] for n, pool in enumerate(pools)})
    assert whole.regions == ("us-east-1", "us-west-2")
    east = whole.within("us-east-1")
    assert [(change.pool, change.capacity) for change in east.changes()] == [
        ("us-east-1a/g", 0),
        ("us-east-1b/g", 2),
    ]
    assert (east.name, east.end_s, east.regions) == ("m (us-east-1)", 60.0, ("us-east-1",))


def test_gzip_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    text = "\ufeff" + GOOD.replace("\n", "\r\n")
    path = write(tmp_path, gzip.compress(text.encode()), "m.csv.gz")
    assert read_market(path) == read_market(write(tmp_path, GOOD))


def test_prices_are_an_extra_column(tmp_path: Path) -> None:
    text = "time_s,pool,capacity,price\n0,a,2,0.3\n60,a,2,0.5\n120,,,\n"
    priced = read_market(write(tmp_path, text))
    assert priced.has_prices
    assert priced.of("a").prices == (0.3, 0.5)
    assert priced.window(61, 9).of("a").prices == (0.5,)
    assert market_text(priced) == text


HEAD = "time_s,pool,capacity\n"
BAD: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "is empty"),
    "only a header": (HEAD, "line 1: no rows"),
    "no header": ("0,a,1\n60,,\n", "line 1: unknown column '0'"),
    "unknown column": ("time_s,pool,capacty\n", "line 1: .*did you mean 'capacity'"),
    "missing column": ("time_s,pool\n", "line 1: .*lacks the column 'capacity'"),
    "column twice": ("time_s,pool,capacity,pool\n", "line 1: .*twice"),
    "time not first": ("pool,time_s,capacity\n", "line 1: the first column"),
    "unsorted": (HEAD + "0,a,1\n60,a,2\n30,a,1\n90,,\n", "line 4: time_s goes back from 60 to 30"),
    "negative capacity": (HEAD + "0,a,-1\n60,,\n", "line 2: capacity is '-1'"),
    "fraction": (HEAD + "0,a,1.5\n60,,\n", "line 2: capacity is '1.5'"),
    "no number": (HEAD + "0,a,many\n60,,\n", "line 2: capacity is 'many'"),
    "not finite": (HEAD + "nan,a,1\n60,,\n", "line 2: time_s is 'nan'"),
    "no pool": (HEAD + "0,,1\n60,,\n", "line 2: no pool"),
    "short row": (HEAD + "0,a\n60,,\n", "line 2: 2 fields where the header has 3"),
    "no end": (HEAD + "0,a,1\n60,a,2\n", "line 3: no end row"),
    "row after the end": (HEAD + "0,a,1\n60,,\n70,a,1\n", "line 4: a row follows the end row"),
    "end at the start": (HEAD + "0,a,1\n0,,\n", "line 3: .*no length"),
    "late pool": (HEAD + "0,a,1\n60,b,1\n90,,\n", "line 3: pool 'b' starts at 60 s but the market"),
    "two rows at once": (HEAD + "0,a,1\n0,a,2\n90,,\n", "line 3: pool 'a' has two rows at 0 s"),
    "bad price": ("time_s,pool,capacity,price\n0,a,1,x\n9,,,\n", "line 2: price is 'x'"),
    "huge line": (HEAD + "0,a," + "1" * 10_000 + "\n9,,\n", "line 2: the line is longer"),
    "milliseconds": (HEAD + "0,a,1\n86400000,,\n", "line 3: the market lasts 1,000 days, more"),
    "open quote": (HEAD + '0,"a,1\n9,,\n', "is not CSV"),
    "no text": (HEAD.encode() + b"\xff\xfe\n", "line 2: is not UTF-8"),
    "half.gz": (gzip.compress(GOOD.encode(), mtime=0)[:-20], "is called .gz"),
    "plain.gz": (GOOD.encode(), "is called .gz"),
    "nothing.gz": (b"", "is empty"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, name: str) -> None:
    text, problem = BAD[name]
    path = write(tmp_path, text, name)
    with pytest.raises(MarketFileError, match=problem) as caught:
        read_market(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(
    ("pool", "end_s", "problem"),
    [
        *(
            (pool, 60.0, "cannot stand in a file; name it")
            for pool in ("a,b", 'a"b', "a\nb", " a", "")
        ),
        ("a", 86.4e6, "1,000 days is too long"),
    ],
)
def test_a_market_that_no_file_can_hold_is_not_written(
    tmp_path: Path, pool: str, end_s: float, problem: str
) -> None:
    with pytest.raises(MarketError, match=problem):
        write_market(market_of("m", end_s, {pool: [(0.0, 1)]}), tmp_path / "m.csv")
    assert not list(tmp_path.iterdir())


def _steps(drawn: list[bytes]) -> list[tuple[float, int]]:
    changes = {1.0 + int.from_bytes(row[:2]) % 500: row[2] % 10 for row in drawn}
    return [(0.0, 1), *sorted(changes.items())]


steps = rows(3, max_size=12).map(_steps)
markets = st.lists(steps, min_size=1, max_size=3).map(
    lambda pools: market_of("m", 600.0, dict(zip(("a/g", "b/g", "c/h"), pools, strict=False)))
)


@given(market=markets)
def test_a_market_survives_its_file(
    tmp_path_factory: pytest.TempPathFactory, market: Market
) -> None:
    path = tmp_path_factory.getbasetemp() / "m.csv.gz"
    write_market(market, path)
    assert read_market(path) == market


@given(
    market=markets, start=st.integers(0, 400), length=st.integers(1, 200), at=st.integers(0, 199)
)
def test_a_window_holds_what_the_market_held(
    market: Market, start: int, length: int, at: int
) -> None:
    window = market.window(start, length)
    for pool in market.pools:
        assert window.capacity(pool, min(at, length - 1)) == market.capacity(
            pool, start + min(at, length - 1)
        )


@given(market=markets)
def test_the_changes_tell_the_whole_market(market: Market) -> None:
    held: dict[str, int] = {}
    for change in market.changes():
        held[change.pool] = change.capacity
        assert held[change.pool] == market.capacity(change.pool, change.at_s)
