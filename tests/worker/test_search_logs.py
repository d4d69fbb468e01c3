"""A search log's way to the queue: checked, and kept on disk. That it is sent is in test_outbox."""

import errno
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.border.search_log import read
from spotkeeper_worker.log import Sometimes
from spotkeeper_worker.logs.files import collect
from spotkeeper_worker.logs.intake import LogRefused, take
from spotkeeper_worker.logs.journal import Journal
from spotkeeper_worker.times import as_text, read_time
from tests.worker.logs import AT, AWS, a_log, kept, lines

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
        (a_log(enqueued_at=as_text(AT - 90_000)), "more than 24 hours after enqueued_at"),
    ],
)
def test_what_the_collector_would_refuse_is_refused_alone(log: object, why: str) -> None:
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


def test_times_that_nobody_set_are_taken_as_they_are() -> None:
    for unset in ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.5+00:00"):
        log = a_log(enqueued_at=unset, started_at=unset, finished_at=unset)
        assert read(take(log, AWS, 5.0).line).logs[0].finished_at.year == 1


# --- what is kept ---------------------------------------------------------------------------------


def test_what_was_accepted_is_there_after_a_kill(tmp_path: Path) -> None:
    before = Journal(tmp_path)
    before.append(lines(0, 3), "a", 1)
    before.seal()
    before.append(lines(3, 2), "a", 2)
    after = Journal(tmp_path)
    assert (after.waiting, after.last_of("a")) == (5, 2)
    assert kept(after) == lines(0, 5)


def test_half_a_batch_was_never_accepted(tmp_path: Path) -> None:
    before = Journal(tmp_path)
    before.append(lines(0, 2), "a", 1)
    with (tmp_path / "open").open("a") as file:
        file.write("\n".join(lines(2, 2)) + '\n{"requ')
    after = Journal(tmp_path)
    assert after.last_of("a") == 1
    after.append(lines(2, 2), "a", 2)
    assert kept(Journal(tmp_path)) == lines(0, 4)


def test_a_message_is_the_same_for_every_agent_that_sends_it(tmp_path: Path) -> None:
    before = Journal(tmp_path)
    before.counts["clamped"] = 2
    before.append(lines(0, 3), "a", 1)
    before.seal({"name": "requests", "ready": 5})
    first, again = before.oldest(), Journal(tmp_path).oldest()
    assert first is not None
    assert again is not None
    assert first.body() == again.body()
    assert json.loads(first.told) == {
        "lost": 0, "clamped": 2, "refused": 0, "queue": {"name": "requests", "ready": 5},
    }  # fmt: skip


def test_a_full_disk_costs_nothing_but_safety(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert sorted(kept(journal)) == lines(0, 6)


# --- the folder for shell scripts -----------------------------------------------------------------


def test_files_of_scripts_are_taken_once(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    taken: list[object] = []
    accepted: set[tuple[str, int]] = set()

    def accept(logs: Any, session: str, batch: int) -> list[str]:
        if (session, batch) not in accepted:
            accepted.add((session, batch))
            taken.extend(logs)
        return []

    (tmp_path / "in" / "one.json").write_text(json.dumps(a_log(0)))
    (tmp_path / "in" / "list.json").write_text(json.dumps([a_log(1), a_log(2)]))
    (tmp_path / "in" / "lines.jsonl").write_text(
        f"{json.dumps(a_log(3))}\n{json.dumps(a_log(4))}\n"
    )
    (tmp_path / "in" / ".half.json").write_text("{")
    (tmp_path / "in" / "wrong.json").write_text("{")
    (tmp_path / "in" / "deep.json").write_text("[" * 100_000)
    assert collect(tmp_path, accept, Sometimes(logging.getLogger("test"))) == 5
    assert len(taken) == 5
    assert {path.name for path in (tmp_path / "refused").iterdir()} == {"wrong.json", "deep.json"}
    assert [path.name for path in (tmp_path / "in").iterdir()] == [".half.json"]
