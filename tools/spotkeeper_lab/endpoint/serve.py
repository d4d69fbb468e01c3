"""The process of the local AWS: ministack, with the simulated cloud in it."""

import argparse
import asyncio
import ctypes
import importlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spotkeeper_lab.endpoint import ministack
from spotkeeper_lab.endpoint.aws import ByMoto, Groups, WarmPools, World, instance_tags, member_of
from spotkeeper_lab.endpoint.faults import App, FailingCalls, Faults
from spotkeeper_lab.endpoint.lab import LabPages, watch
from spotkeeper_lab.endpoint.machines import Agents, Workers, addressed
from spotkeeper_lab.endpoint.up import LabSettings
from spotkeeper_lab.local_aws.wire import ACCOUNT, REGION, VirtualTime

HOST = "127.0.0.1"
TICK_S = 0.25
QUEUE = "SearchLogQueue"
# Where AWS says which of its images is the newest: those of docs/workers.md.
IMAGES = {
    f"/aws/service/{name}": image
    for name, image in (
        ("ecs/optimized-ami/amazon-linux-2023/gpu/recommended/image_id", "ami-0c2023a1b2c3d4e5f"),
        (
            "deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
            "ami-0123456789abcdef0",
        ),
    )
}
PR_SET_PDEATHSIG = 1
log = logging.getLogger("spotkeeper.lab")


def main() -> None:
    """Serve until a signal; every process of a function ends with this one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("settings", type=Path, help="JSON file of LabSettings")
    settings = LabSettings.model_validate_json(parser.parse_args().settings.read_text())
    _end_with_parent()
    try:
        ministack.check_release()
    except ministack.SeamError as error:
        sys.exit(str(error))
    os.environ.update(environment(settings))
    world = make_world(settings, time.time, time.monotonic)
    join(world, settings)
    workers = Workers(world.time)
    faults = Faults(settings, world, workers)
    calls = FailingCalls(ministack.module("app").app, faults)
    pages = LabPages(calls, faults, watch(f"http://{HOST}:{settings.port}"))
    stop = threading.Event()
    for task in (lambda: _deliver(world, stop), lambda: _work(world, workers, stop)):
        threading.Thread(target=task, daemon=True).start()
    try:
        asyncio.run(_serve(pages, settings.port))
    finally:
        stop.set()
        ministack.end()


def _end_with_parent() -> None:
    """Ask Linux for SIGTERM when the process that started this one dies, however it does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def environment(settings: LabSettings) -> dict[str, str]:
    """What ministack reads from its environment; its default is to serve on every interface."""
    return {
        "AUTH": "true" if settings.auth else "false",
        "BIND_HOST": HOST,
        "GATEWAY_PORT": str(settings.port),
        "MINISTACK_ACCOUNT_ID": ACCOUNT,
        "MINISTACK_REGION": REGION,
        "MINISTACK_IMDS_ENABLED": "0",
        "IOT_MTLS_ENABLED": "0",
        "SFTP_ENABLED": "0",
        # Layers cannot be written to, so what is compiled in one process is not there in the next.
        "PYTHONDONTWRITEBYTECODE": "1",
        "LOG_LEVEL": "INFO",
    }


def make_world(
    settings: LabSettings, clock: Callable[[], float], monotonic: Callable[[], float]
) -> World:
    began = monotonic()
    return World(
        groups=settings.groups(),
        capacities=settings.pools,
        physics=settings.made(),
        time=VirtualTime(datetime.fromtimestamp(clock(), UTC)),
        seconds=lambda: monotonic() - began,
    )


def join(world: World, settings: LabSettings) -> None:
    """Put the world in the place of ministack's own capacity and mend what differs from AWS."""
    by_moto = ByMoto(world)
    for service in ("autoscaling", "ec2"):
        ministack.answer_instead(service, by_moto)
    groups = Groups(world, ministack.zone_of, max(settings.pools.values(), default=0))
    ministack.provision(
        "AWS::AutoScaling::AutoScalingGroup",
        create=groups.create,
        update=groups.update,
        delete=groups.delete,
    )
    pools = WarmPools(world)
    ministack.provision(
        "AWS::AutoScaling::WarmPool", create=pools.create, update=pools.update, delete=pools.delete
    )
    ministack.keep_parameters(IMAGES)
    ministack.service_linked_roles()
    ministack.alarms_do_not_ring()
    ministack.conditions_on_lists()
    ministack.functions_have_only_their_layers()
    ministack.archives_are_unpacked_once()
    ministack.rules_and_schedules_invoke_asynchronously()
    ministack.invocations_are_lambda_s()
    ministack.exceptions_have_their_type()
    ministack.processes_start_in_turn()
    ministack.logs_end_with_their_function()
    ministack.loopback_is_secure()
    ministack.authorize_as_aws(
        lambda one: instance_tags(world, one), lambda one: member_of(world, one)
    )


def _deliver(world: World, stop: threading.Event) -> None:
    while not stop.wait(TICK_S):
        for event in world.due():
            log.info("%s %s", event["detail-type"], json.dumps(event["detail"])[:160])
            ministack.put_event(event)


def _work(world: World, workers: Workers, stop: threading.Event) -> None:
    """Let workers serve, and send what they log to the stacks that have their groups."""
    agents = Agents()
    groups: dict[str, str] = {}
    while not stop.wait(TICK_S):
        with world.now() as cloud:
            views = cloud.instances()
            groups |= {view.instance_id: view.group for view in views if view.group}
            workers.advance(cloud.now_s, views, cloud.physics.notice_s)
            agents.look(cloud, workers.force.busy_instances)
        for body in workers.ship():
            for stack, message in addressed(body, groups, ministack.parameters()):
                ministack.send_message(f"{stack}-{QUEUE}", message)


async def _serve(app: App, port: int) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    config: Any = importlib.import_module("hypercorn.config").Config()
    config.bind = [f"{HOST}:{port}"]
    config.keep_alive_timeout = 75
    config.graceful_timeout = 1
    serve = importlib.import_module("hypercorn.asyncio").serve
    await serve(app, config, shutdown_trigger=ended.wait)
