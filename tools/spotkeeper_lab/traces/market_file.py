"""Market files: a market as CSV, plain or gzip.

``time_s,pool,capacity`` and, where prices are known, ``price`` (spot over on-demand). From
``time_s`` on, ``pool`` can hold ``capacity`` spot instances. Every pool has a row at the common
start; the last row has only a time and ends the market. Times are seconds from the start of the
market; a file that starts later is moved to 0.
"""

import csv
import difflib
import gzip
import io
import math
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, cast

from spotkeeper_lab.files import write_whole
from spotkeeper_lab.traces.market import Market, MarketError, Steps
from spotkeeper_lab.traces.names import name_of, named_apart

COLUMNS = ("time_s", "pool", "capacity")
PRICE_COLUMN = "price"
MAX_LINE_BYTES = 4096
UNNAMEABLE = ',"\r\n'
DAY_S = 86_400.0
# Beyond this a file does not have seconds.
LONGEST_S = 400 * DAY_S


class MarketFileError(MarketError):
    """A market file that is not one; names the file and, where there is one, the line."""

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


STANDARD_INPUT = Path("-")


def read_market(path: Path | str) -> Market:
    """Read a market file (`-`: standard input); raises MarketFileError naming file and line."""
    reader = _Reader(Path(path))
    return reader.market()


