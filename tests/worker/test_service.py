"""Processes that know nothing of Spotkeeper: probes, commands, access logs, and ASGI."""

import asyncio
import contextlib
import gzip
import json
import os
import shutil
import signal
import socket
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper_worker import Worker
from spotkeeper_worker.agent import cli
from spotkeeper_worker.agent.aws import endpoint_of
from spotkeeper_worker.agent.service import Service
from spotkeeper_worker.agent.settings import (
    GPUS,
    Probe,
    Settings,
    SettingsError,
    load,
    parse,
    read_file,
)
from spotkeeper_worker.asgi import SpotkeeperMiddleware
from spotkeeper_worker.files import open_regular
from spotkeeper_worker.log import Sometimes, get_logger
from spotkeeper_worker.logs import files
from spotkeeper_worker.logs.files import Follow, Follower
from spotkeeper_worker.logs.intake import take
from spotkeeper_worker.logs.journal import Journal
from spotkeeper_worker.logs.outbox import Outbox
from spotkeeper_worker.logs.server import SocketServer
from spotkeeper_worker.notice import Notice, read_notice, write_notice
from spotkeeper_worker.states import Leave, State, Workers
from spotkeeper_worker.testing import until
from tests.builders import evidence
from tests.worker.logs import AWS, kept, say
from tests.worker.management import Web, serving

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])

# --- settings -------------------------------------------------------------------------------------

FILE = """
# What the issue of many users asks for.
stack = "spotkeeper"
on_drain = ["systemctl", "stop", "vllm"]  # it waits for its requests
on_return = ["systemctl", "start", 'vllm']
ready = {http = "http://127.0.0.1:8000/health"}
live = { http = "http://127.0.0.1:8000/live", every_s = 5, timeout_s = 1.5 }
logs = {follow = "/var/log/nginx/access.json", seconds = "request_time", skip = ["/health"]}
poll_s = 2.5
"""


def test_a_file_gives_settings(tmp_path: Path) -> None:
    windows = "\ufeff" + FILE.replace("stack", "SPOTKEEPER_STACK").replace("\n", "\r\n")
    (tmp_path / "agent.toml").write_text(windows)
    environment = {"SPOTKEEPER_POLL_S": "3", "SPOTKEEPER_SLOTS": "4"}
    found = load({"SPOTKEEPER_CONFIG": str(tmp_path / "agent.toml"), **environment})
    assert found.on_drain == ("systemctl", "stop", "vllm")
    assert found.ready == Probe("http://127.0.0.1:8000/health")
    assert found.live == Probe("http://127.0.0.1:8000/live", 5.0, 1.5)
    assert found.logs is not None and found.logs.follow == Path("/var/log/nginx/access.json")
    # The environment overrides the file; the service itself is the worker.
    assert (found.poll_s, found.stack, found.workers) == (3.0, "spotkeeper", 0)
    assert read_file(FILE) == tomllib.loads(FILE)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('on_drain = "systemctl stop vllm"', "should be a command"),
        ("on_drain = []", "should be a command"),
        ('ready = {http = "127.0.0.1:8000"}', "should be {http"),
        ('ready = {http = "http://h/", often = 1}', "and nothing else"),
        ('logs = {file = "x"}', "should be {follow"),
        ("poll_s = often", "line 2: 'often' is not a value"),
        ('poll_s = "often"', "SPOTKEEPER_POLL_S: 'often'"),
        ('cluster = "gcp"', "should be one of aws, onprem"),
        ("poll_s", "line 2: should be NAME = VALUE"),
        ("poll_s = 1\npoll_s = 2", "line 3: poll_s appears twice"),
        ('on_drain = ["a" "b"]', "line 2: is not a value: Expecting ',' delimiter"),
        ("on_drain = [1] 2", "line 2: is not a value: Extra data"),
        ("colour = 1", "SPOTKEEPER_COLOUR: is not a setting"),
        ('request_queue = "https://h/q"', "SPOTKEEPER_REQUEST_QUEUE: should be https://USER"),
        ('metadata_endpoint = "http://127.0.0.1:1"', "Connection refused"),
        ('metadata_endpoint = "http://a:b"', "nonnumeric port: 'b'"),
    ],
)
def test_wrong_settings_are_named(
    tmp_path: Path,
    line: str,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "agent.toml"
    folders = f"run_dir = '{tmp_path}/run'\nspool_dir = '{tmp_path}/spool'\n"
    path.write_text(f'stack = "spotkeeper"\n{line}\n{folders}')
    monkeypatch.setenv("SPOTKEEPER_CONFIG", str(path))
    monkeypatch.setattr(cli, "_TRIES", 1)
    assert cli.main(["run"]) == 2
    assert why in capsys.readouterr().err


def test_an_agent_stopped_at_its_start_ends_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, systemd: socket.socket, signals_restored: None
) -> None:
    """What a machine's journal holds is sent, and its notice says why it left."""
    queue = "https://sqs.us-east-1.amazonaws.com/123456789012/logs"
    given = {"RUN_DIR": tmp_path / "run", "SPOOL_DIR": tmp_path / "spool", "CLUSTER": "onprem"}
    for name, value in (given | {"SEARCH_LOG_QUEUE_URL": queue}).items():
        monkeypatch.setenv(f"SPOTKEEPER_{name}", str(value))
    monkeypatch.setattr(SocketServer, "start", lambda server: os.kill(os.getpid(), signal.SIGTERM))
    signal.signal(signal.SIGTERM, lambda *_: pytest.fail("no handler"))
    assert cli.main(["run"]) == 0
    notice = read_notice(tmp_path / "run")
    assert notice
    assert (notice.state, notice.reason) == (State.IDLE, "stopping")
    assert systemd.recv(1000) == b"READY=1"
    assert systemd.recv(1000).startswith(b"WATCHDOG=1\nSTATUS=")


