"""The agent's settings: from its environment, and from the file `/etc/spotkeeper/agent.toml`."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NamedTuple
from urllib.parse import urlsplit

from spotkeeper_worker.agent.queue_look import Address, parse_address
from spotkeeper_worker.logs.files import Follow

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "SPOTKEEPER_"
CONFIG = "/etc/spotkeeper/agent.toml"
GPUS = -1
"""A worker for each GPU."""


# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-retrieval.html
IPV6_METADATA = "http://[fd00:ec2::254]"


class SettingsError(Exception):
    """Settings that cannot be used; names every wrong one."""


_LONGEST_PROBE_S = 60.0


class Probe(NamedTuple):
    """A URL that answers 2xx while the service is ready, or alive."""

    url: str
    every_s: float = 2.0
    timeout_s: float = 2.0

    @classmethod
    def parse(cls, value: Any) -> Probe:
        """Read `{http = "http://127.0.0.1:8000/health"}`; raises ValueError."""
        table = value if isinstance(value, dict) else {"http": value}
        url = table.get("http")
        parts = urlsplit(url if isinstance(url, str) else "")
        times = [table.get(name, 2.0) for name in ("every_s", "timeout_s")]
        right = all(
            isinstance(each, (int, float)) and 0 < each <= _LONGEST_PROBE_S for each in times
        )
        if parts.scheme not in ("http", "https") or not parts.hostname or not right:
            raise ValueError('should be {http = "http://127.0.0.1:8000/health"}')
        if set(table) - {"http", "every_s", "timeout_s"}:
            raise ValueError("has http, every_s and timeout_s, and nothing else")
        return cls(str(url), float(times[0]), float(times[1]))


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


def _command(value: Any) -> tuple[str, ...]:
    """Read `["systemctl", "stop", "vllm"]`; raises ValueError."""
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise ValueError('should be a command, such as ["systemctl", "stop", "vllm"]')
    return tuple(value)


_QUEUE_URL = (r"https?://[^/\s]+/\S+", "the URL of a queue, as the stack's output names it")
_PATTERNS = {
    "search_log_queue_url": _QUEUE_URL,
    # The path of a unix socket has at most 107 bytes.
    "run_dir": (r"/.{1,95}", "an absolute path of at most 96 characters"),
    "stack": (r"[A-Za-z][A-Za-z0-9-]{0,127}", "a stack's name"),
    "fleet": (r"[A-Za-z0-9_.-]{0,64}", "a fleet's name"),
    "metadata_endpoint": (r"http://[^/\s]+/?", "an address such as http://127.0.0.1:1338"),
    "job_queue_url": _QUEUE_URL,
    "cluster": ("aws|onprem", "one of aws, onprem"),
    "rebalance": ("inform|drain", "one of inform, drain"),
    "gpu": ("auto|on|off", "one of auto, on, off"),
}
_RANGES: dict[str, tuple[float, float]] = {
    "workers": (0, 200),
    "keep_logs": (500, 1_000_000),
    "hook_timeout_s": (1, 7200),
    "hook_settles_s": (0, 3600),
    "hung_after_s": (1, 172_800),
    "stop_within_s": (0, 7200),
    **dict.fromkeys(("drain_at_most_s", "boot_at_most_s"), (0, 172_800)),
    **dict.fromkeys(("settle_s", "clamp_s"), (0, 60)),
    **dict.fromkeys(("tick_s", "job_tick_s"), (0.01, 5)),
    **dict.fromkeys(("poll_s", "look_every_s", "send_after_s", "send_at_most_s"), (0.01, 60)),
}
# These are values of TOML, also in the environment.
_STRUCTURED: dict[str, Callable[[Any], Any]] = {
    "on_drain": _command,
    "on_return": _command,
    "job_shutdown": _command,
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
}
# Of the library, which may share an environment with the agent.
_OTHERS = {"worker_id", "slots", "checkpoints", "config"}
# Of 0.2: each is AWS_ENDPOINT_URL_SSM and so on, as every SDK reads it.
_RETIRED = {f"{service}_endpoint" for service in ("ssm", "sqs", "auto_scaling", "logs")}


def load(environment: Mapping[str, str], *, job: bool = False) -> Settings:
    """Read the settings of a machine; raises SettingsError. One with a `job` needs others."""
    path = Path(environment.get("SPOTKEEPER_CONFIG") or CONFIG)
    try:
        # Editors of Windows begin a file with a mark. Names may be those of the environment, too.
        read = read_file(path.read_text(encoding="utf-8-sig"))
        given = {name.lower().removeprefix(PREFIX.lower()): read[name] for name in read}
    except FileNotFoundError:
        if environment.get("SPOTKEEPER_CONFIG"):
            raise SettingsError(f"{path} is not there") from None
        given = {}
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: {error}") from None
    for name in _RETIRED:
        own = given.pop(name, "") or environment.get(PREFIX + name.upper())
        if own:
            os.environ.setdefault(f"AWS_ENDPOINT_URL_{name[: -len('_endpoint')].upper()}", str(own))
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
    tried: set[str] = set()
    for name in known:
        names = (PREFIX + name.upper(), *_ALSO.get(name, ()))
        text = next((environment[n] for n in names if environment.get(n)), None)
        mode = environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "")
        if name == "metadata_endpoint" and mode.lower() == "ipv6":
            text = text or IPV6_METADATA
        if text is None and name not in given:
            continue
        try:
            read[name] = _read(name, given.get(name), text)
        except ValueError as error:
            shown = given.get(name) if text is None else text
            tried.add(name)
            wrong.append(f"{names[0]}: {'' if name in _SECRET else repr(shown) + ' '}{error}")
    if job:
        if "jobs_parameter" not in read and not {"job_bucket", "job_queue_url"} <= set(read):
            wrong.append(
                f"{PREFIX}JOBS_PARAMETER: is missing; {PREFIX}JOB_BUCKET and {PREFIX}JOB_QUEUE_URL "
                "would also do"
            )
    elif not {"search_log_queue_url", "stack"} & (set(read) | tried):
        wrong.append(f"{PREFIX}SEARCH_LOG_QUEUE_URL: is missing, and so is {PREFIX}STACK: set one")
    named = {n[len(PREFIX) :].lower() for n in environment if n.startswith(PREFIX)}
    strange = (named - known - _OTHERS - _RETIRED) | (set(given) - known)
    wrong += [f"{PREFIX}{name.upper()}: is not a setting{_meant(name)}" for name in sorted(strange)]
    if wrong:
        raise SettingsError("; ".join(sorted(wrong)))
    if "ready" in read:
        # The service is what serves; workers of the library are beside it only if somebody says so.
        read.setdefault("workers", 0)
    return Settings(**read)


def _meant(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, Settings._fields, 1)
    return f"; did you mean {PREFIX}{near[0].upper()}?" if near else ""


def _read(name: str, given: Any, text: str | None) -> Any:
    """Read one setting, of the environment if it has a text there; raises ValueError."""
    if name in _STRUCTURED:
        if text is not None:
            try:
                given = read_value(text)
            except ValueError:
                # A URL by itself; of anything else, the kind of setting knows what it should be.
                given = text
        return _STRUCTURED[name](given)
    text = str(given) if text is None else text
    if name == "request_queue":
        return parse_address(text)
    if name == "workers" and text == "gpus":
        return GPUS
    if name in _PATTERNS and not re.fullmatch(_PATTERNS[name][0], text):
        raise ValueError(f"should be {_PATTERNS[name][1]}")
    default = Settings._field_defaults[name]
    if name in _RANGES:
        low, high = _RANGES[name]
        whole = isinstance(default, int)
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            kind = "a whole number" if whole else "a number"
            raise ValueError(f"should be {kind} from {low:g} to {high:g}")
        return value
    return Path(text) if isinstance(default, Path) else text


# --- the file: TOML, as far as settings need it; Python 3.9 has no tomllib ------------------------

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>"(?:[^"\\\x00-\x1f]|\\.)*")
    | '(?P<literal>[^'\x00-\x1f]*)'
    | (?P<number>[+-]?\d[\d_]*(?:\.\d[\d_]*)?)(?![\w.:-])
    | (?P<word>[A-Za-z0-9_-]+)
    | (?P<mark>[\[\]{},=])
    | (?P<comment>\#.*)
    )\s*""",
    re.VERBOSE,
)


