"""One step of the agent after the other, by a clock of the test's own, in this process."""

import fcntl
import grp
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from spotkeeper_worker import Worker, roster
from spotkeeper_worker.agent import cli
from spotkeeper_worker.agent.gpu import Gpus
from spotkeeper_worker.agent.loop import Agent, AnotherAgent, Parts, hold_machine, notify
from spotkeeper_worker.agent.service import Service
from spotkeeper_worker.agent.settings import Settings, parse
from spotkeeper_worker.log import Sometimes, get_logger
from spotkeeper_worker.logs.files import Follow, Follower
from spotkeeper_worker.logs.journal import Journal
from spotkeeper_worker.logs.outbox import Outbox
from spotkeeper_worker.logs.server import SocketServer
from spotkeeper_worker.notice import Notice, read_notice, write_notice
from spotkeeper_worker.roster import Place, read_roster
from spotkeeper_worker.states import State
from spotkeeper_worker.stop import Stop
from spotkeeper_worker.testing import FakeMachine, FakeServer
from spotkeeper_worker.testing.machine import unpacked
from spotkeeper_worker.times import as_text
from tests.worker.conftest import program
from tests.worker.logs import AWS, a_log

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])
NOW = 1_763_632_800.0


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of a machine with one worker that is in no group, so that it asks AWS for nothing."""
    found = Settings(
        cluster="onprem", run_dir=tmp_path / "run", spool_dir=tmp_path / "spool", unix_group="none"
    )
    cli.make_folders(found)
    return found


@pytest.fixture
def agent(settings: Settings) -> Iterator[Agent]:
    outbox = Outbox(Journal(settings.spool_dir / "journal"), lambda body: None, AWS)
    say = Sometimes(get_logger("agent"))
    yield Agent(settings, Parts(outbox, Service(settings, say, print)), say, Stop())
    outbox.close()


@pytest.fixture
def worker(settings: Settings) -> Iterator[Place]:
    place = Place(settings.run_dir, "gpu-0")
    place.ready()
    yield place
    place.close()


def after(agent: Agent, seconds: float, set_by: float = 0.0) -> tuple[State, str]:
    """Step at a time since the start, on a clock that was set by an offset."""
    agent.step(1000.0 + seconds, NOW + seconds + set_by)
    return agent.notice.state, agent.notice.reason


def test_a_deleted_notice_is_written_again(agent: Agent, worker: Place, settings: Settings) -> None:
    after(agent, 0)
    (settings.run_dir / "notice.json").unlink()
    after(agent, 1)
    found = read_notice(settings.run_dir)
    assert found is not None and found.state is State.SERVING


@pytest.mark.parametrize("keep_logs", [10_000, 4_000])
def test_a_machine_is_not_idle_before_its_followed_log_is_read_and_none_is_lost(
    settings: Settings, keep_logs: int
) -> None:
    """75,000 lines at 5,000 a second, and the notice at their end."""
    access, sent = settings.run_dir / "access.json", list[str]()
    access.touch()
    outbox = Outbox(Journal(settings.spool_dir / "journal", keep_logs), sent.append, AWS)
    say = Sometimes(get_logger("agent"))
    follower = Follower(Follow(access), outbox.accept, outbox.last_of, say)
    given = settings._replace(workers=0, keep_logs=keep_logs)
    agent = Agent(given, Parts(outbox, Service(given, say, print), follower=follower), say, Stop())
    after(agent, 0)
    line = json.dumps({"time": NOW, "request_time": 0.2, "status": 200, "uri": "/" + "x" * 100})
    lines = 75_000
    with access.open("a") as file:
        file.write(f"{line}\n" * lines)
    agent.stopping.set()
    second = 0
    for second in range(1, 400):
        if after(agent, second)[0] is not State.SERVING and agent.notice.state is State.IDLE:
            break
        while outbox.step():
            pass
    outbox.hurried = True
    while outbox.step():
        pass
    found = [unpacked(body) for body in sent]
    assert sum(text.count("request_id") for text in found) == lines
    assert not any('"lost"' in text for text in found)
    assert second < 120
    follower.close()
    outbox.close()


def test_what_is_not_read_before_the_hook_is_counted_as_lost(tmp_path: Path) -> None:
    access, sent = tmp_path / "access.json", list[str]()
    access.touch()
    outbox = Outbox(Journal(tmp_path / "journal"), sent.append, AWS)
    follower = Follower(
        Follow(access), outbox.accept, outbox.last_of, Sometimes(get_logger("agent"))
    )
    follower.step(0.0)
    access.write_text("{}\n" * 7)
    assert follower.unread() == 7
    outbox.lose(7)
    outbox.accept([a_log()], "a", 1)
    outbox.hurried = True
    assert outbox.step()
    assert '"lost":7' in unpacked(sent[0])
    follower.close()
    outbox.close()


GONE = "no worker has been running for 60 s"


@pytest.mark.parametrize("set_by", [0.0, -3600.0, 3600.0])
def test_a_machine_without_workers_stops_serving(
    agent: Agent, worker: Place, settings: Settings, set_by: float, caplog: pytest.LogCaptureFixture
) -> None:
    after(agent, 0)
    worker.close()
    assert after(agent, 59, set_by) == (State.SERVING, "")
    assert after(agent, 60, set_by) == (State.BOOTING, GONE)
    assert GONE in caplog.text
    again = Place(settings.run_dir, "gpu-0")
    again.ready()
    assert after(agent, 90) == (State.SERVING, "")
    again.close()


def test_a_worker_that_hangs_is_named(
    agent: Agent, worker: Place, caplog: pytest.LogCaptureFixture
) -> None:
    worker.begin()
    for at in range(0, 900, 60):
        assert after(agent, at)[1] == ""
    assert "gpu-0: no request has begun or ended for 900 s" in after(agent, 900)[1]
    assert "gpu-0: no request has begun or ended" in caplog.text
    worker.end()
    assert after(agent, 960)[1] == ""


def test_a_set_clock_changes_no_drain(agent: Agent, worker: Place) -> None:
    """What runs is waited for, and then two seconds of stillness."""
    after(agent, 0)
    worker.begin()
    agent.stopping.set()
    for at, set_by in ((1, 0.0), (4, 3600.0), (7, -3600.0)):
        assert after(agent, at, set_by)[0] is State.DRAINING
    worker.end()
    assert after(agent, 8, 7200.0)[0] is State.DRAINING
    assert after(agent, 9, -7200.0)[0] is State.IDLE


def test_an_agent_that_cannot_send_is_unhealthy(
    agent: Agent, worker: Place, systemd: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    after(agent, 0)
    assert systemd.recv(1000) == b"STATUS=serving "
    assert "search logs are no longer sent" in caplog.text
    agent._parts.outbox.start()
    after(agent, 1)
    assert systemd.recv(1000) == b"WATCHDOG=1\nSTATUS=serving "


@pytest.mark.parametrize("age_s", [0.0, 7200.0])
def test_a_worker_may_join_while_the_agent_looks(settings: Settings, age_s: float) -> None:
    """The documented join opens its file, and locks it later; the name may have been another's.

    One that has not written its line may be serving.
    """
    path = settings.run_dir / "workers" / "script"
    path.write_text("ready=1 busy=00000 begun=0000000007\n")
    os.utime(path, (NOW - age_s, NOW - age_s))
    with path.open("w") as file:
        assert read_roster(settings.run_dir, 1, path.stat().st_mtime).ready == ()
        fcntl.flock(file, fcntl.LOCK_EX)
        found = read_roster(settings.run_dir, 1, NOW)
        assert (found.busy, found.not_ready) == (1, ("script",))
        file.write("ready=1 busy=00000 begun=0000000000\n")
        file.flush()
        assert read_roster(settings.run_dir, 1, NOW).ready == ("script",)


def test_slots_limit_requests(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    write_notice(settings.run_dir, Notice(state=State.SERVING, seen_at=NOW))
    monkeypatch.setenv("SPOTKEEPER_SLOTS", "2")
    with Worker("gpu-7", settings.run_dir) as worker:
        state = (settings.run_dir / "workers" / "gpu-7").read_text
        assert state().split() == ["ready=0", "busy=00000", "begun=0000000000", "slots=2"]
        with worker.request("r-0", NOW):
            assert worker.may_take
            with worker.request("r-1", NOW):
                assert not worker.may_take
                assert read_roster(settings.run_dir, 1, NOW).busy == 2
        assert worker.may_take
    with pytest.raises(ValueError, match="is -3: give a whole number"):
        Worker("gpu-0", settings.run_dir, slots=-3)
    monkeypatch.setenv("SPOTKEEPER_SLOTS", "many")
    with pytest.raises(ValueError, match=r"\(SPOTKEEPER_SLOTS\) is 'many': give a whole number"):
        Worker("gpu-8", settings.run_dir)


def test_one_that_dies_every_second_for_half_an_hour_hides_no_worker(
    settings: Settings, worker: Place
) -> None:
    """Its names have process ids."""
    folder = settings.run_dir / "workers"
    for number in range(1800):
        path = folder / f"{'.' * (number % 2)}gpu-{number + 1}"
        path.touch()
        os.utime(path, (NOW - number, NOW - number))
        if number % 60 == 0:
            found = read_roster(settings.run_dir, 1, NOW + 1800 - number)
    found = read_roster(settings.run_dir, 1, NOW)
    assert found.ready == ("gpu-0",)
    assert len([*folder.iterdir()]) < 200


def test_two_agents_share_neither_folder(tmp_path: Path) -> None:
    run, run2, spool = (tmp_path / name for name in ("run", "run2", "spool"))
    for folder in (run, run2, spool):
        folder.mkdir()
    with hold_machine(run, spool):
        refused = pytest.raises(AnotherAgent, match="spool has an agent; one is enough")
        with refused, hold_machine(run2, spool):
            pass
        # The one that was refused keeps nothing.
        with hold_machine(run2):
            pass
    with hold_machine(run, spool):
        pass


def test_an_agent_starts_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was there before left its lock file."""

    with hold_machine(tmp_path):
        pass
    for name in ("write", "pwrite"):
        monkeypatch.setattr(os, name, Mock(side_effect=OSError(28, "No space left on device")))
    with hold_machine(tmp_path):
        Journal(tmp_path / "journal").close()


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("usual_umask")
def test_only_one_group_may_take_part(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that group any user may; what is the agent's or another worker's is theirs alone."""
    run, spool = settings.run_dir / "own", settings.spool_dir / "own"
    settings = settings._replace(run_dir=run, spool_dir=spool)
    assert cli.make_folders(settings) is None
    assert stat.S_IMODE((run / "workers").stat().st_mode) == 0o1777
    monkeypatch.setattr(grp, "getgrnam", lambda name: Mock(gr_gid=os.getegid()))
    server = SocketServer(run, lambda *_: [], dict, cli.make_folders(settings))
    write_notice(run, Notice(state=State.SERVING, seen_at=NOW))
    journal = Journal(spool / "journal")
    with hold_machine(run, spool), closing(server), closing(journal), Worker("gpu-0", run):
        modes = {
            run: 0o755, run / "agent.lock": 0o644, run / "notice.json": 0o644,
            run / "agent.sock": 0o660, run / "workers": 0o1770, run / "workers" / "gpu-0": 0o644,
            spool: 0o755, spool / "in": 0o1770, spool / "journal": 0o700,
            spool / "journal" / "open": 0o600,
        }  # fmt: skip
        assert {path: stat.S_IMODE(path.stat().st_mode) for path in modes} == modes
        assert {path.stat().st_gid for path in modes} == {os.getegid()}


TRIES = """
import socket, sys
from pathlib import Path
from spotkeeper_worker.agent.loop import hold_machine
from spotkeeper_worker.roster import Place
run, spool = map(Path, sys.argv[1:])
for name, attempt in {
    "join": lambda: Place(run, "gpu-1"),
    "send": lambda: socket.socket(socket.AF_UNIX).connect(str(run / "agent.sock")),
    "leave a file": lambda: (spool / "in" / "a.json").touch(),
    "write the notice": lambda: (run / "notice.json").open("a"),
    "delete the notice": lambda: (run / "notice.json").unlink(),
    "write for a worker": lambda: (run / "workers" / "gpu-0").open("a"),
    "delete a worker": lambda: (run / "workers" / "gpu-0").unlink(),
    "read the journal": lambda: list((spool / "journal").iterdir()),
    "be the agent": lambda: hold_machine(run, spool).__enter__(),
}.items():
    try:
        attempt()
        print(name)
    except PermissionError:
        pass
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("groups", [[4_000_000], []])
def test_a_user_may_do_what_its_group_allows(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: list[int]
) -> None:
    run, spool = settings.run_dir, settings.spool_dir
    monkeypatch.setattr(grp, "getgrnam", lambda name: Mock(gr_gid=4_000_000))
    shutil.copytree(Path(roster.__file__).parent, tmp_path / "lib" / "spotkeeper_worker")
    for path in (tmp_path, *list(tmp_path.parents)[:-2]):
        path.chmod(0o755)
    write_notice(run, Notice(state=State.SERVING, seen_at=NOW))
    server = SocketServer(run, lambda *_: [], dict, cli.make_folders(settings))
    with closing(server), closing(Journal(spool / "journal")), Worker("gpu-0", run):
        server.start()
        command = ["python3", "-c", TRIES, str(run), str(spool)]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path / "lib")}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True,
            user=65534, group=65534, extra_groups=groups,
        ).stdout.splitlines()  # fmt: skip
    assert done == (["join", "send", "leave a file"] if groups else [])


