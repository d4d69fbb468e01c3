"""Request traces: what is read, what is refused, what is generated."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from spotkeeper_lab.files import named_apart
from spotkeeper_lab.traces.requests import (
    RequestTrace,
    RequestTraceError,
    generate_requests,
    read_request_traces,
    read_requests,
)

REQUESTS, RATES = "arrival_s,service_s\n", "time_s,rate_per_s\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_reads_plain_and_gzip_alike(tmp_path: Path) -> None:
    text = REQUESTS + "0.5,2\n0.5,1.25\n7,3\n"
    plain = read_requests(write(tmp_path / "a.csv", text))
    packed_path = tmp_path / "a.csv.gz"
    packed_path.write_bytes(gzip.compress(text.encode()))
    packed = read_requests(packed_path)
    assert plain.name == packed.name == "a"
    assert plain.arrival_s.tolist() == packed.arrival_s.tolist() == [0.5, 0.5, 7.0]
    assert plain.service_s.tolist() == packed.service_s.tolist() == [2.0, 1.25, 3.0]
    assert plain.end_s == 7.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected the header .* the file is empty"),
        ("a,b\n1,2\n", "line 1: expected the header .* found 'a,b'"),
        (REQUESTS, "no request after the header"),
        (REQUESTS + "1,2\n\n0.5,2\n", r"line 4: arrival_s 0.5 is before 1"),
        (REQUESTS + "1,-2\n", "line 2: '1,-2' has a negative"),
        (REQUESTS + "1,nan\n", "line 2: '1,nan' has a negative or endless"),
        (REQUESTS + "1,2,3\n", "line 2: expected two numbers"),
        (REQUESTS + "1,x\n", "line 2: expected two numbers, found '1,x'"),
        (REQUESTS + "0,1\n1e9,1\n", r"line 3: 1e\+09 s is more than 400 days"),
        (RATES + "0,1\n", "at least two rows"),
        (RATES + "0,1\n0,1\n", "line 3: time_s 0 is not after 0"),
        (RATES + "0,0\n600,0\n", "every rate_per_s is 0"),
        (RATES + "0,1\n600,1e308\n", r"line 3: 1e\+308 requests per second"),
    ],
)
def test_refuses_by_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RequestTraceError, match=message):
        read_requests(write(tmp_path / "bad.csv", text))


@pytest.mark.parametrize(("asked", "mean"), [(None, 200), (1.0, 1), (50.0, 50)])
def test_rates_are_as_given_or_scaled_to_the_requested_mean(
    tmp_path: Path, asked: float | None, mean: float
) -> None:
    path = write(tmp_path / "r.csv", RATES + "0,100\n600,300\n1200,200\n")
    (trace,) = read_request_traces([path], mean_rate_per_s=asked)
    thirds = np.histogram(trace.arrival_s, bins=3, range=(0, 1800))[0] / 600
    assert thirds == pytest.approx([0.5 * mean, 1.5 * mean, mean], rel=0.1)


@pytest.mark.parametrize(
    ("text", "mean", "told"),
    [
        (REQUESTS + "0,1\n", 5.0, "for files of rates, .* there is none; leave it out"),
        (RATES + "0,1\n86400,1\n", 100.0, r"too many .*its mean is 1 per second"),
    ],
)
def test_a_mean_rate_that_cannot_be_had_is_refused(
    tmp_path: Path, text: str, mean: float | None, told: str
) -> None:
    with pytest.raises(RequestTraceError, match=told):
        read_request_traces([write(tmp_path / "r.csv", text)], mean_rate_per_s=mean)


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["a.csv", "b.csv.gz"], ["a", "b"]),
        (["mon/r.csv", "tue/r.csv", "own.csv"], ["mon/r", "tue/r", "own"]),
        (["1/mon/r.csv", "2/mon/r.csv", "2/tue/r.csv"], ["1/mon/r", "2/mon/r", "tue/r"]),
        (["mon/r.csv", "tue/../mon/r.csv"], ["r"]),
    ],
)
def test_files_of_one_name_are_distinguished(
    tmp_path: Path, files: list[str], names: list[str]
) -> None:
    assert list(named_apart([tmp_path / file for file in files]).values()) == names


def test_a_window_starts_at_zero() -> None:
    arrival_s = np.array([0.0, 5.0, 10.0, 15.0])
    trace = RequestTrace(name="t", arrival_s=arrival_s, service_s=arrival_s + 1, end_s=20.0)
    part = trace.window(5.0, 10.0)
    assert part.arrival_s.tolist() == [0.0, 5.0]
    assert part.service_s.tolist() == [6.0, 11.0]
    assert part.end_s == 10.0
    assert trace.window(12.0, 100.0).end_s == 8.0
    with pytest.raises(RequestTraceError, match="the trace covers 0 to 20 s"):
        trace.window(20.0, 5.0)


def test_the_generated_day_is_plausible_and_repeatable() -> None:
    day, again = generate_requests(1), generate_requests(1)
    assert np.array_equal(day.arrival_s, again.arrival_s)
    assert day.offered_load == pytest.approx(2.0, rel=0.1)
    assert np.all(np.diff(day.arrival_s) >= 0)
    hourly = np.histogram(day.arrival_s, bins=24, range=(0, 86_400))[0]
    assert hourly.max() > 2 * hourly.min()
    per_minute = np.histogram(day.arrival_s, bins=1440, range=(0, 86_400))[0]
    assert per_minute.var() > 2 * per_minute.mean()
