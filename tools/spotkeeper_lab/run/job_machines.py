"""The machines of jobs on the local AWS: a folder, metadata of its own, and the deployed agent.

EC2's side is the simulated cloud's: capacity, tags, warnings and ends. The agent runs as systemd
would run it, and the job's command is a process of this machine, with the rights of `JobRole`.
"""

import gzip
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from spotkeeper_lab.aws import ministack
from spotkeeper_lab.aws.over_http import LiveWorld, described, offerings
from spotkeeper_lab.aws.wire import Answer, Params, Respond, instance_arn
from spotkeeper_lab.cloud.values import IN_SERVICE, CloudError, InstanceView, Invalid, Purchase
from spotkeeper_worker.testing import FakeMachine, FakeServer

JOB = "spotkeeper:job"
# The machine's image: Python with pip and spotkeeper-worker, of which the agent is a part.
BOOTS = """
[ -e image/ready ] || {
    "$1" -m venv --clear image &&
    echo "$2" > "$(echo image/lib/python*/site-packages)/worker.pth" && touch image/ready
} || exit 1
exec "$3" -c "import sys; sys.path.insert(0, sys.argv.pop(1))
from spotkeeper_worker.agent.cli import main
sys.exit(main(['job']))" "$2"
"""
GZIP = b"\x1f\x8b"
log = logging.getLogger("spotkeeper.lab")
_PARAMETER = re.compile(r"SPOTKEEPER_JOBS_PARAMETER=(\S+)")


