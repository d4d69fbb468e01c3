"""The library: it measures, it tells when to stop, and it never costs a request anything."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from spotkeeper_worker import Forked, NameTaken, Worker
from spotkeeper_worker.agent.loop import hold_machine
from spotkeeper_worker.logs.emitter import Emitter
from spotkeeper_worker.notice import Notice, NoticeReader, read_notice, write_notice
from spotkeeper_worker.roster import read_roster
from spotkeeper_worker.states import State
from spotkeeper_worker.stop import Stop
from spotkeeper_worker.testing import until
from tests.worker.logs import Taken

AT = 1_763_632_800.25


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "workers").mkdir()
    return tmp_path


@pytest.fixture
def worker(run_dir: Path) -> Iterator[Worker]:
    with Worker("gpu-0", run_dir, send_every_s=0.01) as made:
        yield made


@pytest.fixture
def taken(run_dir: Path) -> Iterator[Taken]:
    with closing(Taken(run_dir)) as found:
        yield found


STATUSES = [
    (ValueError(), "error"),
    (KeyboardInterrupt(), "error"),
    (TimeoutError(), "timeout"),
    (subprocess.TimeoutExpired("x", 1), "error"),
]
TIMES: list[Any] = [
    AT,
    datetime.fromtimestamp(AT, UTC),
    "2025-11-20T10:00:00.250Z",
    "2025-11-20T11:00:00.25+01:00",
]
# The number is an unconverted SentTimestamp of SQS, in milliseconds.
NO_TIMES: list[Any] = [
    "yesterday", None, [], "2025-11-20T10:00:00", 1763632800120, float("nan"), float("inf"),
    datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))), TIMES[1].replace(tzinfo=None),
]  # fmt: skip


def test_a_request_is_logged_with_its_times_status_and_id(
    worker: Worker, taken: Taken, caplog: pytest.LogCaptureFixture
) -> None:
    """What it raises goes on; what is no time, or no id that the collector takes, costs nothing."""
    for error, _ in STATUSES:
        with pytest.raises(type(error)), worker.request("r-0", AT):
            raise error
    set_to: list[Any] = ["timeout", "failed"]
    for status in set_to:
        with worker.request("r-1", AT) as log:
            log.status = status
    assert "status 'failed' is none of ok, error, timeout" in caplog.text
    for when in (*TIMES, *NO_TIMES):
        with worker.request("r-2", when):
            pass
    given = ["x" * 128, "ü" * 129, "x" * 100_000 + "a", "x" * 100_000 + "b", "\ud800" * 300]
    for request_id in given:
        with worker.request(request_id, AT):
            pass
    rest = len(STATUSES) + len(set_to)
    until(lambda: len(taken.logs) == rest + len(TIMES) + len(NO_TIMES) + len(given), "all are sent")
    statuses = [*(it for _, it in STATUSES), "timeout", "error"]
    assert [log["status"] for log in taken.logs[:rest]] == statuses
    timed, untimed = taken.logs[rest:][: len(TIMES)], taken.logs[rest + len(TIMES) : -len(given)]
    assert {log["enqueued_at"] for log in timed} == {"2025-11-20T10:00:00.250Z"}
    assert all(log["enqueued_at"] == log["started_at"] for log in untimed)
    ids = taken.ids[-len(given) :]
    assert ids[0] == given[0]
    assert ids[1].startswith("ü" * 90)
    assert (len(set(ids)), max(map(len, ids))) == (len(given), 128)


def test_a_socket_is_made_again_once_its_folder_is_there_again(
    run_dir: Path, taken: Taken, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir.rename(run_dir.with_name("away"))
    until(lambda: "cannot be created again" in caplog.text, "it says so")
    (run_dir / "workers").mkdir(parents=True)
    with Worker("gpu-0", run_dir, send_every_s=0.01) as worker, worker.request("r-0", AT):
        pass
    until(lambda: taken.ids == ["r-0"], "its log arrives")


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        (b"[]\n", '"error"'),
        (b"{\n", '"error"'),
        (b"[" * 100_000 + b"\n", '"error"'),
        (b'{"logs": 1, "session": "a", "batch": 1}\n', "logs should be a list"),
        (b'{"logs": [], "session": "a b", "batch": 1}\n', "session should be"),
        (b'{"logs": [], "session": "a", "batch": 0}\n', "batch should be"),
        (b'{"logs": [], "session": "a", "batch": 1, "lost": "2"}\n', "lost should be"),
        (b"x" * (512 * 1024 + 2), "a line has at most"),
        (b'{"notice": true}\n', "{}"),
    ],
)
def test_the_socket_names_mistakes(run_dir: Path, taken: Taken, line: bytes, answer: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile() as answers:
        connection.connect(str(run_dir / "agent.sock"))
        connection.sendall(line)
        assert answer in answers.readline()


@pytest.fixture
def emitter(run_dir: Path) -> Iterator[Emitter]:
    with closing(Emitter(run_dir, "gpu-0", 0.01)) as made:
        yield made


def test_a_batch_stays_within_limits(emitter: Emitter, run_dir: Path) -> None:
    for number in range(450):
        emitter.emit((f"{number:05d}" * 1000, AT, AT, AT, "ok"))
    with closing(Taken(run_dir)) as taken:
        until(lambda: len(taken.ids) == 450, "all are handed over")
    assert taken.lost == 0


def test_an_unread_log_is_counted_as_lost(emitter: Emitter, taken: Taken) -> None:
    emitter.emit(("x" * 3_000_000, AT, AT, AT, "ok"))
    until(lambda: taken.lost == 1, "the loss is reported without another log")
    emitter.emit(("r-0", AT, AT, AT, "ok"))
    until(lambda: taken.ids == ["r-0"], "the next is taken")
    assert taken.lost == 1


def test_dropped_logs_are_counted_as_lost(emitter: Emitter, run_dir: Path) -> None:
    """They wait while there is no agent, and never hold a request up."""
    for number in range(10_500):
        emitter.emit((str(number), AT, AT, AT, "ok"))
    assert emitter.waiting <= 10_000 + 200
    with closing(Taken(run_dir)) as taken:
        until(lambda: taken.ids[-1:] == ["10499"], "the newest is handed over")
        until(lambda: len(taken.ids) + taken.lost == 10_500, "the others are counted")
    assert taken.lost >= 300


def test_the_longest_request_decides_when_to_stop(worker: Worker, run_dir: Path) -> None:
    now = time.time()
    write_notice(run_dir, Notice(State.DRAINING, now, True, "tagged", now + 100, now + 100))
    assert worker.stop_taking_at == pytest.approx(now + 95, abs=0.1)
    worker.took(20.0)
    worker.took(3.0)
    assert worker.stop_taking_at == pytest.approx(now + 75, abs=0.1)
    assert worker.may_take
    for _ in range(100):
        worker.took(1.0)
    assert worker.stop_taking_at == pytest.approx(now + 94, abs=0.1)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"state": "flying"}', '{"state": "serving"}'])
def test_an_unreadable_notice_changes_nothing(worker: Worker, run_dir: Path, text: str) -> None:
    assert not worker.may_take
    write_notice(run_dir, Notice(State.SERVING, time.time()))
    assert worker.may_take
    (run_dir / "notice.json").write_text(text)
    assert (worker.may_take, worker.must_hand_back) == (True, False)
    worker.stop()
    assert (worker.may_take, worker.stopping) == (False, True)


def test_a_slow_thread_hides_no_notice(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on in the middle of another thread's look, which has the new notice."""
    read, may_go_on = threading.Event(), threading.Event()

    def reads(folder: Path) -> Notice | None:
        found = read_notice(folder)
        if threading.current_thread() is slow:
            read.set()
            may_go_on.wait(60)
        return found

    class Reader(NoticeReader):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if read.is_set() and threading.current_thread() is not slow:
                may_go_on.set()
                slow.join(60)

    reader = Reader(run_dir)
    slow = threading.Thread(target=reader.read)
    monkeypatch.setattr("spotkeeper_worker.notice.read_notice", reads)
    write_notice(run_dir, Notice(State.SERVING, AT))
    slow.start()
    assert read.wait(60)
    write_notice(run_dir, Notice(State.IDLE, AT))
    reader.read()
    assert reader.read() == Notice(State.IDLE, AT)


