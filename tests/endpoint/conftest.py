"""A lab in a process of its own, and the stack in it, deployed as to AWS. In real time."""

import io
import json
import os
import shlex
import shutil
import subprocess
import textwrap
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spotkeeper_lab.aws.wire import ACCOUNT, REGION
from spotkeeper_lab.cloud.values import Physics
from spotkeeper_lab.run.up import BUILT, FOLDER, PARTS, LabClient, LabSettings, environment, running
from tests.ports import free_ports

CHECKOUT = Path(__file__).parents[2]
# Where this machine keeps its certificates, a program that installs packages needs to know.
CERTIFICATES = {n: os.environ[n] for n in ("SSL_CERT_FILE", "SSL_CERT_DIR") if n in os.environ}
OWN = {name: os.environ[name] for name in ("PATH", "HOME")}
SAM = CHECKOUT / ".venv-sam/bin/sam"
SETTINGS = LabSettings(
    desired=3, physics=Physics(cold_start_s=10.0, notice_s=60.0, event_delay_s=1.0)
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.make_e2e)
            item.add_marker(pytest.mark.enable_socket)


@dataclass(frozen=True, slots=True)
class Endpoint(LabClient):
    """The lab as a client sees it, with what a user pastes."""

    environment: dict[str, str]

    def sam(self, *arguments: str, **keys: str) -> str:
        """Run sam with what the lab printed to paste, and nothing else of AWS."""
        return types(shlex.join(["sam", *arguments]), self.environment | keys, SAM.parent)

    def deploy(self, *parameters: str, stack: str = "spotkeeper", **keys: str) -> None:
        options = ("--resolve-s3", "--no-confirm-changeset", "--no-progressbar")
        name = ("--stack-name", stack, "--s3-prefix", stack)
        overrides = (*name, "--parameter-overrides", *parameters)
        self.sam("deploy", *options, *overrides, **keys)


def types(line: str, environment: dict[str, str], path: Path) -> str:
    """What a line says in a shell that finds the programs of a folder first."""
    done = typed(line, environment, path)
    assert done.returncode == 0, line + done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def typed(
    line: str, environment: dict[str, str], path: object, folder: Path = CHECKOUT
) -> "subprocess.CompletedProcess[str]":
    """The same in a folder, whether it works or not; every question is answered with yes."""
    return subprocess.run(
        ["bash", "-ec", line],
        cwd=folder,
        env={**CERTIFICATES, **environment, "PATH": f"{path}:{OWN['PATH']}", "HOME": OWN["HOME"]},
        input="y\n" * 3,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )


def until[T](look: Callable[[], T | None], *, within_s: float, what: str) -> T:
    """What a look finds in the end."""
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        if found := look():
            return found
        time.sleep(0.5)
    pytest.fail(f"not within {within_s:g} s: {what}")


def received(endpoint: Endpoint, queue: str) -> str:
    """The body of a queue's next message."""
    sqs = endpoint.aws("sqs")

    def look() -> Any:
        return sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=1).get("Messages")

    (message,) = until(look, within_s=60, what="a message")
    return str(message["Body"])


def destination(endpoint: Endpoint, name: str, function: str) -> str:
    """A queue to which the failures of a function go, after no retry."""
    queue = str(endpoint.aws("sqs").create_queue(QueueName=name)["QueueUrl"])
    endpoint.aws("lambda").put_function_event_invoke_config(
        FunctionName=function,
        # As the stack's functions have it.
        Qualifier="$LATEST",
        MaximumRetryAttempts=0,
        DestinationConfig={"OnFailure": {"Destination": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"}},
    )
    return queue


def checkout_at(folder: Path) -> Path:
    """A checkout of its own, so that a lab of it may be up beside others."""
    for name in PARTS:
        (folder / name).symlink_to(CHECKOUT / name)
    return folder


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Endpoint]:
    """An account of its own for each file: what one leaves in a group, another would find."""
    assert (CHECKOUT / BUILT).exists(), "make e2e builds first"
    mine = checkout_at(tmp_path_factory.mktemp("lab"))
    (port,) = free_ports(1)
    settings = SETTINGS.model_copy(update={"port": port})
    with running(settings, mine):
        yield Endpoint(port, environment(port, CHECKOUT))
    shutil.copy(mine / FOLDER / "endpoint.log", CHECKOUT / f"build/e2e-{worker_id}.log")


def policy(*statements: dict[str, object]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def allow(action: str, resource: str = "*", **rest: object) -> dict[str, object]:
    return {"Effect": "Allow", "Action": action, "Resource": resource, **rest}


def user_keys(endpoint: Endpoint, name: str, document: str) -> tuple[str, str]:
    """The access key and the secret of a new user who has the permissions of a policy."""
    iam = endpoint.aws("iam")
    iam.create_user(UserName=name)
    iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=document)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    return key["AccessKeyId"], key["SecretAccessKey"]


@pytest.fixture
def role(endpoint: Endpoint) -> Callable[..., str]:
    """Makes a role for functions with some permissions; answers its ARN."""

    def make(name: str, *statements: dict[str, object]) -> str:
        iam = endpoint.aws("iam")
        lambda_s = {"Service": "lambda.amazonaws.com"}
        assumed: dict[str, object] = {
            "Effect": "Allow", "Action": "sts:AssumeRole", "Principal": lambda_s,
        }  # fmt: skip
        document = policy(assumed)
        arn = iam.create_role(RoleName=name, AssumeRolePolicyDocument=document)["Role"]["Arn"]
        if statements:
            iam.put_role_policy(RoleName=name, PolicyName="p", PolicyDocument=policy(*statements))
        return str(arn)

    return make


@pytest.fixture
def function(endpoint: Endpoint) -> Callable[..., str]:
    """Makes a function of some source text; answers its ARN."""
    return partial(create_function, endpoint)


def create_function(lab: LabClient, name: str, role: str, source: str, **more: Any) -> str:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("app.py", textwrap.dedent(source))
    made = lab.aws("lambda").create_function(
        FunctionName=name,
        Runtime="python3.13",
        Role=role,
        Handler="app.handler",
        Code={"ZipFile": packed.getvalue()},
        **more,
    )
    return str(made["FunctionArn"])


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
    "groups": ("autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups",
               "AutoScalingGroupName"),
}  # fmt: skip
_ASKED: Mapping[str, Mapping[str, str]] = {"policies": {"Scope": "Local"}}
# sam keeps its bucket, and the stack that made it, for the next deployment.
_OF_SAM = "aws-sam-cli-managed-default"


def inventory(aws: Callable[[str], Any]) -> Inventory:
    """The names of all that there is; `aws` makes a client of a service."""
    found = {}
    for kind, (service, call, answer, key) in _KINDS.items():
        listed = getattr(aws(service), call)(**_ASKED.get(kind, {})).get(answer, [])
        names = sorted(one[key] if key else one for one in listed)
        found[kind] = [name for name in names if name != _OF_SAM]
    return found


def left(before: Inventory, after: Inventory) -> dict[str, list[str]]:
    """What there is now and was not before, by kind; what is nothing is left out."""
    more = {kind: sorted(set(after[kind]) - set(before[kind])) for kind in after}
    return {kind: names for kind, names in more.items() if names}