# --- beside the metadata, a group and its queue, on loopback --------------------------------------


class OnEc2:
    """An agent whose clock is the test's, beside a machine of pretence with two workers."""

    def __init__(self, server: FakeServer, folder: Path, ending: ExitStack) -> None:
        given: dict[str, Any] = {
            "run_dir": folder / "run", "spool_dir": folder / "spool", "unix_group": "none",
            "workers": 2, "gpu": "off", "drain_at_most_s": 600.0,
        }  # fmt: skip
        self.machine = server.machine
        settings = parse(server.environment(), given)
        self.agent = ending.enter_context(cli.looked_after(settings, Stop()))
        self.workers = [Place(settings.run_dir, f"gpu-{number}") for number in range(2)]
        for worker in self.workers:
            ending.callback(worker.close)
        assert self.agent._parts.metadata
        self.agent._parts.metadata._connection.timeout = 60.0  # however busy this machine is
        self.now, self.wall = time.monotonic(), time.time()

    def load(self) -> None:
        """Have both workers load their models."""
        for worker in self.workers:
            worker.ready()

    def step(self, seconds: float = 5.0) -> State:
        """Let time pass, and step once."""
        self.now += seconds
        self.wall += seconds
        self.agent.step(self.now, self.wall)
        return self.agent.notice.state

    @property
    def completed(self) -> list[str]:
        return [hook for hook, _ in self.machine.completed]


