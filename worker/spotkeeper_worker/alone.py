"""A worker without an agent beside it: what the agent does, in threads of the worker's own process.

For one worker a machine, or a container that shares nothing (docs/alone.md). With boto3 permissions
are found wherever boto3 finds them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from spotkeeper_worker.agent.aws import AwsError
from spotkeeper_worker.agent.cli import looked_after
from spotkeeper_worker.agent.credentials import (
    RENEW_BEFORE_S,
    CredentialChain,
    Credentials,
    NoCredentials,
)
from spotkeeper_worker.agent.loop import AnotherAgent
from spotkeeper_worker.agent.metadata import MetadataError
from spotkeeper_worker.agent.settings import PREFIX, SettingsError, parse
from spotkeeper_worker.stop import Stop
from spotkeeper_worker.worker import MARGIN_S, Worker

_ASK_BOTO_S = 60.0


class BotoChain(CredentialChain):
    """Finds credentials as boto3 does: profiles with SSO, assumed roles, web identities."""

    def _renewed(self, now: float) -> Credentials:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            credentials = boto3.Session().get_credentials()
            frozen = credentials.get_frozen_credentials() if credentials else None
        except (BotoCoreError, ClientError) as error:
            raise NoCredentials(f"credentials: boto3: {error}") from None
        if frozen is None:
            raise NoCredentials("credentials: boto3 finds none")
        key, secret = frozen.access_key or "", frozen.secret_key or ""
        # Only boto3 knows when they end, so it is called again soon.
        ends_at = now + RENEW_BEFORE_S + _ASK_BOTO_S
        return Credentials(key, secret, frozen.token or "", ends_at)


def _one_line(error: Exception) -> None:
    """Have Python print one line, not a traceback, if nobody catches this very error."""
    before = sys.excepthook

    def hook(kind: Any, value: BaseException, trace: Any) -> None:
        if value is error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        else:
            before(kind, value, trace)

    sys.excepthook = hook


class Alone(Worker):
    """A worker that is its own agent; `settings` are the agent's (docs/workers.md, Settings).

    They override those of the environment. Without `spool_dir` logs that were not sent are lost
    with the process.
    """

    def __init__(self, worker_id: str = "", *, margin_s: float = MARGIN_S, **settings: Any) -> None:
        """Raises SettingsError, MetadataError, AwsError, AnotherAgent, and what Worker raises."""
        own = Path(tempfile.mkdtemp(prefix="spotkeeper-"))
        self._pid = os.getpid()
        self._ending = contextlib.ExitStack()
        self._ending.callback(shutil.rmtree, own, ignore_errors=True)
        try:
            named = {PREFIX + name.upper(): str(value) for name, value in settings.items()}
            fallback = {"run_dir": own / "run", "spool_dir": own / "spool", "workers": 1}
            parsed = parse({**os.environ, **named}, fallback)
            kind = BotoChain if find_spec("boto3") else CredentialChain
            stopping = Stop()
            agent = self._ending.enter_context(looked_after(parsed, stopping, kind))
            thread = threading.Thread(target=agent.run, name="agent", daemon=True)
            thread.start()
            self._ending.callback(thread.join)
            self._ending.callback(stopping.set)
            super().__init__(worker_id, parsed.run_dir, margin_s)
        except BaseException as error:
            self._ending.close()
            if isinstance(error, (SettingsError, MetadataError, AwsError, AnotherAgent)):
                _one_line(error)
            raise

    def close(self, timeout_s: float = 2.0) -> None:
        """Leave, send the last logs, and complete what hooks there are."""
        super().close(timeout_s)
        # The agent is the parent's of a child that was forked.
        if self._pid == os.getpid():
            self._ending.close()
