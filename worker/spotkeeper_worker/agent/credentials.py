"""Where permissions come from: the environment, a container's role, the instance's role.

The order and the names are botocore's, so that what works for it works here.
"""

from __future__ import annotations

import json
import os
import threading
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from spotkeeper_worker.agent import web
from spotkeeper_worker.agent.metadata import Metadata, MetadataError
from spotkeeper_worker.times import read_time

if TYPE_CHECKING:
    from collections.abc import Mapping

# Instance roles are renewed at least five minutes before they end. A file is read each minute: the
# SSM agent and IAM Roles Anywhere write one anew, and do not tell when its token ends.
RENEW_BEFORE_S = 300.0
_FILE_S = 60.0
_UNREADABLE = (*web.ERRORS, MetadataError, ValueError)
_CONTAINER_HOST = "http://169.254.170.2"
_LONGEST = 1 << 20


class NoCredentials(Exception):
    """Nobody gave this machine permissions; says where was looked."""


class Credentials(NamedTuple):
    """A key pair, its session, and when it ends (never, for keys of the environment)."""

    key: str
    secret: str
    token: str = ""
    ends_at: float = float("inf")


class CredentialChain:
    """Finds credentials, keeps them, and renews them before they end."""

    def __init__(self, metadata: Metadata | None, environment: Mapping[str, str]) -> None:
        self._metadata = metadata
        self._environment = environment
        self._kept: Credentials | None = None
        self._lock = threading.Lock()

    def get(self, now: float) -> Credentials:
        """Give credentials that last a while; raises NoCredentials."""
        with self._lock:
            if self._kept is None or now >= self._kept.ends_at - RENEW_BEFORE_S:
                self._kept = self._renewed(now)
            return self._kept

    def close(self) -> None:
        """End the connection to the metadata service."""
        if self._metadata is not None:
            self._metadata.close()

    def _renewed(self, now: float) -> Credentials:
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        key, secret, token = (self._environment.get(name, "") for name in names)
        try:
            credentials = (
                (Credentials(key, secret, token) if key and secret else None)
                or _of_file(self._environment, now)
                or self._of_a_role()
            )
        except _UNREADABLE as error:
            if self._kept is not None and now < self._kept.ends_at:
                return self._kept
            raise NoCredentials(f"credentials: {error}") from None
        if credentials is None:
            raise NoCredentials(
                "credentials: neither AWS_ACCESS_KEY_ID, ~/.aws/credentials, a container's role "
                "nor an instance profile; give the launch template an IamInstanceProfile"
            )
        return credentials

    def _of_a_role(self) -> Credentials | None:
        """Ask the container's endpoint if it has one, or else the instance's metadata.

        https://docs.aws.amazon.com/AmazonECS/latest/developerguide/task-iam-roles.html
        """
        relative = self._environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "")
        uri = self._environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI", "")
        uri = _CONTAINER_HOST + relative if relative else uri
        body: str | bytes | None = None
        if uri:
            token = self._environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
            # EKS Pod Identity has it in a file, and writes that anew.
            if file := self._environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", ""):
                token = Path(file).read_text(encoding="utf-8").strip()
            status, body = web.read(uri, {"Authorization": token} if token else {}, 2.0, _LONGEST)
            if status != HTTPStatus.OK:
                raise MetadataError(f"{uri}: answered {status}")
        elif self._metadata:
            roles = "meta-data/iam/security-credentials/"
            role = self._metadata.get(roles)
            body = (self._metadata.get(roles + role.split()[0]) or None) if role else None
        if body is None:
            return None
        values = json.loads(body)
        try:
            ends_at = read_time(values["Expiration"])
            return Credentials(
                values["AccessKeyId"], values["SecretAccessKey"], values["Token"], ends_at
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"a role's credentials are incomplete: {error!r}") from None


def _of_file(environment: Mapping[str, str], now: float) -> Credentials | None:
    """Read a profile of plain keys, as machines of one's own have."""
    named = environment.get("AWS_SHARED_CREDENTIALS_FILE")
    path = Path(named) if named else Path.home() / ".aws" / "credentials"
    if not os.access(path, os.R_OK):
        return None
    # Machines of AWS have no such file, and do without the memory that the module takes.
    import configparser

    parser = configparser.RawConfigParser()
    try:
        # Editors of Windows begin a file with a mark that is no part of it.
        parser.read(path, encoding="utf-8-sig")
    except configparser.Error as error:
        raise ValueError(str(error)) from None
    profile = environment.get("AWS_PROFILE", "default")
    if not parser.has_option(profile, "aws_access_key_id"):
        return None
    section = parser[profile]
    secret = section.get("aws_secret_access_key", "")
    token, ends_at = section.get("aws_session_token", ""), now + RENEW_BEFORE_S + _FILE_S
    return Credentials(section["aws_access_key_id"], secret, token, ends_at)