@pytest.fixture
def on_ec2(server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OnEc2]:
    monkeypatch.setattr("spotkeeper_worker.agent.loop.bytes_loaded", lambda: 0)
    keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "testing")
    for name, text in (server.environment() | keys).items():
        monkeypatch.setenv(name, text)
    with ExitStack() as ending:
        yield OnEc2(server, tmp_path / "ec2", ending)


def test_a_machine_joins_serves_drains_and_goes(on_ec2: OnEc2, machine: FakeMachine) -> None:
    one = on_ec2.workers[0]
    machine.launch()
    one.ready()
    assert on_ec2.step() is State.BOOTING
    assert on_ec2.completed == []
    on_ec2.load()
    assert on_ec2.step() is State.SERVING
    assert on_ec2.completed == ["spotkeeper-ready"]
    one.begin()
    machine.scale_in()
    assert [on_ec2.step() for _ in range(24)] == [State.DRAINING] * 24
    assert machine.heartbeats == ["spotkeeper-drain"] * 2
    one.end()
    began, ended = as_text(on_ec2.wall - 9), as_text(on_ec2.wall)
    log = a_log(enqueued_at=began, started_at=began, finished_at=ended)
    on_ec2.agent._parts.outbox.accept([log], "s", 1)
    assert on_ec2.step(1.0) is State.DRAINING
    assert on_ec2.step(2.0) is State.IDLE
    assert on_ec2.completed == ["spotkeeper-ready", "spotkeeper-drain"]
    # The log was sent before the hook was complete.
    assert [log["request_id"] for log in machine.logs()] == ["r-0"]
    assert on_ec2.step(1.0) is State.GONE