def test_endpoints_of_0_2_are_those_of_aws_s_own_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_SSM", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "http://own")
    (tmp_path / "agent.toml").write_text('stack = "s"\nssm_endpoint = "http://a"\n')
    load({
        "SPOTKEEPER_CONFIG": str(tmp_path / "agent.toml"), "SPOTKEEPER_SQS_ENDPOINT": "http://b",
    })  # fmt: skip
    assert endpoint_of("ssm", "us-east-1") == "http://a"
    assert endpoint_of("sqs", "us-east-1") == "http://own"
    os.environ.pop("AWS_ENDPOINT_URL_SSM")


def test_the_environment_gives_settings(tmp_path: Path) -> None:
    given = {"SPOTKEEPER_STACK": "s", "SPOTKEEPER_WORKERS": "gpus", "SPOTKEEPER_READY": "http://h/"}
    found = parse(given)
    assert (found.workers, found.metadata_endpoint) == (GPUS, "http://169.254.169.254")
    assert found.ready == Probe("http://h/")
    with pytest.raises(
        SettingsError, match=r"_URL: is missing.*_WORKER: is not a setting; did you mean"
    ):
        parse({"SPOTKEEPER_WORKER": "2"})
    with pytest.raises(SettingsError, match=r"none\.toml is not there"):
        load(given | {"SPOTKEEPER_CONFIG": str(tmp_path / "none.toml")})


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.integers(-(10**9), 10**9) | st.text("aé\"'\\#[]{},= \u02ff", max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("abc_", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def written(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {written(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


@given(VALUES)
def test_a_file_means_what_it_means_in_toml(value: Any) -> None:
    line = f"name = {written(value)}"
    assert read_file(line) == tomllib.loads(line) == {"name": value}


# --- probes and commands --------------------------------------------------------------------------


@pytest.fixture
def web() -> Iterator[Web]:
    with serving("/health?full=1") as made:
        yield made


def service(tell: Callable[[str], None] = lambda _: None, **given: Any) -> Service:
    return Service(Settings(**given), Sometimes(get_logger("agent")), tell)


def test_a_probe_makes_a_service_ready(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    made = service(ready=Probe(web.url, timeout_s=60.0))
    web.status = 503
    made.probe()
    found = made.counted(Workers(expected=0))
    assert (found.all_ready, found.missing()) == (
        False,
        "service has not called ready(), or its probe fails",
    )
    web.status = 204
    made.probe()
    assert made.counted(Workers(expected=0)).all_ready
    for url, why in (("http://127.0.0.1:9/", "ConnectionRefused"), ("http://h:x/", "InvalidURL")):
        made = service(ready=Probe(url))
        made.probe()
        assert not made.ready
        assert f"the service is not ready: {url}: {why}" in caplog.text


def test_a_service_is_dead_after_three_probes_and_only_if_it_was_alive(web: Web) -> None:
    made = service(live=Probe(web.url, timeout_s=60.0))
    seen = []
    for web.status in (500, 500, 500, 200, 500, 500, 500, 200):
        made.probe()
        seen.append(made.ill)
    assert seen == [""] * 6 + [f"{web.url} answered 500", ""]


NONE = Workers(expected=0)


def idle(made: Service) -> bool:
    return not made.counted(NONE).busy


def test_on_drain_runs_once_and_on_return_waits_for_it(tmp_path: Path) -> None:
    """A warning is withdrawn while the service still stops."""
    said, go = tmp_path / "said", tmp_path / "go"
    os.mkfifo(go)
    made = service(
        on_drain=["sh", "-c", f"read _ < {go}; echo drain >> {said}"],
        on_return=["sh", "-c", f"echo return >> {said}"],
    )
    assert made.counted(NONE).all_ready
    for _ in range(3):
        made.follow(Leave("interruption", 9.0, 9.0), served=True)
    made.follow(None, served=True)
    found = made.counted(NONE)
    assert (found.busy, found.begun) == (1, 1)
    go.write_text("\n")
    until(partial(idle, made), "the service is stopped")
    made.follow(None, served=True)
    until(partial(idle, made), "it is started again")
    made.follow(None, served=True)
    assert said.read_text() == "drain\nreturn\n"


@pytest.mark.parametrize(
    ("leave", "served"),
    [
        (Leave("warmed"), False),
        (Leave("stopping"), True),
        (Leave("not alive: http://h answered 500"), True),
    ],
)
def test_on_drain_does_not_run(tmp_path: Path, leave: Leave, served: bool) -> None:
    """Into the warm pool at first, for an agent that restarts, and for a dead service."""
    made = service(on_drain=["touch", str(tmp_path / "ran")])
    made.follow(leave, served)
    assert idle(made)
    assert not (tmp_path / "ran").exists()


def test_a_failed_command_is_named_and_told(caplog: pytest.LogCaptureFixture) -> None:
    for command, why in (("false", "failed with status 1"), ("/no/such", "could not be started")):
        told: list[str] = []
        made = service(told.append, on_drain=[command, "\n"])
        made.follow(Leave("terminated"), served=True)
        until(partial(idle, made), "it has ended")
        assert f"on_drain: {command} \\n {why}" in caplog.text
        assert len(told) == 1 and told[0].startswith(f"on_drain: {command} \\n {why}")


# --- access logs ----------------------------------------------------------------------------------


def entry(number: int, **changed: object) -> str:
    body = {
        "time": "2025-11-20T10:00:03.500+00:00", "request_id": f"r-{number}",
        "request_time": "2.5", "status": "200", "uri": "/v1/ocr",
    }  # fmt: skip
    return json.dumps(body | changed) + "\n"


class Tail:
    """A followed file, and agents that follow it one after the other."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "access.json"
        self._folder = folder
        self._now = 0.0
        self._agents = contextlib.ExitStack()

    def begin(self) -> None:
        """Have another agent follow the file; the one before is killed."""
        self.close()
        self.journal = Journal(self._folder / "journal")
        outbox = Outbox(self.journal, lambda body: None, AWS)
        say = Sometimes(get_logger("agent"))
        self.follower = Follower(Follow(self.path), outbox.accept, outbox.last_of, say)
        self._agents.callback(self.journal.close)
        self._agents.callback(self.follower.close)

    def rotate(self) -> None:
        """Rename as logrotate does. What is written next is younger by a second."""
        for number in (2, 1, 0):
            if self.rotated(number).exists():
                self.rotated(number).rename(self.rotated(number + 1))
        self._age()

    def roll(self) -> None:
        """Rename as Caddy does: with the time before the suffix."""
        many = len([*self._folder.glob("access-2025*")])
        self.path.rename(self.path.with_name(f"access-2025-11-20T10-00-{many:02d}.391.json"))
        self._age()

    def rotated(self, number: int) -> Path:
        return self.path.with_name(f"access.json.{number}") if number else self.path

    def copy(self) -> None:
        """Begin a `copytruncate`."""
        shutil.copy(self.path, self.rotated(1))
        self._age()

    def touch(self) -> None:
        self.write("")

    def half(self) -> None:
        self.write(entry(7)[:20])

    def other(self) -> None:
        """Have other programs write logs."""
        for name in ("access-other.json", "access.jsonl", "access.json-other"):
            self.path.with_name(name).write_text(entry(9))

    def vhosts(self) -> None:
        """Have many other programs write logs whose names begin as the followed one's."""
        for number in range(30):
            self.path.with_name(f"access-{number}.json").write_text(entry(9))

    def twin(self) -> None:
        """Have another log begin with the same request, and go on with others."""
        self.path.with_name("access-all.json").write_text(entry(0) + entry(9) + entry(9))

    def reuse(self) -> None:
        """Delete the log, and have another file get its inode."""
        other = self.path.rename(self.path.with_name("access-other.json"))
        other.write_text(entry(9))

    def compress(self) -> None:
        self.rotated(1).with_suffix(".gz").write_bytes(gzip.compress(self.rotated(1).read_bytes()))
        self.rotated(1).unlink()

    def _age(self) -> None:
        for path in self._folder.glob("access*"):
            written = path.stat().st_mtime - 1
            os.utime(path, (written, written))

    def empty(self) -> None:
        os.truncate(self.path, 0)

    def close(self) -> None:
        self._agents.close()

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self._now += 1.0
            self.follower.step(self._now)

    def steps(self) -> None:
        """As many as it takes until a rotated file is left."""
        self.step(24)

    def rest(self) -> None:
        """Write the other half, to the file that was renamed last."""
        with self.rotated(1).open("a") as file:
            file.write(entry(7)[20:])

    def write(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text)

    def ids(self) -> list[str]:
        """What the journal has, oldest first."""
        return [json.loads(line)["request_id"] for line in kept(self.journal)]


@pytest.fixture
def tail(tmp_path: Path) -> Iterator[Tail]:
    with contextlib.closing(Tail(tmp_path)) as made:
        yield made


HUGE, STARTED = "9" * 5000, "2025-11-20T10:00:01.000Z"
READ: list[Any] = [
    # Seconds, milliseconds, microseconds and nanoseconds since the epoch; with `t=`; as texts.
    "1763632800.250",
    "1763632800250",
    "1763632800250000",
    1763632800.25,
    1763632800250,
    "t=1763632800.250",
    "t=1763632800250000",
    "t=1763632800250",
    "2025-11-20T10:00:00.25Z",
    "2025-11-20T11:00:00.250+0100",
    " t=1763632800.250, t=1763632800.9",
    "1.76363280025e12",
]
UNREAD: list[Any] = [
    # What is no time before the request costs the wait alone: also the header of a client.
    "t=1763632802", "1763632899", "1763546000", "t=99999999999999", "-5", "-1763632800", "0",
    "soon", "nan", "inf", "-inf", "1e999", "1e308", HUGE, f"t={HUGE}", "t=", "", "-", None,
    True, [], {}, "\ufffd", "\ud800", "2025-11-20T10:00:00", "\u0661\u0667", "0x10",
    "20/Foo/2025:11:00:00 +0100",
]  # fmt: skip
WAITED = [
    *((start, "2025-11-20T10:00:00.250Z") for start in READ),
    *((f"{left}20/Nov/2025:11:00:00 +0100{right}", "2025-11-20T10:00:00.000Z")
      for left, right in ("  ", "[]")),
    *((start, STARTED) for start in UNREAD),
]  # fmt: skip


@pytest.mark.parametrize(("start", "enqueued"), WAITED, ids=lambda it: str(it)[:24])
def test_a_start_that_is_no_time_costs_the_wait_alone(start: object, enqueued: str) -> None:
    follow = Follow.parse({"follow": "x", "enqueued_at": "start"})
    log = follow.log_of(json.loads(entry(1, start=start)), "web")
    assert log is not None
    assert (log["enqueued_at"], log["started_at"]) == (enqueued, STARTED)
    assert take(log, AWS, 5.0)


@pytest.mark.parametrize(
    ("changed", "field", "found"),
    [
        ({"request_id": None}, "request_id", "line-7"),
        ({"request_id": ""}, "request_id", "line-7"),
        ({"request_id": 17348}, "request_id", "17348"),
        ({"request_id": "x" * 500}, "request_id", "x" * 128),
        ({"request_id": "a\ud800"}, "request_id", "a?"),
        ({"status": 404}, "status", "ok"),
        ({"status": "-"}, "status", "ok"),
        ({"status": None}, "status", "ok"),
        ({"status": 503.0}, "status", "error"),
        ({"uri": None}, "status", "ok"),
        ({"uri": ["/ocr", "/health"]}, "status", "ok"),
        # Caddy's `duration_format string`.
        ({"request_time": "1h1m2.5s"}, "started_at", "2025-11-20T08:59:01.000Z"),
        ({"request_time": "350µs"}, "started_at", "2025-11-20T10:00:03.500Z"),
        ({"request_time": -0.5}, "started_at", "2025-11-20T10:00:03.500Z"),
    ],
)
def test_an_optional_field_that_cannot_be_read_costs_that_field(
    changed: dict[str, object], field: str, found: str
) -> None:
    log = Follow(Path("x")).log_of(json.loads(entry(1, **changed)), "web", "line-7")
    assert log is not None
    assert log[field] == found
    assert take(log, AWS, 5.0)


UNREADABLE: list[Any] = ["-", "nan", "inf", "1e999", None, [], {}, "yesterday", "t=1"]


@pytest.mark.parametrize(
    "changed",
    [{"request_time": it} for it in UNREADABLE] + [{"time": it} for it in (*UNREADABLE[:-1], HUGE)],
)
def test_without_time_or_duration_there_is_no_log(changed: dict[str, object]) -> None:
    (name,) = changed
    with pytest.raises(
        ValueError, match=rf"^({name} is .*should be a|has no {name}; set \w+ to one)"
    ):
        Follow(Path("x")).log_of(json.loads(entry(1, **changed)), "web")


@pytest.mark.parametrize(
    "line",
    # The last one is what a client could send, and takes no time.
    [
        '::1 - - "GET /{a} HTTP/1.1" 200',
        '{"time":',
        "[]",
        "7",
        "\x1f\x8b",
        '{"":' + " " * 99_999 + "x",
    ],
)
def test_a_line_that_is_no_json_says_what_the_format_needs(line: str) -> None:
    with pytest.raises(ValueError, match="it is no JSON, as format=nginx needs: docs/access-logs"):
        Follow(Path("x")).entry_of(line.encode())


@pytest.mark.parametrize("row", evidence("access_logs"), ids=lambda row: row["source"])
def test_the_logs_of_other_proxies_are_followed(row: dict[str, str]) -> None:
    settings = {"follow": "x", **json.loads(row["settings"])}
    follow = Follow.parse(settings)
    log = follow.log_of(follow.entry_of(row["line"].encode() + b"\r\n"), "web", "line-7")
    assert log is not None
    found = (log["started_at"], log["finished_at"], log["status"])
    assert found == (row["started"], row["finished"], row["status"])
    if "/v1" in row["line"]:
        health = row["line"].replace("/v1", "/healthz")
        assert follow.log_of(follow.entry_of(health.encode()), "web") is None
    given = Follow.parse({**settings, "request_id": "id", "skip": ["/a", "/b"]})
    assert (given.request_id, given.skip) == ("id", ("/a", "/b"))


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        (
            {"request": {"headers": {"X-Request-Id": ["r-1", "r-2"]}}},
            "request.headers.X-Request-Id",
        ),
        ({"http.request": {"id": "r-1"}}, "http.request.id"),
        ({"http": {"request.id": "r-1"}}, "http.request.id"),
        ({"http.request.id": "r-1", "http": {"request": {"id": "r-2"}}}, "http.request.id"),
    ],
)
def test_a_nested_name_is_found(entry: dict[str, Any], name: str) -> None:
    times = {"time": 1763632803.5, "request_time": 2.5}
    log = Follow(Path("x"), request_id=name).log_of({**entry, **times}, "web", "line-7")
    assert log is not None and log["request_id"] == "r-1"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"format": "apache"}, "should be one of nginx, caddy, traefik, envoy, haproxy, alb"),
        ({"format": "uvicorn"}, "has no durations; add SpotkeeperMiddleware"),
        ({"skip": [""]}, "would leave every request out"),
        ({"skip": 5}, "skip: should be a text"),
        ({"unit": "min"}, "unit should be one of s, ms, us, ns"),
        ({"pathh": "uri"}, "pathh: should be one of"),
    ],
)
def test_a_wrong_format_says_what_to_write(wrong: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Follow.parse({"follow": "x", **wrong})


def test_no_client_costs_a_line_of_the_access_log(
    tail: Tail, caplog: pytest.LogCaptureFixture
) -> None:
    tail.touch()
    tail.begin()
    tail.step()
    with tail.path.open("ab") as file:
        file.write(b"\xef\xbb\xbf")
        for number, uri in enumerate((b"/%", b"/\xff", b"/\xc3", b"/\x85", b"/\xe2\x80\xa8")):
            file.write(entry(number, uri="/%").encode().replace(b"/%", uri))
        file.write(entry(5).replace('"200"', HUGE).encode())
        file.write(entry(6, request_id="").encode() * 2)
    tail.step()
    *ids, one, two = tail.ids()
    assert ids == [f"r-{number}" for number in range(6)]
    assert one and two and one != two
    assert "is not a search log" not in caplog.text


FOLLOWED = [
    # What was written before there was an agent is history.
    ("0 begin step 1 step", "1"),
    # A file that is made later is read from its beginning.
    ("begin step 1 step", "1"),
    # An agent goes on where the one before was killed, also in a file that was empty.
    ("touch begin step 0 begin step begin 1 step", "01"),
    # A file that appeared while no agent ran is read from its beginning.
    ("touch begin step 0 step rotate 1 begin steps", "01"),
    # What was written before one rotation or two, while no agent ran.
    ("touch begin step 0 step close 1 rotate 2 begin steps 3 step", "0123"),
    ("touch begin step 0 step close 1 rotate 2 rotate 3 begin steps steps", "0123"),
    ("touch begin step 0 step close 1 roll 2 roll 3 begin steps steps", "0123"),
    # It had no line yet when the agent was killed.
    ("touch begin step close 0 rotate 1 rotate touch begin steps steps steps", "01"),
    # The program opens its new file late; the next agent is killed, too.
    ("touch begin step 0 half step rotate 2 step step rest steps", "072"),
    ("touch begin step 0 step half close rotate touch begin step rest steps 1 step", "071"),
    ("touch begin step 0 step close 1 rotate 2 begin step begin steps rotate 3 steps", "0123"),
    # A file that was rotated away before there was an agent is history.
    ("0 rotate touch begin step 1 step begin steps rotate 2 begin steps", "12"),
    ("0 rotate begin step 1 steps", "1"),
    # The rest of a rotated file is read first, also where it was written last; no rest delays none.
    ("touch begin step 0 half step rotate 1 steps close 2 rest begin steps", "0172"),
    ("touch begin step 0 step rotate 1 steps begin 2 step", "012"),
    # What is compressed by then is lost, and stops nothing.
    ("touch begin step 0 step close 1 rotate compress 2 begin steps", "02"),
    ("touch begin step 0 step close 1 rotate 2 rotate compress 3 begin steps steps", "013"),
    # Half a line at a rotated file's end holds nothing up.
    ("touch begin step 0 step half rotate 1 begin steps 2 steps", "012"),
    ("touch begin step 0 step close rotate half rotate 1 begin steps steps", "01"),
    # Another program's log is not ours.
    ("touch begin step 0 step rotate other 1 begin steps", "01"),
    ("touch begin step 0 step close 1 rotate vhosts 2 begin steps", "012"),
    ("touch begin step 0 step close twin 1 begin steps 2 steps", "012"),
    ("touch begin step close reuse 1 begin steps steps", "1"),
    # The copy of copytruncate has what was not read.
    ("touch begin step 0 1 step 2 copy empty 3 steps 4 step", "01234"),
    ("touch begin step 0 step close 1 copy empty 2 begin steps", "012"),
    ("touch begin step 0 step close 1 copy 2 begin steps begin steps", "012"),
    # After copytruncate, or where a new file gets the inode of one that was deleted.
    ("touch begin step 0 1 step empty 2 step 3 4 step", "01234"),
    ("touch begin step 0 1 step begin empty 2 step 3 4 step", "01234"),
    ("touch begin step 0 1 step empty 2 step begin 3 4 step", "01234"),
]


@pytest.mark.parametrize(("happens", "found"), FOLLOWED)
def test_each_line_is_followed_once(tail: Tail, happens: str, found: str) -> None:
    """A number is a request that is logged."""
    for each in happens.split():
        if each.isdigit():
            tail.write(entry(int(each)))
        else:
            getattr(tail, each)()
    assert tail.ids() == [f"r-{number}" for number in found]


def test_a_log_that_lost_its_end_is_opened_once(
    tail: Tail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a power failure. It is read on where it was read to."""
    tail.touch()
    tail.begin()
    tail.step()
    tail.write(entry(0) + entry(1))
    tail.step()
    os.truncate(tail.path, len(entry(0)))
    opened = Mock(side_effect=open_regular)
    monkeypatch.setattr(files, "open_regular", opened)
    tail.step(10)
    assert opened.call_count == 1
    tail.write(entry(1) + entry(2))
    tail.step()
    assert tail.ids() == ["r-0", "r-1", "r-2"]


def test_a_pipe_beside_an_access_log_is_left_alone(
    tail: Tail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that leaves at once would break its writer."""
    opened = Mock(side_effect=open_regular)
    monkeypatch.setattr(files, "open_regular", opened)
    os.mkfifo(tail.path.with_name("access.pipe"))
    tail.write(entry(0))
    tail.begin()
    tail.step()
    assert {call.args[0] for call in opened.call_args_list} == {tail.path}


def test_a_line_that_is_no_entry_is_skipped(tail: Tail, caplog: pytest.LogCaptureFixture) -> None:
    """A line without an end does not stop it, either."""
    tail.begin()
    tail.step()
    wrong = ["{", "[1]", '"x"', entry(1, time="noon"), '{"time": 1}', entry(2, request_time="-")]
    tail.write("".join(f"{line.strip()}\n" for line in wrong) + "\n" + entry(3, uri=None))
    tail.write("x" * (3 << 20) + "\n" + entry(4))
    tail.step(6)
    assert tail.ids() == ["r-3", "r-4"]
    assert "a line is not a search log" in caplog.text
    assert "uri: an entry without it is not left out" in caplog.text


# --- ASGI -----------------------------------------------------------------------------------------


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    say(tmp_path, State.SERVING)
    made = Worker("gpu-0", tmp_path, send_every_s=60.0)
    yield made
    made.close(timeout_s=0.0)


def asked(
    worker: Worker,
    path: str,
    status: int = 200,
    headers: Sequence[tuple[bytes, bytes]] = (),
    **given: Any,
) -> tuple[int, list[Any]]:
    """Ask an application in the middleware; answers its status and what was measured."""
    send = AsyncMock()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if status == 0:
            raise RuntimeError("no")
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    scope = {"type": "http", "path": path, "headers": list(headers)}
    asyncio.run(SpotkeeperMiddleware(app, worker, **given)(scope, AsyncMock(), send))
    return send.await_args_list[0].args[0]["status"], list(worker._emitter._waiting)


def test_a_request_over_http_is_measured(worker: Worker) -> None:
    start = round(time.time() - 3, 3)
    headers = [(b"X-Request-ID", b"r-7"), (b"x-request-start", b"t=%.3f" % start)]
    _, (log,) = asked(worker, "/v1/ocr", headers=headers)
    assert log[2] - log[1] < 1, "a client sets no wait of its own"
    worker._emitter._waiting.clear()
    status, (log,) = asked(worker, "/v1/ocr", headers=headers, enqueued_header="X-Request-Start")
    assert (status, log[0], log[4]) == (200, "r-7", "ok")
    assert log[1] == start < log[2]
    for code in (404, 500, 504):
        assert asked(worker, "/v1/ocr", code)[0] == code
    with pytest.raises(RuntimeError):
        asked(worker, "/v1/ocr", 0)
    statuses = [measured[4] for measured in worker._emitter._waiting]
    assert statuses == ["ok", "ok", "error", "timeout", "error"]


@pytest.mark.parametrize("start", [b"soon", b"t=99999999999", b"1", b"\xff", b"nan", b"9" * 5000])
def test_a_wrong_start_costs_nothing(worker: Worker, start: bytes) -> None:
    headers = [(b"x-request-start", start)]
    _, (log,) = asked(worker, "/v1/ocr", headers=headers, enqueued_header="x-request-start")
    assert log[2] - log[1] < 60


@pytest.mark.parametrize(
    ("state", "target", "until_s", "longest_s", "answers"),
    [
        (State.SERVING, "InService", None, 60.0, (200, 200)),
        # The load balancer sends requests until it has seen the readiness fail.
        (State.DRAINING, "InService", 110.0, 0.0, (503, 200)),
        (State.DRAINING, "Detached", 10.0, 6.0, (503, 200)),
        (State.DRAINING, "Terminated", None, 0.0, (503, 200)),
        (State.DRAINING, "Standby", None, 0.0, (503, 200)),
        # They would not be done before the machine goes, or nothing waits for them any more.
        (State.DRAINING, "InService", 10.0, 12.0, (503, 503)),
        (State.DRAINING, "InService", -1.0, 0.0, (503, 503)),
        (State.IDLE, "Terminated", None, 0.0, (503, 503)),
        (State.GONE, "Terminated", None, 0.0, (503, 503)),
        (State.BOOTING, "InService", None, 0.0, (503, 503)),
        (State.READY, "Warmed:Stopped", None, 0.0, (503, 503)),
        # Its GPU is ill, or the agent stops: the group still has it.
        (State.DRAINING, "InService", None, 0.0, (503, 503)),
        (State.DRAINING, None, None, 0.0, (503, 503)),
    ],
)
def test_readiness_fails_at_the_notice_and_requests_are_served_as_long_as_they_can(
    worker: Worker,
    tmp_path: Path,
    state: State,
    target: str | None,
    until_s: float | None,
    longest_s: float,
    answers: tuple[int, int],
) -> None:
    at = None if until_s is None else time.time() + until_s
    draining = state in (State.DRAINING, State.IDLE, State.GONE)
    write_notice(tmp_path, Notice(state, time.time(), draining, "a test", at, at, target))
    worker.took(longest_s)
    assert (asked(worker, "/spotkeeper/ready")[0], asked(worker, "/v1/ocr")[0]) == answers
    assert asked(worker, "/health")[0] == 200


def test_full_slots_are_no_reason_to_be_taken_out(tmp_path: Path) -> None:
    say(tmp_path, State.SERVING)
    worker = Worker("gpu-0", tmp_path, slots=1)
    with worker.request("r-0", time.time()):
        assert asked(worker, "/spotkeeper/ready")[0] == 200
        assert asked(worker, "/v1/ocr")[0] == 503
    worker.close(timeout_s=0.0)


@pytest.mark.parametrize(("code", "status"), [(1000, "ok"), (None, "ok"), (1011, "error")])
def test_a_websocket_is_a_request_until_it_is_closed(
    worker: Worker, code: int | None, status: str
) -> None:
    busy = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        busy.append(worker._place.busy)
        await send({"type": "websocket.close", "code": code} if code else {"type": "x"})

    scope = {"type": "websocket", "path": "/v1/stream", "headers": []}
    asyncio.run(SpotkeeperMiddleware(app, worker)(scope, AsyncMock(), AsyncMock()))
    (log,) = worker._emitter._waiting
    assert (busy, worker._place.busy, log[4]) == ([1], 0, status)


def test_a_websocket_on_a_machine_that_is_gone_is_refused(worker: Worker, tmp_path: Path) -> None:
    say(tmp_path, State.IDLE)
    send = AsyncMock()
    scope = {"type": "websocket", "path": "/v1/stream", "headers": []}
    asyncio.run(SpotkeeperMiddleware(AsyncMock(), worker)(scope, AsyncMock(), send))
    assert send.await_args_list[0].args[0] == {"type": "websocket.close", "code": 1013}
