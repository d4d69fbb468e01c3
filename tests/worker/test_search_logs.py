"""A search log's way to the queue: checked, kept on disk, and sent until SQS has it."""

import contextlib
import errno
import itertools
import json
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cost import GOAL_USD, sent
from spotkeeper.border.search_log import read
from spotkeeper_lab.traces.requests import generate_requests
from spotkeeper_worker.agent.settings import Settings
from spotkeeper_worker.log import Sometimes
from spotkeeper_worker.logs.files import collect
from spotkeeper_worker.logs.intake import LogRefused, take
from spotkeeper_worker.logs.journal import Journal
from spotkeeper_worker.logs.outbox import NotSent, Outbox
from spotkeeper_worker.logs.pace import Pace, PaceSettings
from spotkeeper_worker.testing import until
from spotkeeper_worker.testing.machine import unpacked
from spotkeeper_worker.times import as_text, read_time
from tests.search_logs import SENT, digest_of
from tests.worker.logs import AT, AWS, Accepted, Queue, a_log, kept, lines

# --- what is taken --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ("a text", "a search log is a JSON object"),
        (a_log(request_id=None), "request_id: is missing"),
        (a_log(request_id="x" * 300 * 1024), "request_id: 'xxx"),
        (a_log(worker_id=""), "worker_id: ''"),
        (a_log(worker_id=7), "worker_id: '7'"),
        (a_log(status="fine"), "status: 'fine' is none of ok, error, timeout"),
        (a_log(enqueued_at="yesterday"), "enqueued_at: 'yesterday' is not an RFC 3339 time"),
        (a_log(enqueued_at="2025-11-20T10:00:00"), "is not an RFC 3339 time with a zone"),
        (a_log(enqueued_at=1763632800), "enqueued_at"),
        (a_log(finished_at="9999-12-31T23:59:59-05:00"), "finished_at: year 10000 is out of range"),
        (a_log(request_id="\ud800"), "request_id: "),
        (a_log(enqueued_at=as_text(AT + 60)), "started_at: lies 59.000 s before"),
        (a_log(finished_at=as_text(AT - 60)), "finished_at: lies 61.000 s before"),
        (a_log(finished_at=as_text(AT + 90_000)), "more than 24 hours after started_at"),
        (a_log(enqueued_at=as_text(AT - 15 * 86_400)), "more than 14 days after enqueued_at"),
    ],
)
def test_a_log_that_the_collector_would_refuse_is_refused(log: object, why: str) -> None:
    with pytest.raises(LogRefused, match=why):
        take(log, AWS, 5.0)


def test_a_log_from_the_future_is_refused_alone() -> None:
    """Local time that was written as UTC."""
    log = a_log()
    now = read_time(log["finished_at"])
    assert take(log, AWS, 5.0, now - 300).line == take(log, AWS, 5.0).line
    for ahead in (301, 3600, 43_200):
        why = f"finished_at: lies {ahead} s in the future; is a clock wrong"
        with pytest.raises(LogRefused, match=why):
            take(log, AWS, 5.0, now - ahead)


def test_a_small_inversion_of_two_clocks_is_taken_out() -> None:
    for behind_s in (0.003, 4.9):
        taken = take(a_log(enqueued_at=as_text(AT + 1 + behind_s)), AWS, 5.0)
        assert taken.clamped
        (found,) = read(taken.line).logs
        assert found.enqueued_at == found.started_at


@given(
    st.dictionaries(
        st.sampled_from(list(a_log())),
        st.text(max_size=20)
        | st.integers()
        | st.none()
        | st.sampled_from([a_log()["started_at"]])
        | st.datetimes().map(lambda at: f"{at.isoformat()}Z"),
    )
)
def test_whatever_is_taken_the_collector_takes(changed: dict[str, Any]) -> None:
    try:
        line = take(a_log(**changed), AWS, 5.0).line
    except LogRefused:
        return
    assert len(read(line).logs) == 1


def test_a_request_may_wait_as_long_as_sqs_keeps_its_message() -> None:
    """A worker whose logs are refused looks like one that serves nothing, and is replaced."""
    waited = a_log(enqueued_at=as_text(AT - 13.9 * 86_400))
    (found,) = read(take(waited, AWS, 5.0).line).logs
    assert found.enqueued_at.timestamp() == AT - 13.9 * 86_400


def test_unset_times_are_accepted() -> None:
    for unset in ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.5+00:00"):
        log = a_log(enqueued_at=unset, started_at=unset, finished_at=unset)
        assert read(take(log, AWS, 5.0).line).logs[0].finished_at.year == 1


# --- what is kept ---------------------------------------------------------------------------------


