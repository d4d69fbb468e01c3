"""Spotkeeper's own rule: the deployed health turn on the search logs of a replay."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import groupby

import numpy as np

from spotkeeper.domain.decision import Answer, Request, RequestKind
from spotkeeper.domain.fleet import Fleet, Group, Instance, Phase
from spotkeeper.domain.health.decide import (
    HealthAssessment,
    HealthSnapshot,
    apply,
    assess,
    checked,
    plan,
    read_from,
)
from spotkeeper.domain.health_memory import HealthMemory
from spotkeeper.domain.load.digest import SearchLog, Status, merge
from spotkeeper.domain.load.history import LoadHistory
from spotkeeper.domain.load.load import Cluster, LoadDigest, slot_begins, slot_of
from spotkeeper.domain.load.request_queue import QueueLength
from spotkeeper.domain.settings.sizing import Bounds, Objective
from spotkeeper.domain.sizing.shadows import FAMILY, MEMORY_FADE, Choice, Member, unjudged
from spotkeeper_lab.fakes import digest
from spotkeeper_lab.replay.engine import ONPREM, ReplayFleet, Rule
from spotkeeper_lab.replay.seen import Finished, Seen
from spotkeeper_lab.replay.values import ReplaySettings
from spotkeeper_worker.logs.pace import Pace, PaceSettings

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""The instant that a replay calls 0, as the simulated cloud does: shadows draw by it."""
POOL = "us-east-1a/g5.xlarge"
NO_ON_DEMAND = Group(name="on-demand", desired=0, minimum=0, maximum=0)
# A step that no turn reaches: a run with a known member judges no shadows.
NEVER = 10**12
# A search log as an agent writes it.
LINE_BYTES = 250


def instant(seconds: float) -> datetime:
    """The instant of a replay's second, to the millisecond."""
    return EPOCH + timedelta(milliseconds=round(seconds * 1000))


