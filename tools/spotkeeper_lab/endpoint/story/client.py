"""A lab as its clients see it: the page's JSON, faults to order, and the services of AWS."""

import json
import os
import subprocess
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3

from spotkeeper_lab.endpoint.faults.values import FAULT, Fault
from spotkeeper_lab.endpoint.settings import LabSettings
from spotkeeper_lab.endpoint.up import BUILT, LabError, environment
from spotkeeper_lab.local_aws.wire import REGION

SAM = Path(".venv-sam/bin/sam")
LAST_CHARACTERS = 3000
STACK = "spotkeeper"
# What no deployment leads out of.
STUCK = frozenset({
    "CREATE_FAILED", "DELETE_FAILED", "ROLLBACK_COMPLETE", "ROLLBACK_FAILED",
    "UPDATE_ROLLBACK_FAILED",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class LabClient:
    """The lab at a port of this machine."""

    port: int
    checkout: Path

    @property
    def environment(self) -> dict[str, str]:
        """What the lab prints to paste."""
        return environment(self.port, self.checkout)

    @property
    def url(self) -> str:
        """The endpoint."""
        return self.environment["AWS_ENDPOINT_URL"]

    def look(self, page: str) -> Any:
        """A page of the lab, as JSON."""
        with urllib.request.urlopen(f"{self.url}/_lab/{page}", timeout=30) as answer:
            return json.load(answer)

    def order(self, fault: Fault) -> str:
        """Order a fault; answers what was done."""
        return str(self._post("faults", FAULT.dump_json(fault))["done"])

    def skip(self, seconds: float) -> None:
        """Let a time be over at once in the simulated cloud; functions know nothing of it."""
        self._post("skip", json.dumps(seconds).encode())

    def begin(self, settings: LabSettings) -> None:
        """Begin anew with other groups, another market and other physics."""
        self._post("begin", settings.model_dump_json().encode())

    def _post(self, page: str, body: bytes) -> Any:
        request = urllib.request.Request(f"{self.url}/_lab/{page}", body, method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def aws(self, service: str, keys: Mapping[str, str] | None = None) -> Any:
        """A client of a service; of the account's root without keys."""
        mine = keys or self.environment
        session: Any = boto3.session.Session(
            aws_access_key_id=mine["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=mine["AWS_SECRET_ACCESS_KEY"],
            region_name=REGION,
        )
        return session.client(service, endpoint_url=self.url)

    def sam(self, *arguments: str, keys: Mapping[str, str] | None = None) -> str:
        """Run sam with what the lab printed and nothing else of AWS; raises LabError."""
        if not (self.checkout / BUILT).exists():
            raise LabError("nothing is built for this machine yet: make local-build")
        own = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        done = subprocess.run(
            [str(self.checkout / SAM), *arguments],
            cwd=self.checkout,
            env={**own, **self.environment, **(keys or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            told = (done.stdout + done.stderr)[-LAST_CHARACTERS:]
            raise LabError(f"sam {arguments[0]} failed:\n{told}")
        return done.stdout

    def deploy(
        self, parameters: Mapping[str, object], keys: Mapping[str, str] | None = None
    ) -> None:
        """Deploy the stack as the README does; raises LabError."""
        if (status := self.status()) in STUCK:
            raise LabError(f"the stack {STACK} is {status}: sam delete it, or end the lab")
        given = [f"{name}={value}" for name, value in parameters.items()]
        options = (
            "--resolve-s3",
            "--no-confirm-changeset",
            "--no-fail-on-empty-changeset",
            "--no-progressbar",
        )
        self.sam("deploy", *options, "--parameter-overrides", *given, keys=keys)

    def status(self) -> str:
        """The stack's status; nothing where there is none."""
        found = self.aws("cloudformation").describe_stacks()["Stacks"]
        return next((str(one["StackStatus"]) for one in found if one["StackName"] == STACK), "")

    def outputs(self) -> dict[str, str]:
        """The outputs of the stack."""
        (found,) = self.aws("cloudformation").describe_stacks(StackName=STACK)["Stacks"]
        return {one["OutputKey"]: one["OutputValue"] for one in found["Outputs"]}


def at_port(port: int, checkout: Path) -> LabClient | None:
    """The lab that answers at a port, if there is one."""
    lab = LabClient(port, checkout)
    try:
        lab.look("state")
    except (OSError, ValueError):
        return None
    return lab