def test_through_the_warm_pool(on_ec2: OnEc2, machine: FakeMachine) -> None:
    machine.into_warm_pool()
    on_ec2.load()
    assert on_ec2.step() is State.READY
    machine.launch()
    assert on_ec2.step() is State.SERVING
    on_ec2.workers[0].begin()
    machine.into_warm_pool()
    assert on_ec2.step() is State.DRAINING
    on_ec2.workers[0].end()
    assert [on_ec2.step(1.0), on_ec2.step(2.0)] == [State.DRAINING, State.IDLE]
    assert on_ec2.completed == ["spotkeeper-ready"] * 3


def test_an_agent_that_was_killed_in_a_drain_goes_on_with_it(
    on_ec2: OnEc2, machine: FakeMachine
) -> None:
    machine.launch()
    on_ec2.load()
    on_ec2.step()
    on_ec2.workers[0].begin()
    machine.scale_in()
    assert [on_ec2.step(), on_ec2.step(300.0)] == [State.DRAINING] * 2
    before, beats = on_ec2.agent, len(machine.heartbeats)
    on_ec2.agent = Agent(before._settings, before._parts, before._say, Stop())
    assert on_ec2.agent.notice.draining
    assert on_ec2.step() is State.DRAINING
    assert len(machine.heartbeats) > beats
    assert on_ec2.agent.notice.until == pytest.approx(before.notice.until, abs=60)
    on_ec2.workers[0].end()
    assert [on_ec2.step(1.0), on_ec2.step(2.0)] == [State.DRAINING, State.IDLE]
    assert on_ec2.completed == ["spotkeeper-ready", "spotkeeper-drain"]