def fleet_of(settings: ReplaySettings) -> Fleet:
    """Return the fleet document of a replay's settings."""
    per_instance = settings.workers_per_instance
    most = max(0, settings.max_workers - settings.onprem)
    return Fleet(
        name="replay",
        spot_group="spot",
        on_demand_group=NO_ON_DEMAND.name,
        workers_per_instance=per_instance,
        slots=settings.slots,
        onprem_workers=settings.onprem,
        request_queue_url="the replay's queue" if settings.queue_known else None,
        bounds=Bounds(
            spot_min=min(-(-settings.min_workers // per_instance), -(-most // per_instance)),
            spot_max=-(-most // per_instance),
            on_demand_max=0,
        ),
        objective=Objective(
            wait_s=settings.wait_s, share=settings.share, start_up_s=round(settings.cold_start_s)
        ),
    )


class Spotkeeper(Rule):
    """`spotkeeper`: the health turn of each minute, as it is deployed.

    With a `member` it follows that one of the family always, and needs no shadows.
    """

    name = "spotkeeper"

    def __init__(self, settings: ReplaySettings, member: Member | None = None) -> None:
        super().__init__(settings)
        self.name = f"best member: {member}" if member else self.name
        self._fleet = fleet_of(settings)
        scores = unjudged(settings.wait_s, settings.share, NEVER)
        self._known = Choice(index=FAMILY.index(member), scores=scores) if member else None
        self._memory = HealthMemory()
        self._history = LoadHistory(scores=scores) if member else LoadHistory()
        self._agents = _Agents(settings.log_batch_s)
        # What was sent in a slot of ten seconds, added up, oldest first.
        self._digests: deque[LoadDigest] = deque()
        # Late requests and worker-hours of each shadow, over all.
        self._sums = np.zeros((2, len(FAMILY)))
        self._requests = 0.0

    def turn(self, seen: Seen, fleet: ReplayFleet) -> tuple[int, list[int]]:
        """Take one turn of the health controller."""
        now, settings = instant(seen.now_s), self.settings
        self._receive(self._agents.sent(seen.finished, seen.now_s))
        since = slot_begins(slot_of(read_from(self._fleet, self._memory.service_mean_s, now)))
        while self._digests and self._digests[0].sent_at < since:
            self._digests.popleft()
        digests = tuple(self._digests)
        length = QueueLength(waiting=seen.queue, in_flight=seen.running)
        group = self._group(fleet, seen.now_s)
        snapshot = HealthSnapshot(
            fleet=self._fleet,
            spot=group,
            sized=group,
            on_demand=NO_ON_DEMAND,
            digests=digests,
            queue=length if settings.queue_known else None,
            history=self._history,
            now=now,
        )
        assessed = self._followed(assess(snapshot, self._memory), seen.now_s)
        wanted = plan(assessed)
        if any(request.kind is RequestKind.REPLACE_WORKER for request in wanted.requests):
            wanted = checked(wanted, digests)
        answers = [(request, Answer.DONE) for request in wanted.requests]
        self._memory = apply(wanted.memory, wanted, answers)
        self.reason = wanted.sizing.reason
        for request in wanted.requests:
            self._act(request, fleet, seen.now_s)
        return settings.onprem + len(fleet.instances) * settings.workers_per_instance, []

    def _followed(self, assessed: HealthAssessment, now_s: float) -> HealthAssessment:
        """Note which member the turn follows, and how the shadows did."""
        before, promised = self._history.scores, assessed.promised
        self._history = assessed.history or self._history
        assert promised is not None
        if self._known:
            return replace(assessed, promised=replace(promised, choice=self._known))
        after, choice = self._history.scores, promised.choice
        if steps := after.next_step - before.next_step:
            fade = MEMORY_FADE**steps if before.late else 0.0
            faded = np.array([before.late, before.hours]) if before.late else 0.0
            self._sums += np.array([after.late, after.hours]) - fade * faded
            self._requests += after.requests - fade * before.requests
        if not self.followed or choice.index != self.followed[-1][1].index:
            self.followed = [*self.followed, (now_s, choice)]
        return assessed

    def _group(self, fleet: ReplayFleet, now_s: float) -> Group:
        """Return the spot group: every launch is there at once, and serves when it is ready."""
        instances = tuple(
            Instance(
                instance_id=_id_of(name),
                pool=POOL,
                phase=Phase.IN_SERVICE if ready_s <= now_s else Phase.LAUNCHING,
            )
            for name, (_, ready_s) in fleet.instances.items()
        )
        most = self._fleet.bounds.spot_max
        return Group(
            name="spot", desired=len(instances), minimum=0, maximum=most, instances=instances
        )

    def _act(self, request: Request, fleet: ReplayFleet, now_s: float) -> None:
        """Do what AWS would."""
        settings = self.settings
        if request.desired is not None:
            workers = settings.onprem + request.desired * settings.workers_per_instance
            fleet.resize(workers, now_s, math.inf)
            return
        fleet.end({_name_of(i) for i in request.instances}, now_s, math.inf)
        if request.kind is RequestKind.REPLACE_WORKER:
            fleet.launch(1, now_s, now_s + settings.cold_start_s)

    def _receive(self, messages: Sequence[tuple[float, list[Finished]]]) -> None:
        """Add the messages of agents: one digest for each slot in which some were sent."""
        found = [
            one
            for sent_s, logs in messages
            for one in digest([*map(_log_of, logs)], instant(sent_s), self._fleet.name)
        ]
        for slot, digests in groupby(found, key=lambda one: slot_of(one.sent_at)):
            begun = self._digests and slot_of(self._digests[-1].sent_at) == slot
            known = [self._digests.pop()] if begun else []
            self._digests.append(merge([*known, *digests]))

    def known_afterwards(self) -> list[Member]:
        """Return the members whose shadows kept the promise over all, the cheapest first."""
        late, hours = self._sums
        kept = np.flatnonzero(late / max(1.0, self._requests) <= 1.0 - self.settings.share)
        return [FAMILY[at] for at in kept[np.argsort(hours[kept], kind="stable")]]


class _Agents:
    """The agents of all machines, each with its own pace, and the queue between them and a turn.

    An agent looks at each log and every `every_s`; a batch of messages is read as long after.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._looked_s = 0.0
        self._logs: list[Finished] = []
        self._machines: dict[int, tuple[Pace, list[Finished]]] = {}
        self._holding = set[int]()
        self._messages: deque[tuple[float, list[Finished]]] = deque()

    def sent(
        self, finished: Sequence[Finished], now_s: float
    ) -> list[tuple[float, list[Finished]]]:
        """Return the messages that a turn reads, each with when it was sent, the oldest first."""
        logs = sorted([*self._logs, *finished], key=lambda one: one.end_s)
        at = 0
        while self._looked_s + self._every_s < now_s:
            self._looked_s += self._every_s
            while at < len(logs) and logs[at].end_s <= self._looked_s:
                self._written(logs[at])
                at += 1
            for machine in sorted(self._holding):
                if self._machines[machine][0].due(self._looked_s):
                    self._ship(machine, self._looked_s)
        self._logs = logs[at:]
        read = []
        while self._messages and self._messages[0][0] + self._every_s < now_s:
            read.append(self._messages.popleft())
        return read

    def _written(self, log: Finished) -> None:
        machine, worker = log.slot
        pace, waiting = self._machines.setdefault(machine, (Pace(PaceSettings(), log.end_s), []))
        waiting.append(log)
        self._holding.add(machine)
        pace.add(LINE_BYTES, log.start_s - log.arrival_s, log.end_s, str(worker))
        if pace.due(log.end_s):
            self._ship(machine, log.end_s)

    def _ship(self, machine: int, now_s: float) -> None:
        pace, waiting = self._machines[machine]
        pace.sent(now_s)
        self._messages.append((now_s, [*waiting]))
        waiting.clear()
        self._holding.discard(machine)


def _id_of(name: int) -> str:
    return f"i-{name:017x}"


def _name_of(instance_id: str) -> int:
    return int(instance_id.removeprefix("i-"), 16)


def _log_of(one: Finished) -> SearchLog:
    name, worker = one.slot
    onprem = name == ONPREM
    return SearchLog(
        request_id=str(one.request),
        worker_id=f"gpu-{worker}",
        cluster=Cluster.ONPREM if onprem else Cluster.AWS,
        instance_id="" if onprem else _id_of(name),
        enqueued_at=instant(one.arrival_s),
        started_at=instant(one.start_s),
        finished_at=instant(one.end_s),
        status=Status.OK,
    )