@dataclass
class Machine:
    """One that runs; systemd's part of it is to start the agent again."""

    folder: Path
    environment: Mapping[str, str]
    metadata: FakeMachine
    agent: "subprocess.Popen[bytes] | None" = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self._server = FakeServer(self.metadata)
        self._server.__enter__()

    @property
    def is_off(self) -> bool:
        """Whether it has shut itself down."""
        return (self.folder / "off").exists()

    def keep_running(self) -> None:
        """Start the agent where none runs; what a killed one left running ends first."""
        if self.is_off or (self.agent and self.agent.poll() is None):
            return
        self._kill()
        base: str = sys._base_executable  # type: ignore[attr-defined]
        worker = next(path for path in sys.path if (Path(path) / "spotkeeper_worker").is_dir())
        with (self.folder.with_suffix(".log")).open("ab") as log:
            self.agent = subprocess.Popen(
                ["/bin/sh", "-c", BOOTS, "sh", base, worker, sys.executable],
                cwd=self.folder,
                env={
                    **self.environment,
                    "PATH": f"{self.folder}/image/bin:{self.environment['PATH']}",
                    "AWS_EC2_METADATA_SERVICE_ENDPOINT": self._server.endpoint,
                    "SPOTKEEPER_JOB_FOLDER": str(self.folder / "job"),
                    "SPOTKEEPER_JOB_SHUTDOWN": json.dumps(["touch", str(self.folder / "off")]),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def close(self) -> None:
        """End everything of it; its log stays."""
        self._kill()
        self._server.__exit__()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kill(self) -> None:
        """Kill what runs in its folder, as often as it starts something."""
        while pids := [*processes(self.folder)]:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.agent:
                self.agent.wait()


def processes(folder: Path) -> Iterator[int]:
    """The processes that work in a folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
            inside = (process / "cwd").readlink().is_relative_to(folder)
            if inside and state != "Z":
                yield int(process.name)


@dataclass
class JobMachines:
    """The machines of all jobs; `zone_of` answers the zone of a subnet.

    A pool that the market does not know holds `capacity` spot machines.
    """

    world: LiveWorld
    folder: Path
    environment: Mapping[str, str]
    zone_of: Callable[[str], str]
    capacity: int
    _made: dict[str, Answer] = field(default_factory=dict)
    _templates: dict[str, Mapping[str, object]] = field(default_factory=dict)
    _machines: dict[str, Machine] = field(default_factory=dict)

    def ec2(self) -> Mapping[str, Respond]:
        """What the commands and the function of jobs call of EC2 beside all others."""
        return {
            "create_fleet": self._create_fleet,
            "describe_instance_types": described,
            "describe_instance_type_offerings": lambda params: offerings(
                params, self.world.capacities
            ),
        }

    def _create_fleet(self, params: Params) -> Answer:
        """Launch one machine of an instant fleet, once for each client token."""
        token = str(params["ClientToken"])
        if token in self._made:
            return self._made[token]
        (config,) = params["LaunchTemplateConfigs"]
        wanted = config["Overrides"]
        pools = [f"{self.zone_of(one['SubnetId'])}/{one['InstanceType']}" for one in wanted]
        kind = params["TargetCapacitySpecification"]["DefaultTargetCapacityType"]
        tagged = {one["ResourceType"]: one["Tags"] for one in params["TagSpecifications"]}
        if "volume" in tagged:
            raise Invalid(
                'machine.root = "keep" is not simulated by the local AWS (docs/lab.md says what is)'
            )
        if unknown := [pool for pool in pools if pool not in self.world.capacities]:
            self.world.set_capacity(unknown, self.capacity)
        tags = {tag["Key"]: tag["Value"] for tag in tagged["instance"]}
        template = ministack.launch_template(config["LaunchTemplateSpecification"])
        with self.world.now() as cloud:
            try:
                purchase = Purchase.SPOT if kind == "spot" else Purchase.ON_DEMAND
                made = cloud.run(pools, purchase, tags).instance_id
                self._templates[made] = template
                answer: Answer = {"Instances": [{"InstanceIds": [made]}], "Errors": []}
            except CloudError as refused:
                error = {"ErrorCode": refused.code, "ErrorMessage": refused.message}
                answer = {"Instances": [], "Errors": [error]}
        self._made[token] = answer
        return answer

    def run(self, stop: threading.Event, every_s: float) -> None:
        """Let machines boot, see their tags and warnings, and end, until it is stopped."""
        while not stop.wait(every_s):
            try:
                self.look()
            except Exception:
                log.exception("machines of jobs were not looked at")
        for machine in self._machines.values():
            machine.close()

    def look(self) -> None:
        """Do what is due of every machine."""
        with self.world.now() as cloud:
            views = [one for one in cloud.instances() if JOB in one.tags]
            running = {one.instance_id: one for one in views if one.state == IN_SERVICE}
        for gone in self._machines.keys() - running.keys():
            self._machines.pop(gone).close()
        for name, view in running.items():
            machine = self._machines.get(name) or self._boot(view)
            machine.metadata.tags = dict(view.tags)
            if view.warned_s is not None and machine.metadata.action is None:
                since_s = self.world.seconds() - view.warned_s
                machine.metadata.interrupt(cloud.physics.notice_s - since_s)
            if machine.is_off:
                with self.world.now() as cloud:
                    cloud.terminate([name])
            machine.keep_running()

    def _boot(self, view: InstanceView) -> Machine:
        """A machine as its launch template says: its role, and what its user data sets."""
        template = self._templates[view.instance_id]
        user_data = b64decode(str(template.get("UserData", "")))
        if user_data.startswith(GZIP):
            user_data = gzip.decompress(user_data)
        named = _PARAMETER.search(user_data.decode(errors="replace"))
        metadata = FakeMachine()
        metadata.instance_id = view.instance_id
        arn = instance_arn(view.instance_id)
        metadata.credentials |= ministack.machine_keys(template, arn)
        parameter = {"SPOTKEEPER_JOBS_PARAMETER": named[1] if named else ""}
        folder = self.folder / view.instance_id
        shutil.rmtree(folder, ignore_errors=True)
        machine = Machine(folder, {**self.environment, **parameter}, metadata)
        self._machines[view.instance_id] = machine
        return machine