def read_file(text: str) -> dict[str, Any]:
    """Read `name = value` lines; raises ValueError with the number of a line that is none."""
    values: dict[str, Any] = {}
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, rest = line.partition("=")
        try:
            if not equals or not _NAME.fullmatch(name.strip()):
                raise ValueError("should be NAME = VALUE, on one line, in no [section]")
            if name.strip() in values:
                raise ValueError(f"{name.strip()} appears twice")
            values[name.strip()] = read_value(rest)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return values


def read_value(text: str) -> Any:
    """Read a value by the JSON of it; a comment may follow. Raises ValueError.

    What it shows is never of a quoted text, which may have a password.
    """
    at, word = 0, ""
    parts: list[str] = []
    try:
        while at < len(text):
            match = _TOKEN.match(text, at)
            if not match or not match.lastgroup:
                rest = text[at:].strip()
                word = rest[:1] if rest.startswith(('"', "'")) else rest
                raise ValueError
            kind, word, at = match.lastgroup, match[match.lastgroup], match.end()
            if kind == "literal" or (kind in ("word", "number") and text[at : at + 1] == "="):
                word = json.dumps(word)
            elif kind == "word" and word not in ("true", "false"):
                raise ValueError
            elif kind == "number":
                word = repr(float(word) if "." in word else int(word))
            elif kind == "mark" and word in "]}" and parts[-1:] == [","]:
                parts.pop()
            if kind != "comment":
                parts.append(":" if word == "=" else word)
        return json.loads(" ".join(parts))
    except json.JSONDecodeError as error:
        raise ValueError(f"is not a value: {error.msg} (it is on one line)") from None
    except ValueError:
        raise ValueError(f"{word[:40]!r} is not a value") from None
