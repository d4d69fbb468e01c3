"""Search logs that were accepted are sent until SQS has them, whatever happens meanwhile."""

import base64
import contextlib
import errno
import gzip
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from spotkeeper.border.search_log import read
from spotkeeper_worker.logs.journal import Journal
from spotkeeper_worker.logs.outbox import NotSent, Outbox
from spotkeeper_worker.logs.pace import PaceSettings
from spotkeeper_worker.testing import until
from spotkeeper_worker.times import as_text
from tests.search_logs import SENT, digest_of
from tests.worker.logs import AWS, Queue, a_log, kept, lines


def outbox(folder: Path, queue: Queue, pace_s: float = 0.01, **journal: int) -> Outbox:
    pace = PaceSettings(pace_s, 2 * pace_s)
    return Outbox(Journal(folder, **journal), queue.send, AWS, pace, first_retry_s=0.01)


@contextlib.contextmanager
def sending(folder: Path, queue: Queue, **settings: Any) -> Iterator[Outbox]:
    """An outbox, of which the queue has everything in the end."""
    box = outbox(folder, queue, **settings)
    yield box
    box.hurried = True
    while box.waiting:
        assert box.step()
    box.close()


@contextlib.contextmanager
def sending_by_itself(folder: Path, queue: Queue) -> Iterator[Outbox]:
    """The same with its thread, which tries again what failed."""
    box = outbox(folder, queue)
    box.start()
    yield box
    assert box.flush(60)
    assert box.alive
    box.close()


def test_a_message_is_repeated_byte_for_byte_until_it_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue()
    queue.refuses = True
    with sending_by_itself(tmp_path, queue) as box:
        box.accept([a_log(n) for n in range(3)], "s", 1)
        until(lambda: len(queue.tried) >= 3, "it is tried again")
        queue.refuses = False
    assert "search logs wait: SendMessage: AccessDenied: no" in caplog.text
    assert set(queue.tried) == set(queue.bodies)
    assert len(queue.bodies) == 1


def test_a_wrong_log_costs_the_others_nothing_and_a_batch_counts_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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
    assert sorted(counted(queue)) == ["r-0", "r-3", "r-4"]
    told = {name: sum(each[name] for each in agents(queue)) for name in ("lost", "refused")}
    assert told == {"lost": 7, "refused": 2}


def counted(queue: Queue) -> list[str]:
    """What the collector counts of all messages, sent now; raises NotDigestible."""
    messages = [read(body).logs for body in queue.bodies]
    for logs in messages:
        digest_of(logs, datetime.fromtimestamp(time.time(), UTC))
    return [log.request_id for logs in messages for log in logs]


def unpacked(body: str) -> list[str]:
    return gzip.decompress(base64.b64decode(body)).decode().splitlines()


def agents(queue: Queue) -> list[dict[str, int]]:
    """What messages tell beside their logs."""
    lines = [json.loads(line) for body in queue.bodies for line in unpacked(body)]
    return [line["agent"] for line in lines if "agent" in line]


def test_an_hour_of_refusals_keeps_the_newest_and_tells_the_loss(tmp_path: Path) -> None:
    queue = Queue()
    queue.refuses = True
    with sending(tmp_path, queue, most_logs=1000) as box:
        for batch in range(1, 31):
            box.accept([a_log(n) for n in range(100)], "s", batch)
        assert box.waiting <= 1000
        queue.refuses = False
        box.accept([a_log(0)], "s", 31)
    lines = [line for body in queue.bodies for line in unpacked(body)]
    told = sum(agent["lost"] for agent in agents(queue))
    assert told + len(lines) == 3001


@pytest.mark.parametrize("batch_of", [1, 150, 500])
def test_no_message_has_more_workers_than_the_collector_takes(
    tmp_path: Path, batch_of: int
) -> None:
    queue = Queue()
    logs = [a_log(number, worker_id=f"cgi-{number % 450}") for number in range(500)]
    with sending(tmp_path, queue, pace_s=60) as box:
        for number, first in enumerate(range(0, 500, batch_of)):
            box.accept(logs[first : first + batch_of], "s", number + 1)
    assert sorted(counted(queue)) == sorted(log["request_id"] for log in logs)
    assert len(queue.bodies) == 3


