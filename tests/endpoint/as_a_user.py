"""A user's first hour with the local AWS, in a quarter of it, with what the README says alone.

`make local-aws` in one shell; in another, with nothing but the environment that it printed, the
README's deploy lines; spot is taken away and given back by buttons of the page; `sam delete`;
Ctrl-C. Run it by `.venv/bin/python -m tests.endpoint.as_a_user`: port 4566 has to be free. Each
line says what was seen and after how long; exit code 1 names the first thing that was not so.
"""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotkeeper_lab.endpoint.up import LabClient

CHECKOUT = Path(__file__).parents[2]
PORT = 4566
UP_WITHIN_S, DEPLOYED_WITHIN_S = 10.0, 30.0
# A user's own environment, with nothing of AWS in it.
OWN = {name: it for name, it in os.environ.items() if not name.startswith(("AWS_", "SAM_"))}


class NotSeen(Exception):
    """Something was not as a user expects it."""


@dataclass
class Shell:
    """The one in which the lab runs: what it printed."""

    process: "subprocess.Popen[str]"
    lines: list[str] = field(default_factory=list)

    @property
    def pasted(self) -> dict[str, str]:
        """The environment that a user pastes."""
        exports = (one.strip().removeprefix("export ") for one in self.lines if "export " in one)
        return dict(one.split("=", 1) for one in exports)


