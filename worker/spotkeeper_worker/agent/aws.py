"""The five calls of AWS that a machine makes, and how they are signed.

By the standard library: botocore alone takes more memory than the agent may
(bench/worker.py), and images without it are to join the fleet as they are. Signature version 4 is
https://docs.aws.amazon.com/IAM/latest/UserGuide/create-signed-request.html
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import time
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from spotkeeper_worker.agent import web
from spotkeeper_worker.agent.credentials import CredentialChain, Credentials, NoCredentials
from spotkeeper_worker.extras import region_of_queue
from spotkeeper_worker.logs.outbox import NotSent

if TYPE_CHECKING:
    from collections.abc import Mapping

TIMEOUT_S = 5.0
# AWS closes what is idle; a call on a connection that is being closed would fail for nothing.
_IDLE_S = 4.0
_NO_ACTION = "No active Lifecycle Action"
# By what a code holds: what to do.
_TO_DO = {
    "ParameterNotFound": "compare the name of the stack, and the region",
    "DoesNotExist": "compare the URL with the stack's output SearchLogQueueUrl",
    "AccessDenied": "give the machine's role to the stack as WorkerRole",
    "Token": "replace the keys of this machine",
    "Signature": "compare the secret key, and this machine's clock",
}


class AwsError(NotSent):
    """A call that had no success; `code` is AWS's own, or empty when nothing was answered."""

    def __init__(self, what: str, code: str, message: str) -> None:
        super().__init__(f"{what}: {code or 'no answer'}: {message}")
        self.code = code


class NoActiveAction(AwsError):
    """No lifecycle hook holds this instance: it is not there yet, or has been completed."""


