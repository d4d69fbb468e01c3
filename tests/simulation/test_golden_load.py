"""What search logs do to a fleet: sized by load, left alone in silence, dead workers replaced."""

from datetime import timedelta

from spotkeeper.domain.load.digest import SearchLog, Status, digest
from spotkeeper.domain.load.load import Cluster
from spotkeeper.turns.check_health import check_health
from spotkeeper_lab.fakes import instant
from tests.simulation.golden import SPOT, Scenario

MINUTE_S = 60


class Loaded(Scenario):
    """A scenario whose workers send search logs every ten seconds, and whose health is checked."""

    def minutes(
        self, first: int, last: int, busy: float, silent: frozenset[str] = frozenset()
    ) -> None:
        """Let minutes pass in which every worker but the silent ones is busy for a share."""
        for minute in range(first, last):
            self.to(minute * MINUTE_S)
            for ten_s in range(0, MINUTE_S, 10):
                self._serve(minute * MINUTE_S + ten_s, busy, silent)
            check_health([self.fleet], self.ports, instant(minute * MINUTE_S))

    def _serve(self, until_s: float, busy: float, silent: frozenset[str]) -> None:
        serving = [
            i.instance_id
            for i in self.cloud.group(SPOT).instances
            if i.state == "InService" and i.instance_id not in silent
        ]
        if not busy or not serving:
            return
        logs = [_log(instance_id, until_s, 10 * busy) for instance_id in serving]
        self.ports.load.add(digest(logs, instant(until_s), "ocr"))


def _log(instance_id: str, finished_s: float, service_s: float) -> SearchLog:
    finished = instant(finished_s)
    started = finished - timedelta(seconds=service_s)
    return SearchLog(
        request_id=f"{instance_id}-{finished_s:g}",
        worker_id=f"gpu-{instance_id}",
        cluster=Cluster.AWS,
        instance_id=instance_id,
        enqueued_at=started,
        started_at=started,
        finished_at=finished,
        status=Status.OK,
    )


def test_silent_logs_size_nothing() -> None:
    fleet = Loaded(target=6)
    fleet.minutes(3, 20, busy=0.7)
    before = fleet.cloud.group(SPOT).desired
    fleet.minutes(20, 45, busy=0.0)
    assert "stale-search-logs" in fleet.alarms()
    assert fleet.cloud.group(SPOT).desired == before
    assert fleet.total("WorkersReplaced") == 0


def test_little_load_scales_in_slowly_and_much_load_scales_out_at_once() -> None:
    fleet = Loaded(target=6)
    fleet.minutes(3, 20, busy=0.3)
    fleet.minutes(20, 50, busy=0.3)
    low = fleet.cloud.group(SPOT).desired
    assert low < 6
    fleet.minutes(50, 56, busy=0.97)
    assert fleet.cloud.group(SPOT).desired > low
    assert fleet.table() == []


def test_a_worker_that_hangs_is_replaced_and_its_place_is_filled() -> None:
    fleet = Loaded(target=4)
    fleet.minutes(3, 12, busy=0.7)
    hung = fleet.spot_ids()[0]
    fleet.minutes(12, 40, busy=0.7, silent=frozenset({hung}))
    assert hung not in fleet.spot_ids()
    assert fleet.total("WorkersReplaced") == 1
    assert fleet.on_demand == 0
