"""`spotkeeper-agent check`: what a machine lacks, a line each, and what to do."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Callable

from spotkeeper_worker.agent.aws import AwsError, SearchLogQueue
from spotkeeper_worker.agent.credentials import CredentialChain, NoCredentials
from spotkeeper_worker.agent.metadata import ELSEWHERE, Identity, Metadata, MetadataError, identity
from spotkeeper_worker.agent.settings import Settings, SettingsError, load
from spotkeeper_worker.logs.journal import Segment
from spotkeeper_worker.logs.server import NAME
from spotkeeper_worker.notice import read_notice

if TYPE_CHECKING:
    from collections.abc import Mapping

    Sender = Callable[[Settings], tuple[SearchLogQueue, CredentialChain]]

TIMEOUT_S = 5.0


def check(environment: Mapping[str, str], sender: Sender) -> int:
    """Print what is right and what is wrong; return 1 if anything is wrong."""
    results: list[bool] = []

    def line(name: str, problem: str, well: str = "") -> None:
        results.append(not problem)
        print(f"{'ok   ' if not problem else 'WRONG'} {name}: {problem or well}")

    try:
        settings = load(environment)
    except SettingsError as error:
        line("settings", str(error))
        return 1
    line("settings", "", settings.stack or settings.search_log_queue_url)
    line("agent", *_agent(settings))
    about = "queue"
    with contextlib.ExitStack() as ending:
        instance: Identity | None = None
        if settings.cluster == "aws":
            metadata = Metadata(settings.metadata_endpoint)
            ending.callback(metadata.close)
            try:
                instance = identity(metadata)
                off = "" if instance.tags_on else "set InstanceMetadataTags: enabled"
                line("metadata", off, instance.instance_id)
                offset = metadata.clock_offset_s
                far = f"EC2's clock is {offset:+.0f} s from this one; run chrony" if offset else ""
                line("clock", far, "within 2 s of EC2's")
                settings = settings._replace(region=settings.region or instance.region)
            except MetadataError as error:
                line("metadata", f"{error}; {ELSEWHERE}")
        try:
            queue, chain = sender(settings)
            ending.callback(queue.close)
            ending.callback(chain.close)
            # A message without a log tells nobody anything.
            queue.send(Segment(None, (), '{"lost":0}').body())
            line(about, "", queue.url)
            about = "permissions"
            if instance:
                group = settings.group or instance.group
                line("group", "", group or "not in the tags: the agent asks for it")
            line("permissions", "", "found; WorkerRole of the stack has those of hooks and logs")
        except (AwsError, NoCredentials) as error:
            line(about, str(error))
    return 0 if all(results) else 1


def _agent(settings: Settings) -> tuple[str, str]:
    """Say what is wrong with the agent that runs, and what it does."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.connect(str(settings.run_dir / NAME))
        notice = read_notice(settings.run_dir)
    except (OSError, ValueError) as error:
        return f"does not run ({error}); systemctl start spotkeeper-agent", ""
    if notice is None:
        return f"has no notice in {settings.run_dir} yet", ""
    return "", f"{notice.state.value} {notice.reason}".rstrip()