def test_accepted_batches_survive_a_kill(tmp_path: Path) -> None:
    before = Journal(tmp_path)
    before.append(lines(0, 3), "a", 1)
    before.seal()
    before.append(lines(3, 2), "a", 2)
    with (tmp_path / "open").open("a") as file:
        file.write("\n".join(lines(5, 2)) + '\n{"requ')
    after = Journal(tmp_path)
    assert (after.waiting, after.last_of("a")) == (5, 2)
    after.append(lines(5, 2), "a", 3)
    assert kept(Journal(tmp_path)) == lines(0, 7)


def test_a_message_is_the_same_for_every_agent_that_sends_it(tmp_path: Path) -> None:
    before = Journal(tmp_path)
    before.counts["clamped"] = 2
    before.append(lines(0, 3), "a", 1)
    before.seal({"queue": {"name": "requests", "ready": 5}})
    first, again = before.oldest(), Journal(tmp_path).oldest()
    assert first is not None
    assert again is not None
    assert first.body() == again.body()
    assert json.loads(first.counts) == {
        "lost": 0, "clamped": 2, "refused": 0, "queue": {"name": "requests", "ready": 5},
    }  # fmt: skip


def test_the_segment_in_flight_is_neither_dropped_nor_counted_as_lost(tmp_path: Path) -> None:
    """SQS may have it: it would be counted as lost, and arrive."""
    journal = Journal(tmp_path, most_logs=4)
    journal.append(lines(0, 3), "a", 1)
    journal.seal()
    sent = journal.oldest()
    assert sent is not None
    journal.append(lines(3, 3), "a", 2)
    assert journal.oldest() == sent
    journal.append(lines(6, 1), "a", 3)
    journal.seal()
    journal.done(sent)
    rest = journal.oldest()
    assert rest is not None
    assert (list(sent.lines), list(rest.lines)) == (lines(0, 3), lines(6, 1))
    assert json.loads(rest.counts)["lost"] == 3


def test_a_full_disk_costs_only_safety(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path)
    journal.append(lines(0, 2), "a", 1)
    write = os.write

    def full(fd: int, data: bytes) -> int:
        write(fd, data[:7])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    journal.append(lines(2, 2), "a", 2)
    assert "No space left on device" in journal.disk_trouble
    monkeypatch.setattr(os, "write", write)
    journal.append(lines(4, 2), "a", 3)
    assert journal.disk_trouble == ""
    journal.seal()
    # A part of a message would be another message.
    assert Journal(tmp_path).waiting == 0
    assert kept(journal) == lines(0, 6)
    # Who sent what was sent so is known to the next agent.
    after = Journal(tmp_path)
    assert (after.waiting, after.last_of("a")) == (0, 3)


# --- the folder for shell scripts -----------------------------------------------------------------


