"""The instance metadata service, version 2.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html
There is no fallback to version 1. A path that is not there answers None; whatever else goes wrong
is a `MetadataError`, and never means that the machine is to drain.
"""

from __future__ import annotations

import json
import time
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Callable, NamedTuple

from spotkeeper_worker.agent import web
from spotkeeper_worker.states import TARGETS, Seen
from spotkeeper_worker.times import read_time

ENDPOINT = "http://169.254.169.254"
TOKEN_TTL_S = 21_600
TAG = "spotkeeper:draining"
_LONGEST = 16_384
_LONGEST_TOKEN = 512
# The answer's date has whole seconds, and the answer takes some time.
_CLOCK_TOLERANCE_S = 2.0


class MetadataError(Exception):
    """The metadata service did not answer, or not as it should."""


class NoAnswer(MetadataError):
    """Nobody answered: the next question would only take as long."""


class Metadata:
    """A client that keeps its token and one connection."""

    def __init__(self, endpoint: str = ENDPOINT, timeout_s: float = 1.0) -> None:
        self._connection = web.connection_to(endpoint, timeout_s)
        self._token = ""
        self._renew_at = 0.0
        self.clock_offset_s = 0.0
        """How far the service's clock is ahead of this machine's; 0 within two seconds."""

    def get(self, path: str) -> str | None:
        """Read a path under /latest/; None where it is not there. Raises MetadataError."""
        for renewed in (False, True):
            if renewed or time.monotonic() >= self._renew_at:
                self._renew()
            status, body = self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
            if status != HTTPStatus.UNAUTHORIZED:
                break
        if status == HTTPStatus.NOT_FOUND:
            return None
        if status != HTTPStatus.OK:
            raise MetadataError(f"{path}: answered {status}")
        return body

    def _renew(self) -> None:
        header = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}
        status, body = self._ask("PUT", "api/token", header)
        if status != HTTPStatus.OK or not body or "<" in body or len(body) > _LONGEST_TOKEN:
            raise MetadataError(f"api/token: answered {status} and no token")
        self._token = body.strip()
        self._renew_at = time.monotonic() + 0.8 * TOKEN_TTL_S

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        try:
            self._connection.request(method, f"/latest/{path}", headers=headers)
            answer = self._connection.getresponse()
            body = answer.read(_LONGEST + 1)
        except web.ERRORS as error:
            self.close()
            raise NoAnswer(f"{path}: {type(error).__name__} {error}".rstrip()) from None
        if len(body) > _LONGEST:
            self.close()
            raise MetadataError(f"{path}: answered more than {_LONGEST} bytes")
        self._compare_clocks(answer.getheader("Date"))
        return answer.status, body.decode("utf-8", "replace")

    def _compare_clocks(self, date: str | None) -> None:
        try:
            ahead = parsedate_to_datetime(date or "").timestamp() - time.time()
        except (TypeError, ValueError):
            return
        self.clock_offset_s = ahead if abs(ahead) > _CLOCK_TOLERANCE_S else 0.0

    def close(self) -> None:
        """Close the connection; the next question opens another."""
        self._connection.close()


class Look(NamedTuple):
    """One look at the notices: what is known after it, and what could not be read."""

    seen: Seen
    troubles: tuple[str, ...] = ()


def look(metadata: Metadata, before: Seen, *, urgent_only: bool = False) -> Look:
    """Read the notices; what cannot be read stays as it was `before`.

    Maintenance is announced days before: `urgent_only` leaves it out.
    """
    seen = before
    troubles: list[str] = []
    for path, read in _URGENT if urgent_only else (*_URGENT, _MAINTAINED):
        try:
            seen = read(seen, metadata.get(path), metadata.clock_offset_s)
        except (MetadataError, ValueError) as error:
            troubles.append(str(error))
            if isinstance(error, NoAnswer):
                break
    return Look(seen=seen, troubles=tuple(troubles))


def _target(seen: Seen, body: str | None, offset_s: float) -> Seen:
    target = None if body is None else body.strip()
    if target is not None and target not in TARGETS:
        raise ValueError(f"autoscaling/target-lifecycle-state: {target[:40]!r} is not known")
    return seen._replace(target=target)


def _action(seen: Seen, body: str | None, offset_s: float) -> Seen:
    if body is None:
        return seen._replace(taken_at=None)
    try:
        told = json.loads(body)
        return seen._replace(taken_at=read_time(told["time"]) - offset_s)
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"spot/instance-action: {body[:40]!r} is not an action with a time"
        ) from None


def _rebalance(seen: Seen, body: str | None, offset_s: float) -> Seen:
    if body is not None and "noticeTime" not in body:
        raise ValueError(f"events/recommendations/rebalance: {body[:40]!r} is not a recommendation")
    return seen._replace(rebalance=body is not None)


def _tag(seen: Seen, body: str | None, offset_s: float) -> Seen:
    if body is None:
        return seen._replace(tagged_until=None)
    try:
        return seen._replace(tagged_until=read_time(body.strip()) - offset_s)
    except ValueError as error:
        raise ValueError(f"tags/instance/{TAG}: {error}") from None


# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/viewing_scheduled_events.html: what is not one
# of these does not end what the instance serves.
_MAINTENANCE = ("instance-stop", "instance-retirement", "instance-reboot", "system-reboot",
    "system-maintenance")  # fmt: skip


def _scheduled(seen: Seen, body: str | None, offset_s: float) -> Seen:
    """Take the first event that is still to happen; canceled and completed ones stay listed."""
    try:
        events = [
            (parsedate_to_datetime(event["NotBefore"]).timestamp() - offset_s, event["Code"])
            for event in json.loads(body or "[]")
            if event["State"] == "active" and event["Code"] in _MAINTENANCE
        ]
    except (KeyError, TypeError, ValueError):
        shown = (body or "")[:40]
        raise ValueError(
            f"events/maintenance/scheduled: {shown!r} is not a list of events"
        ) from None
    at, code = min(events) if events else (None, "")
    return seen._replace(maintained_at=at, maintenance=code)


_URGENT: tuple[tuple[str, Callable[[Seen, str | None, float], Seen]], ...] = (
    ("meta-data/autoscaling/target-lifecycle-state", _target),
    ("meta-data/spot/instance-action", _action),
    ("meta-data/events/recommendations/rebalance", _rebalance),
    (f"meta-data/tags/instance/{TAG}", _tag),
)
_MAINTAINED = ("meta-data/events/maintenance/scheduled", _scheduled)


class Identity(NamedTuple):
    """Who the machine is; `group` is empty where metadata does not tell it."""

    instance_id: str
    region: str
    group: str = ""
    tags_on: bool = True


def identity(metadata: Metadata) -> Identity:
    """Ask who this machine is. Raises MetadataError."""
    instance_id = metadata.get("meta-data/instance-id")
    region = metadata.get("meta-data/placement/region")
    if not instance_id or not instance_id.startswith("i-") or not region or "<" in region:
        raise MetadataError("meta-data/instance-id and placement/region: this is not EC2 metadata")
    tags_on = metadata.get("meta-data/tags/instance") is not None
    group = metadata.get("meta-data/tags/instance/aws:autoscaling:groupName") if tags_on else ""
    return Identity(instance_id.strip(), region.strip(), (group or "").strip(), tags_on)