BAD_DAYS: list[tuple[dict[str, object], str]] = [
    ({"refuses": "AccessDenied"}, "hook spotkeeper-ready: CompleteLifecycleAction: AccessDenied"),
    ({"fault": "503"}, "metadata: .*answered 503; the state stays as it is"),
    ({"clock_ahead_s": 120.0}, r"EC2's clock is \+1\d\d s from this one; run chrony"),
]


def test_a_bad_day_is_a_line_and_costs_nothing(
    on_ec2: OnEc2, machine: FakeMachine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "spotkeeper")
    machine.launch()
    on_ec2.load()
    for befalls, line in BAD_DAYS:
        vars(machine).update(befalls)
        assert [on_ec2.step(10.0), on_ec2.step(70.0)] == [State.SERVING] * 2
        assert re.search(line, caplog.text)
        vars(machine).update(refuses="", fault="", clock_ahead_s=0.0)
    assert on_ec2.step(10.0) is State.SERVING
    assert "metadata answers again" in caplog.text
    assert on_ec2.completed == ["spotkeeper-ready"]
    machine.tag(-30.0)
    assert on_ec2.step() is State.DRAINING
    assert "serving -> draining: tagged, until" in caplog.text
    machine.untag()
    assert on_ec2.step() is State.SERVING
    # A request of a worker that is killed is not waited for.
    machine.scale_in()
    on_ec2.workers[0].begin()
    assert on_ec2.step() is State.DRAINING
    for worker in on_ec2.workers:
        worker.close()
    assert on_ec2.step() is State.IDLE
    assert on_ec2.completed == ["spotkeeper-ready", "spotkeeper-drain"]


def test_a_set_clock_delays_no_hook(on_ec2: OnEc2, machine: FakeMachine) -> None:
    """EC2 tells the target some seconds before the hook holds the machine."""
    machine.target = "InService"
    on_ec2.load()
    on_ec2.step()
    on_ec2.wall += 3600
    on_ec2.step(15)
    machine.launch()
    on_ec2.step(15)
    assert on_ec2.completed == ["spotkeeper-ready"]


def test_a_lost_gpu_drains_the_machine(on_ec2: OnEc2, machine: FakeMachine, tmp_path: Path) -> None:
    smi = program(tmp_path / "nvidia-smi", "echo 'No devices were found'; exit 6")
    gpus = Gpus([str(smi)], tmp_path / "none")
    gpus.look()
    on_ec2.agent._parts = on_ec2.agent._parts._replace(gpus=gpus)
    machine.launch()
    on_ec2.load()
    assert on_ec2.step() is State.DRAINING
    assert on_ec2.agent.notice.reason == "gpu: nvidia-smi: No devices were found"
    assert on_ec2.completed == []


def test_maintenance_drains_15_minutes_before(on_ec2: OnEc2, machine: FakeMachine) -> None:
    machine.launch()
    on_ec2.load()
    machine.schedule(3600)
    assert on_ec2.step(10) is State.SERVING
    assert on_ec2.step(2640) is State.SERVING
    assert on_ec2.step(60) is not State.SERVING
    notice = on_ec2.agent.notice
    assert notice.reason == "maintenance: system-reboot"
    assert notice.serve_until == pytest.approx(time.time() + 3600, abs=30)
    machine.maintenance = []
    # It is read once a minute.
    assert on_ec2.step(5) is not State.SERVING
    assert on_ec2.step(60) is State.SERVING


def test_a_systemd_that_does_not_listen_holds_nothing_up(systemd: socket.socket) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:
                channel.sendto(b"STATUS=", systemd.getsockname())
    telling = threading.Thread(target=notify, args=("WATCHDOG=1",), daemon=True)
    telling.start()
    telling.join(20)
    assert not telling.is_alive()
