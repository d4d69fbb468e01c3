"""Celery's workers of a fleet, on real brokers: Redis, RabbitMQ, and a stand-in for SQS."""

import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spotkeeper_worker.celery import Gate, _stamp
from spotkeeper_worker.notice import Notice, write_notice
from spotkeeper_worker.states import State
from spotkeeper_worker.testing import until
from tests.worker.brokers import broker, redis
from tests.worker.celery_shop import Machine, Shop

__all__ = ["broker"]
AT = 1_763_632_800.0
E2E = [pytest.mark.make_e2e, pytest.mark.allow_hosts(["127.0.0.1", "::1", "localhost"])]


def test_a_task_waits_since_it_was_published_or_is_due() -> None:
    headers: dict[str, Any] = {"eta": None}
    _stamp(headers)
    assert headers["spotkeeper_enqueued_at"] == pytest.approx(time.time(), abs=60)
    headers["eta"] = "2099-01-01T00:00:00+00:00"
    _stamp(headers)
    assert headers["spotkeeper_enqueued_at"] == 4_070_908_800.0


def test_a_task_begins_only_if_its_kind_will_be_done(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    gate = Gate(tmp_path, margin_s=5.0)
    assert not gate.may_take("long", AT)
    write_notice(tmp_path, Notice(State.SERVING, AT))
    gate.learn({"1": ("long", AT), "2": ("short", AT)}, AT)
    gate.learn({"1": ("long", AT)}, AT + 1)
    gate.learn({}, AT + 60)
    assert gate.may_take("long", AT)
    leaves = Notice(State.DRAINING, AT, True, "tagged", AT + 50, AT + 50)
    write_notice(tmp_path, leaves)
    assert (gate.may_take("long", AT), gate.may_take("short", AT)) == (False, True)
    assert (gate.may_take("short", AT + 44), gate.may_take_any(AT + 44)) == (False, True)
    assert not gate.may_take_any(AT + 45)
    # What was refused once would be delivered again and again.
    gate.refuse("long")
    assert not gate.may_take_any(AT + 44)
    write_notice(tmp_path, Notice(State.SERVING, AT + 44))
    assert gate.may_take_any(AT + 44)
    write_notice(tmp_path, leaves)
    assert gate.may_take_any(AT + 44)
    assert (gate.must_hand_back(AT + 47), gate.must_hand_back(AT + 48)) == (False, True)
    # What is given back is not taken again, however small the margin.
    assert not Gate(tmp_path, margin_s=0.0).may_take_any(AT + 49)


# --- real ones ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


URLS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "redis": ("redis_url", str),
    "rabbitmq": ("broker", lambda broker: broker.url()),
    "sqs": ("moto_url", lambda url: url.replace("http://", "sqs://testing:testing@") + "//"),
}


@pytest.fixture(params=URLS)
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    fixture, url_of = URLS[request.param]
    made = Shop(tmp_path, url_of(request.getfixturevalue(fixture)))
    yield made
    for machine in made.machines:
        machine.close()


def by_status(machine: Machine) -> Counter[str]:
    return Counter(log["status"] for log in machine.logs)


class TestOnRealBrokers:
    pytestmark = E2E

    @pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
    def test_a_drain_returns_prefetched_tasks(self, shop: Shop, pool: str) -> None:
        """It has ended long before the visibility time-out of an hour."""
        first, second = shop.machine(), shop.machine()
        shop.publish("[work.delay(f'r-{n}', 0.1) for n in range(60)]")
        first.start("-P", pool)
        until(lambda: len(shop.done) >= 10, "the first works")
        first.say(State.DRAINING)
        until(lambda: "consuming stops" in first.said, "it stops")
        received = Counter(re.findall(r"\[([\w-]{36})\] received", first.said))
        assert max(received.values()) <= 3, "RabbitMQ drops a task after 20 deliveries"
        second.start("-P", pool)
        until(lambda: len(shop.done) == 60, "the second does the rest")
        until(lambda: len(first.logs) + len(second.logs) == 60, "all are logged")
        of_second = len(second.logs)
        first.say(State.SERVING)
        second.say(State.DRAINING)
        until(lambda: "consuming stops" in second.said, "the second stops")
        shop.publish("[work.delay(f's-{n}') for n in range(20)]")
        until(lambda: len(shop.done) == 80, "the first works again")
        assert set(shop.done.values()) == {1}
        until(lambda: len(first.logs) + len(second.logs) == 80, "all are logged")
        assert by_status(first) + by_status(second) == {"ok": 80}
        assert len(second.logs) == of_second, "it takes nothing once it has stopped"
        assert all(log["enqueued_at"] <= log["started_at"] for log in first.logs)

    def test_each_end_of_a_task_has_its_status(self, shop: Shop) -> None:
        machine = shop.machine()
        machine.start()
        shop.publish("for task in (fail, soft, hard, again): task.delay()\nwork.delay('r-0')")
        until(lambda: len(machine.logs) >= 6, "six ends are logged")
        assert by_status(machine) == {"ok": 2, "error": 2, "timeout": 2}
        assert all(log["worker_id"].startswith("m0@test-") for log in machine.logs)

    def test_a_task_that_will_not_be_done_is_given_back_before_the_end(self, shop: Shop) -> None:
        machine = shop.machine()
        machine.start()
        shop.publish("work.delay('r-0', 600)")
        until(lambda: "busy=00001" in machine.roster, "it began")
        machine.say(State.DRAINING, until_s=3)
        until(lambda: "was returned to the queue" in machine.said, "it is returned to the queue")
        until(lambda: shop.keeps(1), "another machine can have it")
        machine.kill()
        assert shop.waiting == 1

    def test_a_task_for_a_drained_machine_is_not_lost(self, shop: Shop) -> None:
        """It listened when it began to drain; the broker may answer it with the next task."""
        first, second = shop.machine(), shop.machine()
        first.start()
        code = (
            "from tests.worker.celery_app import *\nwork.delay('r-0'); input(); work.delay('r-1')"
        )
        with shop.program(code) as producer:
            until(lambda: len(shop.done) == 1, "both are there")
            first.say(State.DRAINING)
            until(lambda: "consuming stops" in first.said, "it stops")
            producer.communicate("\n")
        second.start()
        until(lambda: shop.done == {"r-0": 1, "r-1": 1}, "the other does it")

    def test_without_an_agent_tasks_are_done(self, shop: Shop) -> None:
        machine = shop.machine()
        shutil.rmtree(machine.folder / "workers")
        machine.start()
        shop.publish("work.delay('r-0')")
        until(lambda: shop.done == {"r-0": 1}, "it is done")
        assert "there is no agent on this machine" in machine.said
