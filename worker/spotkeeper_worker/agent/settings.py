"""The agent's settings: from its environment, and from the file `/etc/spotkeeper/agent.toml`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from spotkeeper_worker.agent.queue_look import Address, parse_address
from spotkeeper_worker.agent.service import Probe, parse_command
from spotkeeper_worker.agent.values import read_file, read_value
from spotkeeper_worker.logs.follow import Follow

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "SPOTKEEPER_"
CONFIG = "/etc/spotkeeper/agent.toml"


class SettingsError(Exception):
    """Settings that cannot be used; names every wrong one."""


class Settings(NamedTuple):
    """Times in seconds. docs/workers.md says when to change which."""

    search_log_queue_url: str = ""
    stack: str = ""
    region: str = ""
    fleet: str = ""
    cluster: str = "aws"
    workers: int = 1
    run_dir: Path = Path("/run/spotkeeper")
    spool_dir: Path = Path("/var/spool/spotkeeper")
    group: str = ""
    ready_hook: str = "spotkeeper-ready"
    drain_hook: str = "spotkeeper-drain"
    hook_timeout_s: float = 120.0
    drain_at_most_s: float = 3600.0
    hook_settles_s: float = 60.0
    rebalance: str = "inform"
    gpu: str = "auto"
    poll_s: float = 5.0
    tick_s: float = 1.0
    settle_s: float = 2.0
    send_after_s: float = 5.0
    send_at_most_s: float = 10.0
    keep_logs: int = 10_000
    clamp_s: float = 5.0
    stop_within_s: float = 60.0
    boot_at_most_s: float = 3600.0
    hung_after_s: float = 900.0
    unix_group: str = "spotkeeper"
    metadata_endpoint: str = "http://169.254.169.254"
    auto_scaling_endpoint: str = ""
    ssm_endpoint: str = ""
    request_queue: Address | None = None
    look_every_s: float = 15.0
    on_drain: tuple[str, ...] = ()
    on_return: tuple[str, ...] = ()
    ready: Probe | None = None
    live: Probe | None = None
    logs: Follow | None = None
    jobs_parameter: str = ""
    job_bucket: str = ""
    job_queue_url: str = ""
    job_log_group: str = ""
    job_folder: Path = Path("/var/lib/spotkeeper-job")
    job_shutdown: tuple[str, ...] = ("systemctl", "poweroff")
    job_tick_s: float = 1.0
    job_disks: Path | None = None
    logs_endpoint: str = ""

    @property
    def on_ec2(self) -> bool:
        """Whether there is instance metadata to ask."""
        return self.cluster == "aws"


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"should be one of {', '.join(words)}")
        return text

    return read


def _number(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = float(text)
        if not low <= value <= high:
            raise ValueError(f"should be from {low:g} to {high:g}")
        return value

    return read


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        return int(_number(low, high)(str(int(text))))

    return read


def _matching(pattern: str, what: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"should be {what}")
        return text

    return read


GPUS = -1
"""A worker for each GPU."""


def _workers(text: str) -> int:
    return GPUS if text == "gpus" else _whole(0, 200)(text)


_URL = _matching(r"https?://[^/\s]+/\S+", "the URL of a queue, as the stack's output names it")
_READERS: dict[str, Callable[[str], Any]] = {
    "search_log_queue_url": _URL,
    "stack": _matching(r"[A-Za-z][A-Za-z0-9-]{0,127}", "a stack's name"),
    "fleet": _matching(r"[A-Za-z0-9_.-]{0,64}", "a fleet's name"),
    "cluster": _one_of("aws", "onprem"),
    "workers": _workers,
    "run_dir": Path,
    "spool_dir": Path,
    "hook_timeout_s": _number(1, 7200),
    "drain_at_most_s": _number(0, 172_800),
    "hook_settles_s": _number(0, 3600),
    "rebalance": _one_of("inform", "drain"),
    "gpu": _one_of("auto", "on", "off"),
    "poll_s": _number(0.01, 60),
    "tick_s": _number(0.01, 5),
    "settle_s": _number(0, 60),
    "send_after_s": _number(0.01, 60),
    "send_at_most_s": _number(0.01, 60),
    "keep_logs": _whole(500, 1_000_000),
    "clamp_s": _number(0, 60),
    "stop_within_s": _number(0, 7200),
    "boot_at_most_s": _number(0, 172_800),
    "hung_after_s": _number(1, 172_800),
    "metadata_endpoint": _matching(r"http://[^/\s]+/?", "an address such as http://127.0.0.1:1338"),
    "request_queue": parse_address,
    "look_every_s": _number(0.01, 60),
    "job_queue_url": _URL,
    "job_folder": Path,
    "job_tick_s": _number(0.01, 5),
    "job_disks": Path,
}
# These are values of TOML, also in the environment.
_STRUCTURED: dict[str, Callable[[Any], Any]] = {
    "on_drain": parse_command,
    "on_return": parse_command,
    "job_shutdown": parse_command,
    "ready": Probe.parse,
    "live": Probe.parse,
    "logs": Follow.parse,
}
# Not shown, even where they are wrong: they hold a password.
_SECRET = {"request_queue"}
# Names that botocore and everybody else know.
_ALSO = {
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "metadata_endpoint": ("AWS_EC2_METADATA_SERVICE_ENDPOINT",),
    "auto_scaling_endpoint": ("AWS_ENDPOINT_URL_AUTO_SCALING", "AWS_ENDPOINT_URL"),
    "ssm_endpoint": ("AWS_ENDPOINT_URL_SSM", "AWS_ENDPOINT_URL"),
    "logs_endpoint": ("AWS_ENDPOINT_URL_LOGS", "AWS_ENDPOINT_URL"),
}


def load(environment: Mapping[str, str], *, job: bool = False) -> Settings:
    """Read the settings of a machine; raises SettingsError. One with a `job` needs others."""
    path = Path(environment.get("SPOTKEEPER_CONFIG") or CONFIG)
    try:
        given = read_file(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if environment.get("SPOTKEEPER_CONFIG"):
            raise SettingsError(f"{path} is not there") from None
        given = {}
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: {error}") from None
    return parse(environment, given, job=job)


def parse(
    environment: Mapping[str, str], given: Mapping[str, Any] | None = None, *, job: bool = False
) -> Settings:
    """Read the settings. Raises SettingsError with every wrong one; unknown ones are wrong too.

    `given` are those of the file; those of the environment override them.
    """
    given = given or {}
    wrong: list[str] = []
    known = set(Settings._fields)
    read: dict[str, Any] = {}
    for name in known:
        names = (PREFIX + name.upper(), *_ALSO.get(name, ()))
        text = next((environment[n] for n in names if environment.get(n)), None)
        if text is None and name not in given:
            continue
        try:
            read[name] = _read(name, given.get(name), text)
        except ValueError as error:
            shown = given.get(name) if text is None else text
            wrong.append(f"{names[0]}: {'' if name in _SECRET else repr(shown) + ' '}{error}")
    if job:
        if "jobs_parameter" not in read and not {"job_bucket", "job_queue_url"} <= set(read):
            wrong.append(
                f"{PREFIX}JOBS_PARAMETER: is missing; {PREFIX}JOB_BUCKET and {PREFIX}JOB_QUEUE_URL "
                "would also do"
            )
    elif not {"search_log_queue_url", "stack"} & set(read):
        wrong.append(f"{PREFIX}SEARCH_LOG_QUEUE_URL: is missing, and so is {PREFIX}STACK")
    named = {n[len(PREFIX) :].lower() for n in environment if n.startswith(PREFIX)}
    strange = (named - known - _OTHERS) | (set(given) - known)
    wrong += [f"{PREFIX}{name.upper()}: is not a setting" for name in sorted(strange)]
    if wrong:
        raise SettingsError("; ".join(sorted(wrong)))
    if "ready" in read:
        # The service is what serves; workers of the library are beside it only if somebody says so.
        read.setdefault("workers", 0)
    return Settings(**read)


def _read(name: str, given: Any, text: str | None) -> Any:
    if name in _STRUCTURED:
        return _STRUCTURED[name](given if text is None else read_value(text))
    return _READERS.get(name, str)(str(given) if text is None else text)


# Of the library, which may share an environment with the agent.
_OTHERS = {"worker_id", "config"}