def test_a_signal_ends_any_wait(worker: Worker, no_hang: None, signals_restored: None) -> None:
    """Two signals arrive in any line of the wait."""
    traced, left = sys.gettrace(), 0

    def trace(frame: object, event: str, _: object) -> Any:
        nonlocal left
        left -= event == "line"
        if not left:
            left -= 1
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
        return trace

    for left in range(1, 40):
        first, worker._stop = left == 1, Stop()
        worker.stop_on_signals()
        sys.settrace(trace)
        try:
            worker.wait(0.001)
        finally:
            sys.settrace(traced)
        assert worker.stopping or not first


def test_an_agent_that_looks_is_no_worker(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at the file of the one that died before, and at the new one before its lock."""
    looks = [os.open(run_dir / "workers" / "gpu-0", os.O_RDONLY | os.O_CREAT)]
    fcntl.flock(looks[0], fcntl.LOCK_SH)
    locked = fcntl.flock

    def looked_at(fd: int, how: int) -> None:
        if how & fcntl.LOCK_EX:
            looks.append(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY))
            locked(looks[-1], fcntl.LOCK_SH)
            threading.Timer(0.05, os.close, looks[-1:]).start()
        locked(fd, how)

    monkeypatch.setattr(fcntl, "flock", looked_at)
    with Worker("gpu-0", run_dir):
        monkeypatch.undo()
        assert read_roster(run_dir, 1, time.time()).not_ready == ("gpu-0",)
    os.close(looks[0])


@pytest.fixture
def another(run_dir: Path) -> Iterator[Callable[[], Future[Worker]]]:
    """Start another worker of the same name in the middle of a call; it waits where it must."""
    with ThreadPoolExecutor(1) as pool:

        def starts() -> Future[Worker]:
            future = pool.submit(Worker, "gpu-0", run_dir)
            wait([future], 0.2)
            return future

        yield starts


@pytest.mark.parametrize("at", [1, 2])
def test_a_new_worker_keeps_its_file_while_that_of_a_dead_one_is_removed(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, another: Callable[[], Future[Worker]], at: int
) -> None:
    """It starts after the agent's lock number `at`."""
    (run_dir / "workers" / "gpu-0").touch()
    started: list[Future[Worker]] = []
    locked, locks = fcntl.flock, []

    def locks_and_then(fd: int, how: int) -> None:
        locked(fd, how)
        if threading.current_thread() is threading.main_thread() and how != fcntl.LOCK_UN:
            locks.append(how)
            if len(locks) == at:
                started.append(another())

    monkeypatch.setattr(fcntl, "flock", locks_and_then)
    read_roster(run_dir, 1, time.time() + 4000)
    monkeypatch.undo()
    with started[0].result(60):
        assert read_roster(run_dir, 1, time.time()).not_ready == ("gpu-0",)


def test_of_two_workers_that_start_with_one_name_one_is_refused(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, another: Callable[[], Future[Worker]]
) -> None:
    second, replace = [], Path.replace

    def replaces(draft: Path, path: Path) -> Path:
        monkeypatch.undo()
        second.append(another())
        return replace(draft, path)

    monkeypatch.setattr(Path, "replace", replaces)
    with Worker("gpu-0", run_dir), pytest.raises(NameTaken):
        second[0].result(60)


def test_a_full_disk_leaves_no_place(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process may go on without the machine's agent, as Celery does."""

    monkeypatch.setattr(os, "pwrite", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        Worker("gpu-0", run_dir)
    monkeypatch.undo()
    assert read_roster(run_dir, 1, time.time()).alive == 0
    assert list((run_dir / "workers").iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "x" * 200, "a b"])
def test_a_bad_name_of_a_worker_is_refused(run_dir: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a worker"):
        Worker(name, run_dir)


FORKS = """
import os, sys, time
from pathlib import Path
from spotkeeper_worker import Worker
from spotkeeper_worker.agent.loop import hold_machine
folder = Path(sys.argv[1])
held = hold_machine(folder)
held.__enter__()
Worker("gpu-0", folder).ready()
if os.fork() == 0:
    print("child", flush=True)
    time.sleep(60)
os.kill(os.getpid(), 9)
"""


@pytest.mark.make_e2e
def test_a_forked_child_holds_neither_name_nor_machine(run_dir: Path) -> None:
    """A worker that is its own agent forks, and is killed; its successor can begin."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", FORKS, str(run_dir)],
        stdout=subprocess.PIPE, start_new_session=True,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"child\n"
        parent.wait(60)
        try:
            until(lambda: read_roster(run_dir, 1, time.time()).ready == (), "the name is free")
            with hold_machine(run_dir):
                pass
        finally:
            os.killpg(parent.pid, 9)


@pytest.mark.make_e2e
@pytest.mark.parametrize(
    "use", ["may_take", "is_serving", "ready()", "request('r', 0.0).__enter__()"]
)
def test_a_worker_made_before_a_fork_raises_in_the_child(worker: Worker, use: str) -> None:
    """gunicorn --preload, and multiprocessing: its logs would be lost without a word."""
    read, write = os.pipe()
    if not (child := os.fork()):
        try:
            eval(f"worker.{use}", {"worker": worker})
        except Forked as error:
            os.write(write, str(error).encode())
        finally:
            worker.close()
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        assert f"process {os.getpid()} made this Worker before a fork" in told.read()
    os.waitpid(child, 0)
    with worker.request("r-0", time.time()):
        assert worker._place.busy == 1


@pytest.mark.parametrize("stepped_s", [0.0, -0.0004, -3600.0, 3600.0])
@pytest.mark.parametrize("state", [State.DRAINING, State.BOOTING, State.IDLE, State.GONE])
def test_no_step_of_the_clock_lets_a_worker_take_requests(
    worker: Worker, run_dir: Path, monkeypatch: pytest.MonkeyPatch, state: State, stepped_s: float
) -> None:
    """The clock steps after the agent wrote the notice, whose text is rounded to milliseconds."""
    write_notice(run_dir, Notice(state, AT + 0.0007, state is State.DRAINING))
    monkeypatch.setattr("spotkeeper_worker.worker.time.time", lambda: AT + 0.0007 + stepped_s)
    assert not worker.may_take
    assert worker.stop_taking_at == 0.0
