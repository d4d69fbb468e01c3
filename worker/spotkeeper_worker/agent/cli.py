"""The command `spotkeeper-agent`."""

from __future__ import annotations

import contextlib
import grp
import json
import logging
import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Callable

from spotkeeper_worker import __version__, roster
from spotkeeper_worker.agent.aws import (
    AutoScaling,
    AwsError,
    SearchLogQueue,
    parameter,
)
from spotkeeper_worker.agent.credentials import CredentialChain
from spotkeeper_worker.agent.gpu import Gpus, count_gpus, has_gpu
from spotkeeper_worker.agent.loop import Agent, AnotherAgent, Parts, hold_machine, notify
from spotkeeper_worker.agent.metadata import ELSEWHERE, Metadata, MetadataError, NoAnswer, identity
from spotkeeper_worker.agent.queue_look import watch
from spotkeeper_worker.agent.service import Service
from spotkeeper_worker.agent.settings import GPUS, Settings, SettingsError, load
from spotkeeper_worker.agent.web import ERRORS
from spotkeeper_worker.extras import region_of_queue
from spotkeeper_worker.log import Sometimes, get_logger
from spotkeeper_worker.logs import files
from spotkeeper_worker.logs.intake import Origin
from spotkeeper_worker.logs.journal import Journal
from spotkeeper_worker.logs.outbox import Outbox
from spotkeeper_worker.logs.pace import PaceSettings
from spotkeeper_worker.logs.server import SocketServer
from spotkeeper_worker.notice import read_notice
from spotkeeper_worker.stop import Stop, on_signals

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOG = get_logger("agent")
_TRIES = 5
_EXPECTED = (SettingsError, AnotherAgent, MetadataError, AwsError, ValueError, ImportError)


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return the exit code. An error is one line on stderr."""
    given = sys.argv[1:] if arguments is None else arguments
    # The agent runs for as long as its machine: without argparse it takes 1 MiB less.
    command = _run if given == ["run"] else _command_of(given)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    try:
        return command()
    except (*_EXPECTED, *ERRORS) as error:
        owner = "; run it as root, or set SPOTKEEPER_RUN_DIR and SPOTKEEPER_SPOOL_DIR"
        to_do = owner if isinstance(error, PermissionError) else ""
        print(f"spotkeeper-agent: {error}{to_do}", file=sys.stderr)
        return 2


def _command_of(arguments: list[str]) -> Callable[[], int]:
    import argparse

    parser = argparse.ArgumentParser(prog="spotkeeper-agent", description=__doc__)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run", help="run the agent of this machine until it is stopped")
    commands.add_parser("job", help="run the job that this machine was launched for")
    commands.add_parser("notice", help="print the notice that the workers read")
    commands.add_parser("check", help="examine settings, agent, queue, permissions and clock")
    forward = commands.add_parser("forward", help="move search logs from RabbitMQ to SQS")
    forward.add_argument("--amqps", required=True, metavar="URL", help="amqps://USER:PW@HOST/VHOST")
    forward.add_argument("--queue", required=True, help="the queue that takes the search logs")
    options = parser.parse_args(arguments)
    if options.command == "forward":
        return lambda: _forward(options.amqps, options.queue)
    return {"run": _run, "job": _job, "notice": _notice, "check": _check}[options.command]


def _notice() -> int:
    run_dir = Path(os.environ.get("SPOTKEEPER_RUN_DIR", "/run/spotkeeper"))
    notice = read_notice(run_dir)
    if notice is None:
        print(f"spotkeeper-agent: no notice in {run_dir}; does the agent run?", file=sys.stderr)
        return 1
    print(json.dumps(notice.as_json()))
    return 0


def _check() -> int:
    from spotkeeper_worker.agent.check import check

    return check(os.environ, sender)


def _run() -> int:
    settings = load(os.environ)
    if make_folders(settings) is None:
        _LOG.warning(
            "any user of this machine may act as a worker; let the agent run as root and create a "
            "group for the workers (groupadd --system %s)",
            settings.unix_group,
        )
    # Before anything starts: an agent that is stopped while it starts sends its logs as well.
    stopping = Stop()
    on_signals(stopping.set)
    with looked_after(settings, stopping) as agent:
        notify("READY=1")
        agent.run()
    return 0


def _job() -> int:
    from spotkeeper_worker.job.main import run

    return run(load(os.environ, job=True))


def _forward(url: str, queue: str) -> int:
    import asyncio

    from spotkeeper_worker.agent.forward import PREFETCH, forward
    from spotkeeper_worker.amqp import Consumer

    # Our own messages say what matters of aio-pika's.
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)
    sending, _ = sender(load(os.environ))
    stopping = Stop()
    on_signals(stopping.set)
    asyncio.run(forward(Consumer(url, queue, PREFETCH), sending.send, stopping))
    return 0


def sender(
    settings: Settings, kind: type[CredentialChain] = CredentialChain
) -> tuple[SearchLogQueue, CredentialChain]:
    """Give the queue of search logs, and the permissions to use it; raises AwsError."""
    metadata = Metadata(settings.metadata_endpoint) if settings.cluster == "aws" else None
    chain = kind(metadata, os.environ)
    region = settings.region or "us-east-1"
    url = settings.search_log_queue_url
    if not url:
        name = f"/spotkeeper/{settings.stack}/search-log-queue-url"
        url = parameter(name, region, chain)
    region = region_of_queue(url) or region
    return SearchLogQueue(url, region, chain), chain


def make_folders(settings: Settings) -> int | None:
    """Make the two folders that containers mount, and share them with the workers' group.

    Returns the group's id; None where there is no such group, or it is not ours to share with:
    then workers of any user may join.
    """
    gid = None
    with contextlib.suppress(KeyError):
        group_id = grp.getgrnam(settings.unix_group).gr_gid
        gid = group_id if os.geteuid() == 0 or group_id in (os.getegid(), *os.getgroups()) else None
    for shared in (settings.run_dir / roster.FOLDER, settings.spool_dir / files.FOLDER):
        shared.mkdir(parents=True, exist_ok=True)
        if gid is not None:
            os.chown(shared, -1, gid)
        shared.chmod(0o1777 if gid is None else 0o1770)
    return gid


@contextlib.contextmanager
def looked_after(
    settings: Settings, stopping: Stop, kind: type[CredentialChain] = CredentialChain
) -> Iterator[Agent]:
    """Hold this machine, put its agent together, and start what it works with.

    The agent ends once `stopping` is set. Raises AnotherAgent, AwsError, and MetadataError where
    EC2's metadata does not answer.
    """
    say = Sometimes(_LOG)
    with contextlib.ExitStack() as ending:
        gid = make_folders(settings)
        ending.enter_context(hold_machine(settings.run_dir, settings.spool_dir))
        if settings.workers == GPUS:
            settings = settings._replace(workers=max(1, count_gpus()[0]))
        metadata = instance = auto_scaling = None
        if settings.cluster == "aws":
            metadata = Metadata(settings.metadata_endpoint)
            ending.callback(metadata.close)
            for tries in range(_TRIES, 0, -1):
                try:
                    instance = identity(metadata)
                    break
                except NoAnswer as error:
                    # A machine that boots may not have its network yet.
                    if tries == 1:
                        raise NoAnswer(f"{error}; {ELSEWHERE}") from None
                    _LOG.warning("metadata: %s; trying again", error)
                    time.sleep(1.0)
        if instance and not settings.region:
            settings = settings._replace(region=instance.region)
        if instance and not instance.tags_on:
            _LOG.warning(
                "instance tags are not in the metadata: a detached machine stops at once, instead "
                "of serving until it goes (InstanceMetadataTags: enabled)"
            )
        queue, chain = sender(settings, kind)
        if instance:
            auto_scaling = AutoScaling("autoscaling", settings.region, chain)
        outbox = Outbox(
            Journal(settings.spool_dir / "journal", settings.keep_logs),
            queue.send,
            Origin(settings.cluster, instance.instance_id if instance else "", settings.fleet),
            PaceSettings(
                settings.send_after_s, max(settings.send_after_s, settings.send_at_most_s)
            ),
            settings.clamp_s,
        )
        follower = None
        if settings.logs:
            follower = files.Follower(settings.logs, outbox.accept, outbox.last_of, say)
        gpus = Gpus() if settings.gpu == "on" or (settings.gpu == "auto" and has_gpu()) else None
        machine = instance.instance_id if instance else socket.gethostname()
        service = Service(settings, say, lambda why: outbox.tell(trouble=f"{machine}: {why}"))
        parts = Parts(outbox, service, metadata, instance, auto_scaling, gpus, follower)
        agent = Agent(settings, parts, say, stopping)
        server = SocketServer(settings.run_dir, outbox.accept, lambda: agent.notice.as_json(), gid)
        for part in (queue, chain, outbox, auto_scaling, gpus, service, follower, server):
            if part is not None:
                ending.callback(part.close)
        if gpus:
            gpus.start()
        outbox.start()
        server.start()
        if settings.request_queue is not None:
            # Its looks go with the logs.
            ending.callback(
                watch(
                    settings.request_queue,
                    settings.look_every_s,
                    lambda look: outbox.tell(queue=look),
                )
            )
        yield agent


if __name__ == "__main__":
    sys.exit(main())