def test_files_of_scripts_are_taken_once(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    taken = Accepted()
    for name, text in {
        "one.json": json.dumps(a_log(0)),
        "list.json": json.dumps([a_log(1), a_log(2)]),
        "lines.jsonl": f"{json.dumps(a_log(3))}\n{json.dumps(a_log(4))}\n",
        ".half.json": "{",
        "wrong.json": "{",
        "deep.json": "[" * 100_000,
    }.items():
        (tmp_path / "in" / name).write_text(text)

    collect(tmp_path, taken.accept, Sometimes(logging.getLogger("test")))
    assert sorted(log["request_id"] for log in taken) == [f"r-{number}" for number in range(5)]
    assert {path.name for path in (tmp_path / "refused").iterdir()} == {"wrong.json", "deep.json"}
    assert [path.name for path in (tmp_path / "in").iterdir()] == [".half.json"]


# --- what is sent ---------------------------------------------------------------------------------


@contextlib.contextmanager
def sending(
    folder: Path,
    queue: Queue,
    *,
    pace_s: float = 0.01,
    most_logs: int = 10_000,
    thread: bool = False,
) -> Iterator[Outbox]:
    """An outbox, of which the queue has everything in the end; its `thread` tries again."""
    pace = PaceSettings(pace_s, 2 * pace_s)
    box = Outbox(Journal(folder, most_logs), queue.send, AWS, pace, first_retry_s=0.01)
    if thread:
        box.start()
    yield box
    box.hurried = True
    while box.waiting:
        assert box.flush(60) if thread else box.step()
    assert box.alive == thread
    box.close()


def test_a_message_is_repeated_unchanged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    queue = Queue()
    queue.refuses = True
    with sending(tmp_path, queue, thread=True) as box:
        box.accept([a_log(n) for n in range(3)], "s", 1)
        until(lambda: len(queue.tried) >= 3, "it is tried again")
        queue.refuses = False
    assert "search logs wait: SendMessage: AccessDenied: no" in caplog.text
    assert set(queue.tried) == set(queue.bodies)
    assert len(queue.bodies) == 1


def test_a_wrong_log_costs_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    queue, now = Queue(), time.time()
    with sending(tmp_path, queue) as box:
        times = ("enqueued_at", "started_at", "finished_at")
        right, ahead = dict.fromkeys(times, as_text(now)), dict.fromkeys(times, as_text(now + 7200))
        batch = [a_log(0, **right), a_log(1, status="fine"), a_log(2, **ahead), a_log(3, **right)]
        refused = box.accept(batch, "s", 1)
        assert [why.partition(":")[0] for why in refused] == ["status", "finished_at"]
        assert "a search log was refused: status: 'fine'" in caplog.text
        for _ in range(2):
            assert box.accept(batch, "s", 1) == []
        # A report of lost logs that arrives twice counts once, too.
        for _ in range(2):
            box.accept([a_log(4, **right)], "s", 2, 7)
    assert sorted(sent_ids(queue)) == ["r-0", "r-3", "r-4"]
    assert (told(queue, "lost"), told(queue, "refused")) == (7, 2)


def test_refused_and_lost_logs_are_reported_without_another_log(tmp_path: Path) -> None:
    """Where every log is wrong, no other would carry their number. One message a minute does."""
    queue = Queue()
    with sending(tmp_path, queue) as box:
        box.accept([a_log(0, status="fine"), a_log(1, status="fine")], "s", 1, lost=3)
        queue.refuses = True
        with pytest.raises(NotSent):
            box.step()
        queue.refuses = False
        assert box.step()
        box.accept([a_log(2, status="fine")], "s", 2)
        assert not box.step()
        with patch("time.monotonic", return_value=time.monotonic() + 60):
            assert box.step()
    assert (told(queue, "lost"), told(queue, "refused"), len(set(queue.bodies))) == (3, 3, 2)
    assert [[fleet for fleet, _ in read(body).notes] for body in queue.bodies] == [["ocr"]] * 2


def sent_ids(queue: Queue) -> list[str]:
    """What the collector takes of all messages, oldest first; raises NotDigestible."""
    messages = [read(body).logs for body in queue.bodies]
    for logs in messages:
        if logs:
            digest_of(logs, datetime.fromtimestamp(time.time(), UTC))
    return [log.request_id for logs in messages for log in logs]


def told(queue: Queue, name: str) -> int:
    """How many logs messages tell beside their own: `lost` or `refused` ones."""
    lines = [json.loads(line) for body in queue.bodies for line in unpacked(body).splitlines()]
    return sum(line.get("agent", {}).get(name, 0) for line in lines)


def test_an_hour_of_refusals_keeps_the_newest_logs(tmp_path: Path) -> None:
    queue = Queue()
    queue.refuses = True
    with sending(tmp_path, queue, most_logs=1000) as box:
        for batch in range(1, 31):
            box.accept([a_log(n) for n in range(100)], "s", batch)
        assert box.waiting <= 1000
        queue.refuses = False
        box.accept([a_log(0)], "s", 31)
    assert told(queue, "lost") + len(sent_ids(queue)) == 3001


@pytest.mark.parametrize("batch_of", [1, 150, 500])
def test_no_message_has_too_many_workers(tmp_path: Path, batch_of: int) -> None:
    queue = Queue()
    logs = [a_log(number, worker_id=f"cgi-{number % 450}") for number in range(500)]
    with sending(tmp_path, queue, pace_s=60) as box:
        for number, first in enumerate(range(0, 500, batch_of)):
            box.accept(logs[first : first + batch_of], "s", number + 1)
    assert sorted(sent_ids(queue)) == sorted(log["request_id"] for log in logs)
    assert len(queue.bodies) == 3


def test_a_long_batch_is_several_messages_that_sqs_takes(tmp_path: Path) -> None:
    queue = Queue()
    with sending(tmp_path, queue) as box:
        named = random.Random(1)
        ids = ["".join(chr(named.randint(0x4E00, 0x9FFF)) for _ in range(128)) for _ in range(500)]
        box.accept([a_log(0, request_id=each, worker_id=each[::-1]) for each in ids], "s", 1)
    assert max(map(len, queue.bodies)) <= 256 * 1024
    assert sorted(sent_ids(queue)) == sorted(ids)


def test_a_batch_of_several_messages_counts_once_though_a_kill_cut_it(tmp_path: Path) -> None:
    """The agent ends between two parts of a batch; its worker sends the batch again."""
    logs = [a_log(number, worker_id=f"cgi-{number}") for number in range(500)]
    journal, queue = Journal(tmp_path), Queue()

    def killed_after(*part: Any) -> None:
        Journal.append(journal, *part)
        raise SystemExit

    with patch.object(journal, "append", killed_after), pytest.raises(SystemExit):
        Outbox(journal, queue.send, AWS).accept(logs, "s", 1)
    with sending(tmp_path, queue) as again:
        again.accept(logs, "s", 1)
    assert sorted(sent_ids(queue)) == sorted(log["request_id"] for log in logs)


def test_logs_of_an_earlier_agent_are_a_message_of_their_own(tmp_path: Path) -> None:
    left = Journal(tmp_path)
    left.append(lines(0, 3), "a", 1)
    left.close()
    queue = Queue()
    with sending(tmp_path, queue) as box:
        box.accept([a_log(3)], "s", 1)
    assert [len(unpacked(body).splitlines()) for body in queue.bodies] == [3, 1]


def test_a_look_at_a_request_queue_goes_alone_too_and_does_not_pile_up(tmp_path: Path) -> None:
    queue = Queue()

    def look(ready: int) -> None:
        seen = {"vhost": "/", "name": "q", "ready": ready, "unacknowledged": 0}
        box.tell(queue={**seen, "at": as_text(SENT.timestamp())})

    def looks() -> list[int]:
        notes = [note for body in queue.bodies for _, note in read(body).notes]
        return [found[1].waiting for note in notes if (found := note.look(SENT))]

    with sending(tmp_path, queue) as box:
        look(5)
        assert box.step()
        assert looks() == [5]
        queue.refuses = True
        for ready in range(20):
            look(ready)
        with pytest.raises(NotSent):
            box.step()
        queue.refuses = False
        box.accept([a_log(0)], "s", 1)
        look(20)
    assert looks() == [5, 20]
    # A trouble is sent until the queue has it.
    queue.refuses = True
    with sending(tmp_path, queue) as box:
        box.tell(trouble="on_drain: false failed with status 1")
        with pytest.raises(NotSent):
            box.step()
        queue.refuses = False
        assert box.step()
    assert [note.trouble for _, note in read(queue.bodies[-1]).notes] == [
        "on_drain: false failed with status 1"
    ]
    assert sent_ids(queue) == ["r-0"]


# --- what nobody thought of -----------------------------------------------------------------------


def test_sending_goes_on_after_a_bug(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    queue = Queue()
    queue.breaks = [RuntimeError("a bug"), KeyError("another")]
    with sending(tmp_path, queue, thread=True) as box:
        box.accept([a_log(0)], "s", 1)
    assert sent_ids(queue) == ["r-0"]
    logged = [record.exc_info for record in caplog.records if record.exc_info]
    assert [kind for kind, *_ in logged] == [KeyError, RuntimeError]


def test_an_active_sender_is_remembered(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for batch in range(1, 1200):
        journal.append(lines(batch, 1), "a", batch)
        journal.append(lines(batch, 1), f"file:{batch}", 1)
    kept(journal)
    journal.close()
    assert Journal(tmp_path).last_of("a") == 1199


def test_batches_without_a_log_do_not_fill_the_disk(tmp_path: Path) -> None:
    """As an idle machine's access log has them, of health checks alone."""
    journal = Journal(tmp_path)
    for batch in range(1, 8001):
        journal.append([], "follow:1:abc", batch)
    assert (tmp_path / "open").stat().st_size < 1 << 17
    assert Journal(tmp_path).last_of("follow:1:abc") == 8000


def test_an_older_batch_on_disk_does_not_hide_a_newer_one(tmp_path: Path) -> None:
    """The newer one was in memory while the disk was full, and a kill left the older one's file."""
    (tmp_path / "sessions.json").write_text('{"a": 7}')
    (tmp_path / f"{1:012d}").write_text(f"{lines(0, 1)[0]}\n# batch a 5\n")
    assert Journal(tmp_path).last_of("a") == 7


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE, errno.EDQUOT])
def test_logs_are_sent_while_the_disk_takes_no_further_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    queue = Queue()
    with sending(tmp_path, queue) as box:
        full = Full(error)
        box.hurried = True
        monkeypatch.setattr(os, "open", full.open)
        for number in range(3):
            box.accept([a_log(number)], "s", number + 1)
            assert box.step()
        full.over = True
        box.accept([a_log(3)], "s", 4)
    assert sent_ids(queue) == ["r-0", "r-1", "r-2", "r-3"]
    assert Journal(tmp_path).waiting == 0


def test_a_journal_writes_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal")
    journal.append(lines(0, 1), "a", 1)
    full = Full(errno.ENOSPC)
    monkeypatch.setattr(os, "open", full.open)
    journal.seal()
    with (tmp_path / "another").open("w+") as another:
        journal.append(lines(1, 1), "a", 2)
        assert another.read() == ""
    full.over = True
    assert kept(journal) == lines(0, 2)
    assert "No space left on device" not in journal.disk_trouble


def test_a_message_sent_on_a_full_disk_is_not_sent_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(lines(0, 3), "a", 1)
    # Nothing is written there.
    (tmp_path / ".sessions.json.new").mkdir()
    assert kept(journal) == lines(0, 3)
    journal.close()
    assert Journal(tmp_path).waiting == 0


class Full:
    """A disk that makes no new file until it is over."""

    def __init__(self, error: int) -> None:
        self._error = error
        self._open = os.open
        self.over = False

    def open(self, path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        if flags & os.O_CREAT and not self.over:
            raise OSError(self._error, os.strerror(self._error), str(path))
        return self._open(path, flags, mode, **more)


def test_an_agent_that_ends_accepts_no_batch(tmp_path: Path) -> None:
    """It is not confirmed, and the next agent takes it."""
    with sending(tmp_path, Queue()) as box:
        pass
    with pytest.raises(OSError, match="the agent ends"):
        box.accept([a_log()], "s", 1)
    queue = Queue()
    with sending(tmp_path, queue) as box:
        box.accept([a_log()], "s", 1)
    assert sent_ids(queue) == ["r-0"]


# --- when it is sent ------------------------------------------------------------------------------


def paced(rates: list[tuple[float, float]], wait_s: Callable[[float], float]) -> list[float]:
    """When a worker sends messages. `rates` are pairs of seconds and logs per second."""
    now, sent, pace = 0.0, [], Pace(PaceSettings(), 0.0)
    credit = 0.0
    for seconds, rate in rates:
        for _ in range(int(seconds)):
            now += 1.0
            credit += rate
            while credit >= 1.0:
                credit -= 1.0
                pace.add(300, wait_s(now), now)
            if pace.due(now):
                pace.sent(now)
                sent.append(now)
    return sent


def test_messages_are_rare_until_load_moves() -> None:
    calm = [at for at in paced([(900, 2.0)], lambda now: 0.1) if at > 300]
    assert all(after - before == 30.0 for before, after in itertools.pairwise(calm))
    more = [at for at in paced([(600, 2.0), (60, 6.0)], lambda now: 0.1) if at > 600]
    assert more[0] <= 606
    assert max(b - a for a, b in itertools.pairwise([at for at in more if at <= 640])) < 15
    # The waits grow though the worker is no faster.
    slower = paced([(660, 1.0)], lambda now: 0.1 if now <= 600 else now - 600)
    assert next(at for at in slower if at > 600) <= 615


def test_no_log_waits_for_longer_than_it_may_and_a_full_message_does_not_wait() -> None:
    pace = Pace(PaceSettings(), 0.0)
    for number in range(100):
        pace.add(300, 0.6, 3.0 * number)
        if pace.due(3.0 * number):
            pace.sent(3.0 * number)
    pace.sent(300.0)
    pace.add(300, 0.6, 307.0)
    assert (pace.due(316.9), pace.due(317.0)) == (False, True)
    pace.sent(317.0)
    for _ in range(500):
        pace.add(300, 0.0, 317.0)
    assert pace.due(317.0)


@pytest.mark.parametrize(("wait_s", "failed", "due_s"), [
    (0.1, False, 30.0),  # nothing waits
    (0.6, False, 10.0),
    (0.1, True, 5.0),
])  # fmt: skip
def test_what_matters_is_sent_sooner(wait_s: float, failed: bool, due_s: float) -> None:
    pace = Pace(PaceSettings(), 0.0)
    for number in range(300):
        pace.add(300, wait_s, float(number))
        if pace.due(float(number)):
            pace.sent(float(number))
    pace.sent(300.0)
    times = [300.0 + second for second in range(1, 31)]
    for at in times:
        pace.add(300, wait_s, at, failed=failed)
        if pace.due(at):
            assert at - 300.0 == due_s
            return
    pytest.fail("it is never due")


def test_the_default_pace_keeps_the_bill() -> None:
    default = Settings()
    assert PaceSettings(default.send_after_s, default.send_at_most_s) == PaceSettings()
    day = generate_requests(0, hours=1.0, mean_load=10.0)
    by_default = sent(day, PaceSettings())
    assert by_default.mean_age_s < 15
    assert by_default.usd() < GOAL_USD
