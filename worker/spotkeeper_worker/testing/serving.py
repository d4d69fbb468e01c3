"""The HTTP side of a `FakeMachine`: metadata, Auto Scaling and the queue, on loopback.

As strict as what it stands for where a client could rely on it: version 2 of the metadata service
alone, its limits on a token's life, and the errors of both AWS protocols.
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from spotkeeper_worker.times import as_text

if TYPE_CHECKING:
    from spotkeeper_worker.testing.machine import FakeMachine

_LONGEST_TTL_S = 21_600
_LONGEST_MESSAGE = 262_144
_ROLE = "worker"
_HTML = "<html><body>It works!</body></html>"


class FakeServer:
    """Serves a machine: `with FakeServer(machine) as server: server.environment()`."""

    def __init__(self, machine: FakeMachine) -> None:
        self.machine = machine
        self._closing = threading.Event()
        handler = type("Handler", (_Handler,), {"machine": machine, "closing": self._closing})
        self._server = _Server(("127.0.0.1", 0), handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.queue_url = f"{self.endpoint}/123456789012/search-logs"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    def environment(self) -> dict[str, str]:
        """What makes the agent, botocore and the AWS command line talk to this machine."""
        return {
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.endpoint,
            "AWS_ENDPOINT_URL_AUTO_SCALING": self.endpoint,
            "AWS_ENDPOINT_URL_SSM": self.endpoint,
            "SPOTKEEPER_SEARCH_LOG_QUEUE_URL": self.queue_url,
        }

    def __enter__(self) -> FakeServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no error of the server's."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    machine: FakeMachine
    closing: threading.Event

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_PUT(self) -> None:
        """Give a token."""
        ttl = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if self._faulty():
            return
        if self.path != "/latest/api/token":
            self._answer(404, "")
        elif "X-Forwarded-For" in self.headers:
            self._answer(403, "")
        elif not ttl.isdigit() or not 1 <= int(ttl) <= _LONGEST_TTL_S:
            self._answer(400, "")
        else:
            token = uuid.uuid4().hex
            self.machine.tokens[token] = time.monotonic() + int(ttl)
            self._answer(200, token)

    def do_GET(self) -> None:
        """Answer a path of the metadata."""
        if self._faulty():
            return
        token = self.headers.get("X-aws-ec2-metadata-token", "")
        if self.machine.tokens.get(token, 0.0) < time.monotonic():
            self._answer(401, "")
            return
        body = self._metadata(self.path.partition("/latest/meta-data/")[2])
        self._answer(404 if body is None else 200, body or "")

    def _faulty(self) -> bool:
        """Do what the machine's fault says instead of answering."""
        fault = self.machine.fault
        if fault == "hang":
            self.closing.wait(30)
            self.close_connection = True
        elif fault == "html":
            self._answer(200, _HTML)
        elif fault:
            self._answer(int(fault), "")
        return bool(fault)

    def _metadata(self, path: str) -> str | None:
        machine = self.machine
        role = {
            "Code": "Success",
            **machine.credentials,
            "Expiration": as_text(machine.now + 6 * 3600),
        }
        with machine.changed:
            tags, action, rebalance = machine.tags, machine.action, machine.rebalance
            known: dict[str, str | None] = {
                "instance-id": machine.instance_id,
                "placement/region": machine.region,
                "autoscaling/target-lifecycle-state": machine.target,
                "spot/instance-action": None if action is None else json.dumps(action),
                "events/recommendations/rebalance": json.dumps(rebalance) if rebalance else None,
                "events/maintenance/scheduled": json.dumps(machine.maintenance),
                "tags/instance": None if tags is None else "\n".join(tags),
                "iam/security-credentials/": _ROLE,
                f"iam/security-credentials/{_ROLE}": json.dumps(role),
            }
            for name, value in (tags or {}).items():
                known[f"tags/instance/{name}"] = value
            return known.get(path)

    def do_POST(self) -> None:
        """Answer a call of SQS, of SSM or of EC2 Auto Scaling."""
        machine = self.machine
        body = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
        called = self.headers.get("X-Amz-Target", "")
        refuses = machine.refuses
        if "AWS4-HMAC-SHA256" not in self.headers.get("Authorization", ""):
            refuses = "MissingAuthenticationToken"
        if not called:
            self._auto_scaling(refuses, {name: v[0] for name, v in parse_qs(body).items()})
            return
        request = json.loads(body)
        answer: dict[str, Any] = {"MessageId": uuid.uuid4().hex}
        if called == "AmazonSSM.GetParameter":
            value = machine.parameters.get(request["Name"])
            answer = {"Parameter": {"Name": request["Name"], "Value": value}}
            refuses = refuses or ("ParameterNotFound" if value is None else "")
        elif len(request["MessageBody"].encode()) > _LONGEST_MESSAGE:
            refuses = refuses or "InvalidParameterValue"
        elif not refuses:
            with machine.changed:
                machine.bodies.append(request["MessageBody"])
        if refuses:
            answer = {"__type": f"com.amazonaws#{refuses}", "message": "refused by the test"}
        self._answer(400 if refuses else 200, json.dumps(answer))

    def _auto_scaling(self, refuses: str, params: dict[str, str]) -> None:
        machine, action, hook = self.machine, params.get("Action"), params.get("LifecycleHookName")
        message = ""
        if refuses:
            message = "refused by the test"
        elif action == "DescribeAutoScalingInstances":
            group = f"<AutoScalingGroupName>{machine.group}</AutoScalingGroupName>"
            self._answer(200, group if machine.target else "<AutoScalingInstances/>")
        elif params.get("AutoScalingGroupName") != machine.group:
            message = "AutoScalingGroup name not found"
        elif machine.act(str(hook), heartbeat="Heartbeat" in str(action)):
            self._answer(200, f"<{action}Response/>")
        else:
            message = f"No active Lifecycle Action found with instance ID {machine.instance_id}"
        if message:
            code = f"<Code>{refuses or 'ValidationError'}</Code>"
            error = f"<Error><Type>Sender</Type>{code}<Message>{message}</Message></Error>"
            self._answer(400, f"<ErrorResponse>{error}</ErrorResponse>")

    def _answer(self, status: int, body: str) -> None:
        data = body.encode()
        self.send_response_only(status)
        self.send_header("Date", formatdate(self.machine.now, usegmt=True))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