class _Reader:
    """Reads one market file, row by row; knows the line it is at."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._line = 0
        self._columns: list[str] = []
        self._start: float | None = None
        self._end: float | None = None
        self._last = -math.inf
        self._rows: dict[str, list[tuple[float, int, float]]] = {}

    def market(self) -> Market:
        """The whole file."""
        try:
            for row in csv.reader(self._text(), strict=True):
                self._take([field.strip() for field in row])
        except csv.Error as error:
            raise self._error(f"is not CSV: {error}") from None
        return self._finished()

    def _error(self, problem: str) -> MarketFileError:
        return MarketFileError(self._path, self._line or None, problem)

    def _text(self) -> Iterator[str]:
        try:
            with self._open() as stream:
                while raw := stream.readline(MAX_LINE_BYTES + 1):
                    self._line += 1
                    yield self._decoded(raw)
        except (gzip.BadGzipFile, EOFError, zlib.error):
            raise MarketFileError(
                self._path, None, "is called .gz but is not whole gzip; rename or repair it"
            ) from None
        except OSError as error:
            raise MarketFileError(self._path, None, f"cannot be read: {error.strerror}") from None

    def _open(self) -> BinaryIO:
        if self._path == STANDARD_INPUT:
            return io.BytesIO(sys.stdin.buffer.read())
        if self._path.suffix == ".gz":
            return cast("BinaryIO", gzip.open(self._path, "rb"))
        return self._path.open("rb")

    def _decoded(self, raw: bytes) -> str:
        if len(raw) > MAX_LINE_BYTES:
            raise self._error(f"the line is longer than {MAX_LINE_BYTES} bytes; not a market file")
        try:
            return raw.decode("utf-8-sig" if self._line == 1 else "utf-8")
        except UnicodeDecodeError:
            raise self._error("is not UTF-8 text; save it as UTF-8 CSV") from None

    def _take(self, row: list[str]) -> None:
        if not any(row):
            return
        if not self._columns:
            self._take_header(row)
        elif self._end is not None:
            raise self._error("a row follows the end row (the one with only a time); remove it")
        elif not any(row[1:]):
            self._take_end(row[0])
        else:
            self._take_step(row)

    def _take_header(self, row: list[str]) -> None:
        known = (*COLUMNS, PRICE_COLUMN)
        for column in row:
            if column not in known:
                nearest = difflib.get_close_matches(column, known, n=1)
                hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
                raise self._error(
                    f"unknown column {column[:40]!r} in the header{hint} "
                    f"(expected {','.join(COLUMNS)}[,{PRICE_COLUMN}])"
                )
        if missing := [column for column in COLUMNS if column not in row]:
            raise self._error(f"the header lacks the column {missing[0]!r}")
        if len(set(row)) != len(row):
            raise self._error("the header names a column twice")
        if row[0] != "time_s":
            raise self._error("the first column must be 'time_s'")
        self._columns = row

    def _take_end(self, text: str) -> None:
        self._end = self._time(text)
        if self._start is None or self._end <= self._start:
            raise self._error("the end row does not come after the start; the market has no length")

    def _take_step(self, row: list[str]) -> None:
        if len(row) != len(self._columns):
            raise self._error(f"{len(row)} fields where the header has {len(self._columns)}")
        fields = dict(zip(self._columns, row, strict=True))
        time, pool = self._time(fields["time_s"]), fields["pool"]
        if not pool:
            raise self._error("no pool in a row with a capacity")
        self._check_place(time, pool)
        step = (time, self._capacity(fields["capacity"]), self._price(fields.get(PRICE_COLUMN)))
        self._rows.setdefault(pool, []).append(step)

    def _time(self, text: str) -> float:
        try:
            time = float(text)
        except ValueError:
            raise self._error(f"time_s is {text[:40]!r}, not a number of seconds") from None
        if not math.isfinite(time) or time < 0:
            raise self._error(f"time_s is {text[:40]!r}; it must be finite and not negative")
        if time < self._last:
            raise self._error(f"time_s goes back from {self._last:g} to {time:g}; sort the rows")
        self._last = time
        return time

    def _check_place(self, time: float, pool: str) -> None:
        if self._start is None:
            self._start = time
        rows = self._rows.get(pool)
        if rows is None and time != self._start:
            raise self._error(
                f"pool {pool!r} starts at {time:g} s but the market at {self._start:g} s; "
                "give every pool a row at the common start (capacity 0 where none is known)"
            )
        if rows is not None and rows[-1][0] == time:
            raise self._error(f"pool {pool!r} has two rows at {time:g} s; keep one")

    def _capacity(self, text: str) -> int:
        try:
            capacity = int(text)
        except ValueError:
            raise self._error(f"capacity is {text[:40]!r}, not a whole number") from None
        if capacity < 0:
            raise self._error(f"capacity is {capacity}; it cannot be negative")
        return capacity

    def _price(self, text: str | None) -> float:
        if text is None:
            return math.nan
        try:
            price = float(text)
        except ValueError:
            raise self._error(f"price is {text[:40]!r}, not a number") from None
        if not math.isfinite(price) or price < 0:
            raise self._error(f"price is {text[:40]!r}; spot over on-demand cannot be negative")
        return price

    def _finished(self) -> Market:
        if not self._columns:
            raise MarketFileError(self._path, None, "is empty; a market file has a header and rows")
        if self._start is None:
            raise self._error("no rows after the header; a market has at least one pool")
        if self._end is None:
            raise self._error("no end row; the last row must hold only the time the market ends")
        length_s = self._end - self._start
        if length_s > LONGEST_S:
            raise self._error(
                f"the market lasts {length_s / DAY_S:,.0f} days, more than 400; give times in "
                "seconds"
            )
        steps = tuple(self._pool_steps(rows) for rows in self._rows.values())
        return Market(tuple(self._rows), length_s, name_of(self._path), steps)

    def _pool_steps(self, rows: list[tuple[float, int, float]]) -> Steps:
        start = self._start or 0.0
        prices = tuple(price for _, _, price in rows) if PRICE_COLUMN in self._columns else None
        return Steps(
            tuple(time - start for time, _, _ in rows), tuple(row[1] for row in rows), prices
        )


def read_markets(paths: Sequence[Path]) -> list[Market]:
    """Read several market files, each called otherwise; one that is named twice is one."""
    return [replace(read_market(path), name=name) for path, name in named_apart(paths).items()]
