"""Market files: a market as CSV, plain or gzip.

``time_s,pool,capacity`` and, where prices are known, ``price`` (spot over on-demand). From
``time_s`` on, ``pool`` can hold ``capacity`` spot instances. Every pool has a row at the common
start; the last row has only a time and ends the market. Times are seconds from the start of the
market; a file that starts later is moved to 0.
"""

import difflib
import gzip
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from spotkeeper_lab.files import name_of, named_apart, read_rows, write_whole
from spotkeeper_lab.traces.market import Market, MarketError, Steps

COLUMNS = ("time_s", "pool", "capacity")
PRICE_COLUMN = "price"
UNNAMEABLE = ',"\r\n'
DAY_S = 86_400.0
# Beyond this a file does not have seconds.
LONGEST_S = 400 * DAY_S


class MarketFileError(MarketError):
    def __init__(self, path: Path | str, line: int | None, problem: str) -> None:
        where = str(path) if line is None else f"{path}, line {line}"
        super().__init__(f"{where}: {problem}")


def write_market(market: Market, path: Path) -> None:
    """Write a market file (gzip when it is called .gz); replaces the file at once or not at all."""
    text = market_text(market).encode()
    try:
        write_whole(path, gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
    except OSError as error:
        raise MarketFileError(path, None, f"cannot be written: {error.strerror}") from error


def market_text(market: Market) -> str:
    """The market as a file has it; raises MarketError for one that could not be read again."""
    for pool in market.pools:
        if not pool or pool != pool.strip() or set(pool) & set(UNNAMEABLE):
            raise MarketError(
                f"the pool {pool!r} cannot stand in a file; name it without comma, quote, line "
                "end, or space around it"
            )
    if market.end_s > LONGEST_S:
        raise MarketError(f"a market of {market.end_s / DAY_S:,.0f} days is too long; 400 are most")
    return "".join(f"{line}\n" for line in _lines(market))


def _lines(market: Market) -> Iterator[str]:
    priced = market.has_prices
    yield ",".join((*COLUMNS, PRICE_COLUMN) if priced else COLUMNS)
    for change in market.changes():
        row = f"{_number(change.at_s)},{change.pool},{change.capacity}"
        yield f"{row},{market.price(change.pool, change.at_s):g}" if priced else row
    yield f"{_number(market.end_s)},," + ("," if priced else "")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def read_markets(paths: Sequence[Path]) -> list[Market]:
    """Read several market files, each called otherwise; one that is named twice is one."""
    return [replace(read_market(path), name=name) for path, name in named_apart(paths).items()]


def read_market(path: Path | str) -> Market:
    """Read a market file (`-`: standard input); raises MarketFileError naming file and line."""
    path = Path(path)
    read = _Rows()
    try:
        for read.line, row in read_rows(path, MarketFileError):
            read.take(row)
        return read.market(name_of(path))
    except MarketFileError:
        raise
    except ValueError as error:
        raise MarketFileError(path, read.line, str(error)) from None


class _Rows:
    """The rows of a market file up to one; raises ValueError for one that cannot stand there."""

    def __init__(self) -> None:
        self.line: int | None = None
        self._columns: list[str] = []
        self._last = -math.inf
        self._end: float | None = None
        self._pools: dict[str, list[tuple[float, int, float]]] = {}

    def take(self, row: list[str]) -> None:
        if not self._columns:
            self._columns = _header(row)
            return
        if self._end is not None:
            raise ValueError("a row follows the end row (the one with only a time); remove it")
        time = _number_of("time_s", row[0], "a number of seconds")
        if time < self._last:
            raise ValueError(f"time_s goes back from {self._last:g} to {time:g}; sort the rows")
        self._last = time
        if any(row[1:]):
            self._take_step(time, row)
        elif not self._pools or time <= self._start:
            raise ValueError("the end row is not after the start; the market has no length")
        else:
            self._end = time

    def _take_step(self, time: float, row: list[str]) -> None:
        if len(row) != len(self._columns):
            raise ValueError(f"{len(row)} fields where the header has {len(self._columns)}")
        fields = dict(zip(self._columns, row, strict=True))
        pool = fields["pool"]
        if not pool:
            raise ValueError("no pool in a row with a capacity")
        known = self._pools.setdefault(pool, [])
        if not known and time != self._start:
            raise ValueError(
                f"pool {pool!r} starts at {time:g} s but the market at {self._start:g} s; "
                "give every pool a row at the common start (capacity 0 where none is known)"
            )
        if known and known[-1][0] == time:
            raise ValueError(f"pool {pool!r} has two rows at {time:g} s; keep one")
        capacity = _number_of("capacity", fields["capacity"], "a whole number")
        if not capacity.is_integer():
            raise ValueError(f"capacity is {fields['capacity']!r}, not a whole number")
        price = _number_of(PRICE_COLUMN, fields.get(PRICE_COLUMN, "0"), "spot over on-demand")
        known.append((time, int(capacity), price))

    @property
    def _start(self) -> float:
        """The first row's time; that of the row at hand where it is the first."""
        first = next(iter(self._pools.values()), None)
        return first[0][0] if first else self._last

    def market(self, name: str) -> Market:
        """The whole file's market."""
        if not self._columns:
            raise ValueError("is empty; a market file has a header and rows")
        if not self._pools:
            raise ValueError("no rows after the header; a market has at least one pool")
        if self._end is None:
            raise ValueError("no end row; the last row must hold only the time the market ends")
        start, length_s = self._start, self._end - self._start
        if length_s > LONGEST_S:
            days = f"{length_s / DAY_S:,.0f} days"
            raise ValueError(f"the market lasts {days}, more than 400; give times in seconds")
        priced = PRICE_COLUMN in self._columns
        steps = tuple(
            Steps(
                tuple(time - start for time, _, _ in rows),
                tuple(capacity for _, capacity, _ in rows),
                tuple(price for _, _, price in rows) if priced else None,
            )
            for rows in self._pools.values()
        )
        return Market(tuple(self._pools), length_s, name, steps)


def _header(row: list[str]) -> list[str]:
    known = (*COLUMNS, PRICE_COLUMN)
    for column in row:
        if column not in known:
            nearest = difflib.get_close_matches(column, known, n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            expected = f"{','.join(COLUMNS)}[,{PRICE_COLUMN}]"
            raise ValueError(
                f"unknown column {column[:40]!r} in the header{hint} (expected {expected})"
            )
    if missing := [column for column in COLUMNS if column not in row]:
        raise ValueError(f"the header lacks the column {missing[0]!r}")
    if len(set(row)) != len(row):
        raise ValueError("the header names a column twice")
    if row[0] != "time_s":
        raise ValueError("the first column must be 'time_s'")
    return row


def _number_of(name: str, text: str, kind: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name} is {text[:40]!r}, not {kind}") from None
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} is {text[:40]!r}; it must be finite and not negative")
    return value