@dataclass
class User:
    """Who looks, presses buttons and types in another shell."""

    lab: LabClient
    environment: Mapping[str, str]
    began_s: float = field(default_factory=time.monotonic)

    def says(self, text: str) -> None:
        """Tell what was seen."""
        say(f"{time.monotonic() - self.began_s:7.1f} s  {text}")

    def types(self, lines: str) -> float:
        """Run lines in a shell that has what was pasted; the seconds that they took."""
        began_s = time.monotonic()
        done = subprocess.run(
            ["bash", "-ec", lines],
            cwd=CHECKOUT,
            env={**OWN, **self.environment},
            input="y\n",
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        if done.returncode:
            raise NotSeen(f"{lines}\n{(done.stdout + done.stderr)[-3000:]}")
        return time.monotonic() - began_s

    def presses(self, label: str) -> None:
        """Press a button of the page, as its script does."""
        orders = {
            one["label"]: one["fault"] for one in self.lab.look("state.json")["lab"]["orders"]
        }
        self.says(f"[{label}] {self.lab.order(**orders[label])}")

    def sees(self, what: str, look: Callable[["Groups"], bool], within_s: float) -> None:
        """Wait until the groups are so."""
        began_s = time.monotonic()
        while not look(groups := Groups(self.lab.look("state"))):
            if time.monotonic() - began_s > within_s:
                raise NotSeen(f"not within {within_s:g} s: {what}; {groups}")
            time.sleep(0.25)
        self.says(f"{what}, after {time.monotonic() - began_s:.1f} s; {groups}")


class Groups:
    """Both groups at a look: asked for, and serving."""

    def __init__(self, state: Any) -> None:
        found = {one["purchase"]: one for one in state["groups"]}
        self.spot, self.on_demand = found["spot"]["desired"], found["on-demand"]["desired"]
        self.spot_serving = _serving(found["spot"])
        self.on_demand_serving = _serving(found["on-demand"])

    def __str__(self) -> str:
        return (
            f"spot {self.spot_serving} of {self.spot}, "
            f"on-demand {self.on_demand_serving} of {self.on_demand}"
        )


def _serving(group: Any) -> int:
    return sum(
        one["state"] == "InService" and not one["draining"] and not one["warned"]
        for one in group["instances"]
    )


def say(line: str) -> None:
    """Tell it now, to a pipe too."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Do all of it."""
    # A shell in the background ignores Ctrl-C, and so would all that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with local_aws() as shell:
            user = User(LabClient(PORT), shell.pasted)
            lives(user)
            leader = endpoint()
        if running := of_session(leader):
            raise NotSeen(f"left after Ctrl-C: processes {running}")
        user.says("Ctrl-C left no process")
    except NotSeen as wrong:
        sys.exit(f"NOT SO: {wrong}")


def lives(user: User) -> None:
    """Deploy, let spot go and come, delete."""
    before = inventory(user.lab.aws)
    build, deploy = readme_lines()
    user.says(f"{build}: {user.types(build):.0f} s")
    took_s = user.types(deploy)
    user.says(f"sam deploy: {took_s:.0f} s")
    if took_s > DEPLOYED_WITHIN_S:
        raise NotSeen(f"deployed in {DEPLOYED_WITHIN_S:g} s; it took {took_s:.0f} s")
    user.types(".venv/bin/spotkeeper mode main act --yes")
    user.presses("Load 2 erlangs")
    user.sees("the load is served by spot", lambda g: g.spot_serving == g.spot > 2, 180)
    user.presses("Spot runs dry")
    user.sees("on-demand is asked for", lambda g: g.on_demand >= g.spot, 150)
    user.sees("on-demand stands in", lambda g: g.on_demand_serving >= g.spot, 150)
    user.presses("Spot is back")
    user.sees("spot serves again", lambda g: g.spot_serving == g.spot, 120)
    user.sees("on-demand was given back", lambda g: g.on_demand == 0, 420)
    user.presses("No load")
    user.says(f"sam delete: {user.types('.venv-sam/bin/sam delete --no-prompts'):.0f} s")
    if more := left(before, inventory(user.lab.aws)):
        raise NotSeen(f"sam delete leaves nothing; left: {more}")
    user.says(f"left of {', '.join(before)}: nothing")


def readme_lines() -> tuple[str, str]:
    """The README's lines that build, and those that deploy."""
    text = (CHECKOUT / "README.md").read_text().partition("## Deploy it")[2]
    block = next(part for part in text.split("\n\n") if part.startswith("    make sam-build"))
    build, _, deploy = textwrap.dedent(block).partition("\n")
    return build.partition("#")[0].strip(), deploy


@contextmanager
def local_aws() -> Iterator[Shell]:
    """`make local-aws` until it has printed what to paste; Ctrl-C in the end."""
    process = subprocess.Popen(
        ["make", "local-aws"], cwd=CHECKOUT, env=OWN, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    shell = Shell(process)
    threading.Thread(target=lambda: shell.lines.extend(process.stdout or ()), daemon=True).start()
    try:
        while "SAM_CLI_TELEMETRY" not in shell.pasted:
            if process.poll() is not None:
                raise NotSeen(f"make local-aws stays; it ended: {''.join(shell.lines)[-3000:]}")
            time.sleep(0.2)
        up = next(one for one in shell.lines if "is up (" in one)
        say(up.strip())
        if float(up.partition("(")[2].split()[0]) > UP_WITHIN_S:
            raise NotSeen(f"up in {UP_WITHIN_S:g} s")
        yield shell
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        process.wait(30)


def endpoint() -> int:
    """The process that serves; it leads a session of its own."""
    settings = str(CHECKOUT / "build/local-aws/settings.json").encode()
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if settings in cmdline.read_bytes().split(b"\0"):
                return int(cmdline.parent.name)
        except OSError:
            continue
    raise NotSeen("no process serves the lab")


def of_session(leader: int) -> list[int]:
    """The processes that a lab started, its own among them."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


type Inventory = Mapping[str, list[str]]

# service, call, what it answers, and the name of each; the answer may lack what is empty.
_KINDS: Mapping[str, tuple[str, str, str, str]] = {
    "stacks": ("cloudformation", "describe_stacks", "Stacks", "StackName"),
    "tables": ("dynamodb", "list_tables", "TableNames", ""),
    "queues": ("sqs", "list_queues", "QueueUrls", ""),
    "functions": ("lambda", "list_functions", "Functions", "FunctionName"),
    "layers": ("lambda", "list_layers", "Layers", "LayerName"),
    "mappings": ("lambda", "list_event_source_mappings", "EventSourceMappings", "UUID"),
    "rules": ("events", "list_rules", "Rules", "Name"),
    "schedules": ("scheduler", "list_schedules", "Schedules", "Name"),
    "roles": ("iam", "list_roles", "Roles", "RoleName"),
    "policies": ("iam", "list_policies", "Policies", "PolicyName"),
    "parameters": ("ssm", "describe_parameters", "Parameters", "Name"),
    "log groups": ("logs", "describe_log_groups", "logGroups", "logGroupName"),
    "alarms": ("cloudwatch", "describe_alarms", "MetricAlarms", "AlarmName"),
    "dashboards": ("cloudwatch", "list_dashboards", "DashboardEntries", "DashboardName"),
    "topics": ("sns", "list_topics", "Topics", "TopicArn"),
    "keys": ("kms", "list_aliases", "Aliases", "AliasName"),
    "groups": (
        "autoscaling",
        "describe_auto_scaling_groups",
        "AutoScalingGroups",
        "AutoScalingGroupName",
    ),
}
_ASKED: Mapping[str, Mapping[str, str]] = {"policies": {"Scope": "Local"}}
# sam keeps its bucket, and the stack that made it, for the next deployment.
_OF_SAM = "aws-sam-cli-managed-default"


def inventory(aws: Callable[[str], Any]) -> Inventory:
    """The names of all that there is; `aws` makes a client of a service."""
    return {kind: _names(aws, kind) for kind in _KINDS}


def left(before: Inventory, after: Inventory) -> dict[str, list[str]]:
    """What there is now and was not before, by kind; what is nothing is left out."""
    more = {kind: sorted(set(after[kind]) - set(before[kind])) for kind in after}
    return {kind: names for kind, names in more.items() if names}


def _names(aws: Callable[[str], Any], kind: str) -> list[str]:
    service, call, answer, key = _KINDS[kind]
    found = getattr(aws(service), call)(**_ASKED.get(kind, {})).get(answer, [])
    names = sorted(one[key] if key else one for one in found)
    return [name for name in names if name != _OF_SAM]


if __name__ == "__main__":
    main()
