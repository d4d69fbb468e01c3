"""What happens to one pretended instance: a group moves it, EC2 warns it, hooks hold it."""

from __future__ import annotations

import base64
import gzip
import json
import threading
import time
from datetime import datetime, timezone
from email.utils import format_datetime
from typing import Any

from spotkeeper_worker.agent.metadata import TAG
from spotkeeper_worker.times import as_text

READY_HOOK = "spotkeeper-ready"
DRAIN_HOOK = "spotkeeper-drain"
_HOOK_TIMEOUT_S = 120.0


def unpacked(body: str) -> str:
    """The lines of a message of search logs."""
    return gzip.decompress(base64.b64decode(body)).decode()


class FakeMachine:
    """State of an instance as its metadata and its group tell it; a test changes it by methods.

    `fault` is what the metadata service does instead of answering: "hang", "html", "503" or "401".
    `refuses` is the error code with which AWS's own endpoints answer; empty while they work.
    """

    def __init__(self) -> None:
        self.instance_id = "i-0123456789abcdef0"
        self.region = "us-east-1"
        self.group = "demo-spot"
        self.target: str | None = None
        self.fault = ""
        self.refuses = ""
        self.clock_ahead_s = 0.0
        self.tags: dict[str, str] | None = {
            "Name": "demo-spot",
            "aws:autoscaling:groupName": self.group,
        }
        self.action: dict[str, str] | None = None
        self.rebalance: dict[str, str] | None = None
        self.maintenance: list[dict[str, str]] = []
        self.completed: list[tuple[str, str]] = []
        """Hook and target state of every hook that was completed, in order."""
        self.heartbeats: list[str] = []
        self.bodies: list[str] = []
        """Every message that the queue took."""
        self.parameters: dict[str, str] = {}
        """Of SSM, by name."""
        self.credentials = {
            "AccessKeyId": "ASIATESTING", "SecretAccessKey": "testing", "Token": "testing",
        }  # fmt: skip
        """Of the role of its profile."""
        self.tokens: dict[str, float] = {}
        self._active: dict[str, float] = {}
        self.changed = threading.RLock()

    @property
    def now(self) -> float:
        """The time by EC2's clock."""
        return time.time() + self.clock_ahead_s

    def launch(self) -> None:
        """The group launches it: the launch hook holds it on its way into service."""
        self._move("InService", READY_HOOK)

    def into_warm_pool(self) -> None:
        """The group launches it into the warm pool, or returns it there."""
        self._move("Warmed:Stopped", READY_HOOK)

    def scale_in(self) -> None:
        """The group ends it: the terminate hook holds it."""
        self._move("Terminated", DRAIN_HOOK)

    def interrupt(self, in_s: float = 120.0) -> None:
        """EC2 warns that it takes the instance in `in_s` seconds."""
        with self.changed:
            self.action = {"action": "terminate", "time": as_text(self.now + in_s)}

    def recommend_rebalance(self) -> None:
        """EC2 says that an interruption has become likelier."""
        with self.changed:
            self.rebalance = {"noticeTime": as_text(self.now)}

    def schedule(self, in_s: float, code: str = "system-reboot", state: str = "active") -> None:
        """EC2 schedules maintenance."""
        at = datetime.fromtimestamp(self.now + in_s, timezone.utc)
        event = {
            "Code": code,
            "Description": "scheduled",
            "EventId": f"instance-event-{len(self.maintenance)}",
            "NotBefore": format_datetime(at, usegmt=True)[5:],
            "State": state,
        }
        with self.changed:
            self.maintenance = [*self.maintenance, event]

    def tag(self, in_s: float = 120.0) -> None:
        """Spotkeeper no longer counts it, and ends it in `in_s` seconds."""
        with self.changed:
            if self.tags is not None:
                self.tags[TAG] = as_text(self.now + in_s)

    def untag(self) -> None:
        """The warning is taken back."""
        with self.changed:
            if self.tags is not None:
                self.tags.pop(TAG, None)

    def logs(self) -> list[dict[str, Any]]:
        """Every search log that the queue has, each message counted once."""
        return [line for line in self._lines() if "request_id" in line]

    def looks(self) -> list[dict[str, Any]]:
        """Every look at a request queue that the queue has."""
        looks = [line.get("agent", {}) for line in self._lines()]
        return [each["queue"] for each in looks if "queue" in each]

    def _lines(self) -> list[dict[str, Any]]:
        with self.changed:
            bodies = dict.fromkeys(self.bodies)
        return [json.loads(line) for body in bodies for line in unpacked(body).split("\n")]

    def act(self, hook: str, *, heartbeat: bool = False) -> bool:
        """Complete a hook as AWS does, or have it wait anew; False where it holds nothing."""
        with self.changed:
            if self._active.get(hook, 0.0) <= time.time():
                return False
            if heartbeat:
                self._active[hook] = time.time() + _HOOK_TIMEOUT_S
                self.heartbeats.append(hook)
            else:
                del self._active[hook]
                self.completed.append((hook, str(self.target)))
            return True

    def _move(self, target: str, hook: str) -> None:
        with self.changed:
            self.target = target
            self._active = {hook: time.time() + _HOOK_TIMEOUT_S}