def test_a_long_batch_is_several_messages_that_sqs_takes(tmp_path: Path) -> None:
    queue = Queue()
    with sending(tmp_path, queue) as box:
        named = random.Random(1)
        ids = ["".join(chr(named.randint(0x4E00, 0x9FFF)) for _ in range(128)) for _ in range(500)]
        box.accept([a_log(0, request_id=each, worker_id=each[::-1]) for each in ids], "s", 1)
    assert max(map(len, queue.bodies)) <= 256 * 1024
    assert sorted(counted(queue)) == sorted(ids)


def test_a_batch_of_several_messages_counts_once_though_a_kill_cut_it(tmp_path: Path) -> None:
    """The agent ends between two parts of a batch; its worker sends the batch again."""
    logs = [a_log(number, worker_id=f"cgi-{number}") for number in range(500)]
    with pytest.raises(Killed):
        Outbox(Cut(tmp_path), Queue().send, AWS).accept(logs, "s", 1)
    queue = Queue()
    with sending(tmp_path, queue) as again:
        again.accept(logs, "s", 1)
    assert sorted(counted(queue)) == sorted(log["request_id"] for log in logs)


class Killed(Exception):
    """The process ended."""


class Cut(Journal):
    """A journal whose process ends once it has a part of a batch."""

    def append(self, lines: Sequence[str], session: str, batch: int) -> None:
        super().append(lines, session, batch)
        raise Killed


def test_what_an_agent_before_this_one_left_is_no_part_of_its_message(tmp_path: Path) -> None:
    left = Journal(tmp_path)
    left.append(lines(0, 3), "a", 1)
    left.close()
    queue = Queue()
    with sending(tmp_path, queue) as box:
        box.accept([a_log(3)], "s", 1)
    assert [len(unpacked(body)) for body in queue.bodies] == [3, 1]


def test_a_look_at_a_request_queue_goes_alone_too_and_does_not_pile_up(tmp_path: Path) -> None:
    queue = Queue()

    def look(ready: int) -> None:
        told = {"vhost": "/", "name": "q", "ready": ready, "unacknowledged": 0}
        box.tell({**told, "at": as_text(SENT.timestamp())})

    def looks() -> list[int]:
        notes = [note for body in queue.bodies for _, note in read(body).notes]
        return [found.length.waiting for note in notes if (found := note.look(SENT))]

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
    assert [log.request_id for body in queue.bodies for log in read(body).logs] == ["r-0"]


# --- what nobody thought of -----------------------------------------------------------------------


def test_an_error_that_nobody_thought_of_is_told_and_sending_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Queue()
    queue.breaks = [RuntimeError("a bug"), KeyError("another")]
    with sending_by_itself(tmp_path, queue) as box:
        box.accept([a_log(0)], "s", 1)
    assert [log.request_id for body in queue.bodies for log in read(body).logs] == ["r-0"]
    told = [record.exc_info for record in caplog.records if record.exc_info]
    assert [kind for kind, *_ in told] == [KeyError, RuntimeError]


def test_a_sender_that_is_heard_all_along_is_not_forgotten_for_many_others(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for batch in range(1, 1200):
        journal.append(lines(batch, 1), "a", batch)
        journal.append(lines(batch, 1), f"file:{batch}", 1)
    kept(journal)
    journal.close()
    assert Journal(tmp_path).last_of("a") == 1199


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
    found = [log.request_id for body in queue.bodies for log in read(body).logs]
    assert found == ["r-0", "r-1", "r-2", "r-3"]
    assert Journal(tmp_path).waiting == 0


def test_a_journal_writes_into_no_file_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_what_was_sent_while_the_disk_was_full_is_not_sent_again(tmp_path: Path) -> None:
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


def test_a_batch_that_comes_while_the_agent_ends_stays_with_its_sender(tmp_path: Path) -> None:
    """It is not confirmed, and the next agent takes it."""
    box = outbox(tmp_path, Queue())
    box.close()
    with pytest.raises(OSError, match="the agent ends"):
        box.accept([a_log()], "s", 1)
    queue = Queue()
    with sending(tmp_path, queue) as box:
        box.accept([a_log()], "s", 1)
    assert counted(queue) == ["r-0"]
