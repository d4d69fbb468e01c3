"""The collecting turn over a table in memory: who fails, who counts, and how often."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from spotkeeper.border import search_log
from spotkeeper.border.events import Message
from spotkeeper.border.search_log import MAX_LOGS
from spotkeeper.domain.load.digest import LATE_AFTER_S
from spotkeeper.domain.load.load import LoadDigest
from spotkeeper.domain.load.request_queue import QueueLength
from spotkeeper.domain.load.summarise import summarise
from spotkeeper.ports import FleetError, Throttled
from spotkeeper.turns import collect_search_logs
from spotkeeper.turns.collect_search_logs import BATCH_LOGS, CollectReport, collect
from spotkeeper_lab.fakes import FakeLoadTable
from tests.search_logs import FLEET, SENT, before, lines, message, packed, sent_log

KNOWN = frozenset({FLEET, "search"})


class Table(FakeLoadTable):
    """A table that leaves its first `unprocessed` digests, or raises."""

    unprocessed = 0
    error: FleetError | None = None

    def add(self, digests: Sequence[LoadDigest]) -> Sequence[str]:
        if self.error:
            raise self.error
        super().add(digests[self.unprocessed :])
        return [digest.key for digest in digests[: self.unprocessed]]


def run(messages: Sequence[Message], table: FakeLoadTable) -> CollectReport:
    return collect(messages, table, KNOWN, FLEET)


def counted(logs: int, late: int = 0, skewed: int = 0, duplicates: int = 0) -> dict[str, int]:
    """What is counted of every fleet whose logs were stored."""
    return {
        "SearchLogs": logs, "LateSearchLogs": late, "ClockSkewed": skewed,
        "DuplicateMessages": duplicates,
    }  # fmt: skip


def finished(table: FakeLoadTable, now: datetime = SENT, fleet: str = FLEET) -> int:
    return summarise(table.since(fleet, before(300)), now, 300).finished


def test_a_log_in_several_messages_of_a_batch_counts_once() -> None:
    table = Table()
    resent = message([sent_log(1), sent_log(2)], "resent", SENT + timedelta(seconds=2))
    report = run([resent, message([sent_log(0), sent_log(1)], "first")], table)
    assert report.counts == {FLEET: counted(3, duplicates=1)}
    assert finished(table) == 3
    # Delivered again alone, it is known by its content, and the digest without the log counts.
    run([resent], table)
    assert (finished(table), len(table.items)) == (3, 3)


def test_logs_of_a_fleet_that_does_not_exist_fail_by_name() -> None:
    table = Table()
    report = run([message([sent_log(0), sent_log(1, fleet="ghost")])], table)
    assert report.refused["m"] == ("fleet: ghost has no fleet document; known are ocr, search")
    assert finished(table) == 0
    report = collect([message(sent_log())], table, (), FLEET)
    assert report.refused["m"] == "fleet: ocr has no fleet document; known are none"


def test_skewed_and_late_logs_and_those_left_out_are_counted() -> None:
    """What arrived too late or was left out is lost to the load."""
    ahead = sent_log(finished_at=before(-60).isoformat())
    ended = {"finished_at": 60.0, "started_at": 62.0, "enqueued_at": 62.5}
    over = {name: before(LATE_AFTER_S + ago).isoformat() for name, ago in ended.items()}
    far = {"enqueued_at": before(20).isoformat()}
    messages = [
        message(ahead, "a"),
        message([sent_log(number, **over) for number in range(1, 4)], "late"),
        message([sent_log(4), sent_log(5, **far)], "left out"),
    ]
    lost = {"SearchLogsLost": 4, "SearchLogsRefused": 1}
    assert run(messages, Table()).counts == {FLEET: counted(5, late=3, skewed=1) | lost}


def test_a_clock_hours_ahead_is_counted_and_a_day_ahead_fails_its_message_alone() -> None:
    table = Table()
    hours = sent_log(finished_at=before(-3600).isoformat())
    assert not run([message(hours)], Table()).refused
    began, ended = before(-90_000).isoformat(), before(-90_001).isoformat()
    far = {"enqueued_at": began, "started_at": began, "finished_at": ended}
    ahead = message(sent_log(0, **far), "ahead")
    report = run([ahead, message(sent_log(1), "right")], table)
    assert report.refused["ahead"].startswith("finished_at: ")
    assert finished(table) == 1


def test_what_was_not_stored_fails_with_all_its_messages_and_does_not_count() -> None:
    other = message(sent_log(1), "c", SENT + timedelta(seconds=1))
    same = [message(sent_log(), "a"), other, message(sent_log(), "b")]
    table = Table()
    table.unprocessed = 1
    report = run(same, table)
    assert report.unstored.keys() == {"a", "b"}
    assert "delivered again" in report.failed["a"]
    assert report.counts == {FLEET: counted(1)}


def test_a_table_that_fails_fails_every_message_that_was_read() -> None:
    table = Table()
    table.error = Throttled("writing to the load table: SlowDown")
    report = run([message(sent_log(), "a"), message("?", "b")], table)
    assert report.unstored == {"a": "writing to the load table: SlowDown"}
    assert report.refused.keys() == {"b"}
    assert report.counts == {FLEET: {"MessagesRefused": 1}}


@pytest.mark.parametrize(
    ("logs", "messages", "failed"), [(201, 2, 2), (200, BATCH_LOGS // MAX_LOGS + 1, 2)]
)
def test_small_messages_of_very_many_logs_cost_the_honest_ones_nothing(
    monkeypatch: pytest.MonkeyPatch, logs: int, messages: int, failed: int
) -> None:
    """Twenty legal messages of 34,000 logs took more memory than the function has.

    The limits are a hundredth here.
    """
    monkeypatch.setattr(search_log, "MAX_LOGS", 200)
    monkeypatch.setattr(collect_search_logs, "BATCH_LOGS", 200 * BATCH_LOGS // MAX_LOGS)
    text = lines([sent_log(number) for number in range(logs)])
    forged = [
        message(packed(text.replace("r-", f"{name}-")), f"forged {name}")
        for name in range(messages)
    ]
    table = Table()
    report = run([*forged, message(sent_log(), "honest")], table)
    refused = {**report.refused, **report.unstored}
    assert (len(refused), "honest" in refused) == (failed, False)
    assert finished(table) == 1 + (messages - failed) * logs
    assert {"at most" in why or "delivered again" in why for why in refused.values()} == {True}


# --- what agents tell -----------------------------------------------------------------------------


class Looks:
    """Looks as they were kept; raises what it is given instead."""

    def __init__(self, error: FleetError | None = None) -> None:
        self.kept: dict[str, QueueLength] = {}
        self._error = error

    def keep(self, looks: Mapping[str, QueueLength]) -> None:
        if self._error is not None:
            raise self._error
        self.kept |= looks


def told(number: int, ago_s: float, ready: int, **changed: object) -> dict[str, object]:
    queue = {"vhost": "/", "name": "requests", "ready": ready, "unacknowledged": 1}
    agent = {"queue": queue | {"at": before(ago_s).isoformat()}} | changed
    return sent_log(number, agent=agent)


def test_lost_logs_are_reported_by_fleet() -> None:
    lost = {"lost": 3, "clamped": 2, "refused": 1}
    messages = [
        message(told(0, 9, 0, **lost), "a"),
        message(told(1, 9, 0, **lost) | {"fleet": "search"}, "b"),
        message(told(0, 9, 0, **lost), "a again"),
    ]
    metrics = run(messages, Table()).counts
    for fleet in (FLEET, "search"):
        assert (metrics[fleet]["SearchLogsLost"], metrics[fleet]["SearchLogsClamped"]) == (4, 2)


def test_a_message_of_a_trouble_alone_names_its_fleet() -> None:
    named = {"a": "search", "b": "ocr", "c": "", "d": "gone"}
    troubles = [
        message({"version": 1, "fleet": fleet, "agent": {"trouble": f"{machine}: no"}}, machine)
        for machine, fleet in named.items()
    ]
    report = run([*troubles, replace(troubles[0], message_id="again")], Table())
    told = [(it.reason[0], it.fleet) for it in report.troubles]
    assert sorted(told) == [("a", "search"), ("b", FLEET), ("c", FLEET), ("d", FLEET)]
    assert not report.failed


def test_the_newest_look_at_each_queue_is_kept() -> None:
    looks = Looks()
    alone = {"version": 1, "agent": told(0, 3, 8)["agent"]}
    redis = {"kind": "redis", "vhost": "0", "name": "a/b", "ready": 5, "unacknowledged": 2}
    # A clock that is ahead is not believed.
    there = sent_log(3, agent={"queue": redis | {"at": before(-90).isoformat()}})
    sent = {"a": told(1, 20, 5), "b": alone, "c": told(2, 9, 6), "d": there}
    report = collect([message(sent[it], it) for it in sent], Table(), KNOWN, FLEET, looks)
    assert looks.kept == {
        "rabbitmq://%2F/requests": QueueLength(waiting=8, in_flight=1, seen_at=before(3)),
        "redis://0/a%2Fb": QueueLength(waiting=5, in_flight=2, seen_at=SENT),
    }
    assert (report.refused, report.counts) == ({}, {FLEET: counted(3)})


def test_looks_that_cannot_be_kept_cost_no_log() -> None:
    table = Table()
    looks = Looks(Throttled("SlowDown"))
    report = collect([message(told(0, 9, 0))], table, KNOWN, FLEET, looks)
    assert (report.looks_unkept, finished(table)) == ("SlowDown", 1)
    assert not report.failed