def signed(
    service: str,
    region: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    credentials: Credentials,
    now: float,
) -> dict[str, str]:
    """Give the headers of a POST with its signature added."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    parts = urlsplit(url)
    all_headers = {**headers, "Host": parts.netloc, "X-Amz-Date": stamp}
    if credentials.token:
        all_headers["X-Amz-Security-Token"] = credentials.token
    lowered = {name.lower(): value.strip() for name, value in all_headers.items()}
    names = ";".join(sorted(lowered))
    lines = "".join(f"{name}:{lowered[name]}\n" for name in sorted(lowered))
    digest = hashlib.sha256(body).hexdigest()
    canonical = f"POST\n{parts.path or '/'}\n\n{lines}\n{names}\n{digest}"
    scope = f"{stamp[:8]}/{region}/{service}/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{credentials.secret}".encode()
    for part in (stamp[:8], region, service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    all_headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.key}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return all_headers


class Caller:
    """Posts signed bodies to one service over one connection. Not for two threads at once."""

    def __init__(self, service: str, region: str, chain: CredentialChain, url: str = "") -> None:
        self._service = service
        self._endpoint = url or endpoint_of(service, region)
        self._region = region
        self._chain = chain
        self._connection = web.connection_to_aws(self._endpoint, TIMEOUT_S)
        self._used_at = 0.0

    def ask(self, version: str, target: str, body: Mapping[str, object]) -> str:
        """Make a call of a JSON protocol; raises AwsError, as `post` does."""
        headers = {"Content-Type": f"application/x-amz-json-{version}", "X-Amz-Target": target}
        return self.post(target.rpartition(".")[2], headers, json.dumps(body).encode())

    def post(self, what: str, headers: Mapping[str, str], body: bytes) -> str:
        """Post once; raises AwsError. A call without an answer may have had its effect."""
        url, now = self._endpoint, time.time()
        try:
            credentials = self._chain.get(now)
            every = signed(self._service, self._region, url, headers, body, credentials, now)
            if time.monotonic() - self._used_at > _IDLE_S:
                self.close()
            self._used_at = time.monotonic()
            self._connection.request("POST", urlsplit(url).path or "/", body, every)
            answer = self._connection.getresponse()
            text = answer.read().decode("utf-8", "replace")
        except NoCredentials as error:
            raise AwsError(what, "NoCredentials", str(error)) from None
        except web.ERRORS as error:
            self.close()
            raise AwsError(what, "", f"{type(error).__name__} {error}") from None
        if answer.status == HTTPStatus.OK:
            return text
        code, message = _error_of(text)
        kind = NoActiveAction if _NO_ACTION in message else AwsError
        to_do = next((each for part, each in _TO_DO.items() if part in code), "")
        why = message.rstrip(".") or text[:200]
        why += f"; {to_do} ({self._region})" if to_do else ""
        raise kind(what, code or str(answer.status), why)

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        self._connection.close()


def _error_of(text: str) -> tuple[str, str]:
    """Take code and message out of an error, in the JSON or the XML of the two protocols."""
    try:
        body = json.loads(text)
        return str(body.get("__type", "")).rpartition("#")[2], str(body.get("message", ""))
    except (ValueError, AttributeError):
        code = re.search("<Code>(.*?)</Code>", text)
        message = re.search("<Message>(.*?)</Message>", text, re.DOTALL)
        return (code.group(1) if code else "", message.group(1) if message else "")


class SearchLogQueue(Caller):
    """The queue of search logs, by SendMessage alone."""

    def __init__(self, url: str, region: str, chain: CredentialChain) -> None:
        parts = urlsplit(url)
        endpoint = os.environ.get("AWS_ENDPOINT_URL_SQS", "")
        if not endpoint and not (is_dual_stack() and region_of_queue(url)):
            endpoint = f"{parts.scheme}://{parts.netloc}/"
        super().__init__("sqs", region, chain, endpoint)
        self.url = url

    def send(self, body: str) -> None:
        """Send a message; raises AwsError unless SQS confirms that it has it."""
        parameters = {"QueueUrl": self.url, "MessageBody": body}
        text = self.ask("1.0", "AmazonSQS.SendMessage", parameters)
        if "MessageId" not in text:
            raise AwsError("SendMessage", "", f"answered without a MessageId: {text[:80]}")


def parameter(name: str, region: str, chain: CredentialChain) -> str:
    """Read a parameter of the stack; raises AwsError."""
    with contextlib.closing(Caller("ssm", region, chain)) as caller:
        text = caller.ask("1.1", "AmazonSSM.GetParameter", {"Name": name})
    try:
        return str(json.loads(text)["Parameter"]["Value"])
    except (ValueError, KeyError, TypeError):
        raise AwsError("GetParameter", "", f"answered {text[:80]}") from None


class AutoScaling(Caller):
    """The machine's own group: its hooks, and its name where metadata does not tell it."""

    def act(self, group: str, hook: str, instance_id: str, *, heartbeat: bool = False) -> None:
        """Complete a hook, or have it wait for its whole time-out again.

        Raises NoActiveAction where it holds nothing, or AwsError.
        """
        named = {
            "AutoScalingGroupName": group,
            "LifecycleHookName": hook,
            "InstanceId": instance_id,
        }
        if heartbeat:
            self._ask("RecordLifecycleActionHeartbeat", **named)
        else:
            self._ask("CompleteLifecycleAction", **named, LifecycleActionResult="CONTINUE")

    def group_of(self, instance_id: str) -> str:
        """Find an instance's group; empty when it is in none. Raises AwsError."""
        text = self._ask("DescribeAutoScalingInstances", **{"InstanceIds.member.1": instance_id})
        match = re.search("<AutoScalingGroupName>(.*?)</AutoScalingGroupName>", text)
        return match.group(1) if match else ""

    def _ask(self, action: str, **named: str) -> str:
        body = urlencode({"Action": action, "Version": "2011-01-01", **named}).encode()
        headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
        return self.post(action, headers, body)


_NAMES = {"autoscaling": "AUTO_SCALING"}
# By how regions of a partition begin, as botocore's partitions.json has it: the suffix of IPv4, and
# that of both.
SUFFIXES = {
    "cn-": ("amazonaws.com.cn", "api.amazonwebservices.com.cn"),
    "eusc-": ("amazonaws.eu", "api.amazonwebservices.eu"),
    "us-iso-": ("c2s.ic.gov", "api.aws.ic.gov"),
    "us-isob-": ("sc2s.sgov.gov", "api.aws.scloud"),
    "us-isof-": ("csp.hci.ic.gov", "api.aws.hci.ic.gov"),
    "eu-isoe-": ("cloud.adc-e.uk", "api.cloud-aws.adc-e.uk"),
    "": ("amazonaws.com", "api.aws"),
}


def is_dual_stack() -> bool:
    """Whether the machine may have IPv6 alone: AWS_USE_DUALSTACK_ENDPOINT, as SDKs read it."""
    return os.environ.get("AWS_USE_DUALSTACK_ENDPOINT", "").lower() == "true"


def endpoint_of(service: str, region: str) -> str:
    """Give the URL of a service in a region, as SDKs find it: AWS_ENDPOINT_URL_SSM, and so on."""
    named = _NAMES.get(service, service.upper())
    own = os.environ.get(f"AWS_ENDPOINT_URL_{named}") or os.environ.get("AWS_ENDPOINT_URL")
    if own:
        return own
    suffix = next(both for begin, both in SUFFIXES.items() if region.startswith(begin))
    return f"https://{service}.{region}.{suffix[is_dual_stack()]}/"
