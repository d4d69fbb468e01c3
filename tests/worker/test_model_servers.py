"""docs/model-servers.md, on a stand-in with the documented endpoints of the servers."""

import asyncio
import importlib
import inspect
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from spotkeeper_worker.agent.settings import parse, read_file
from spotkeeper_worker.states import State
from spotkeeper_worker.testing import until
from tests.worker.conftest import program
from tests.worker.logs import Taken, say
from tests.worker.management import serving
from tests.worker.page import ROOT

PAGE = (ROOT / "docs" / "model-servers.md").read_text()
DRAIN = ROOT / "worker" / "examples" / "drain"
GAUGES = re.findall(r"`((?:vllm:|sglang:|llamacpp:|nv_|tgi_|bentoml_)\w+)`", PAGE)
pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])


def test_the_page_s_settings_are_the_agent_s() -> None:
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    settings = parse({}, read_file(toml))
    assert settings.on_drain[0].endswith(DRAIN.name)
    assert set(settings.on_drain[3:]) <= set(GAUGES)


@pytest.mark.parametrize(
    ("gauge", "takes_s", "at_most_s"),
    [(gauge, 0, 90) for gauge in sorted(set(GAUGES))]
    + [("other", 0, 3), (GAUGES[0], 0, 3), (GAUGES[0], 2.5, 3), ("", 0, 0)],
)
def test_a_drain_waits_for_what_runs(
    tmp_path: Path, gauge: str, takes_s: float, at_most_s: int
) -> None:
    """The gauge falls to 0, or one is never read. A server that is gone has nothing that runs."""
    program(tmp_path / "bin" / "systemctl", f'echo "$*" > {tmp_path}/stopped')
    # SGLang's router writes an underscore for the colon: sgl-project/sglang#12618.
    name = gauge.replace("sglang:", "sglang_")
    text = f'# TYPE {name} gauge\n{name}_total 9\n{name}{{model="m n",path="/{{id}}"}} '
    with serving("/metrics") as web:
        web.takes_s, web.body = takes_s, f"{text}3.0\n"
        url = web.url if gauge else "http://127.0.0.1:1/metrics"
        path = f"{tmp_path}/bin:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "WAIT_AT_MOST_S": str(at_most_s or 90)}
        wanted = [gauge] if at_most_s == 90 else set(GAUGES)
        drain = subprocess.Popen([DRAIN, "vllm", url, *wanted], env=environment)
        if at_most_s:
            time.sleep(0.5 + takes_s)
            assert not (tmp_path / "stopped").exists()
            # With the time that Prometheus's text format allows.
            web.body = f"{text}0.0 1763632803500\n"
        if at_most_s == 3:
            time.sleep(1.2)
            assert not (tmp_path / "stopped").exists()
        assert drain.wait(30) == 0
    assert (tmp_path / "stopped").read_text() == "stop vllm\n"


def test_vllm_s_middleware_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As vllm/entrypoints/openai/api_server.py, build_app, adds what `--middleware` names."""
    say(tmp_path, State.SERVING)
    taken = Taken(tmp_path)
    monkeypatch.setenv("SPOTKEEPER_RUN_DIR", str(tmp_path))
    (named,) = re.findall(r"--middleware (\S+)", PAGE)
    module, name = named.rsplit(".", 1)
    middleware: Any = getattr(importlib.import_module(module), name)
    is_class: bool = inspect.isclass(middleware)
    assert is_class
    app = FastAPI()

    @app.get("/health")
    async def health() -> None: ...

    @app.post("/v1/completions")
    async def completions() -> dict[str, str]:
        return {"text": "yes"}

    app.add_middleware(getattr(importlib.import_module(module), name))
    assert [status(app, "GET", path) for path in ("/health", "/spotkeeper/ready")] == [200, 200]
    assert status(app, "POST", "/v1/completions") == 200
    until(lambda: len(taken.logs) == 1, "the completion is logged, and nothing else")
    say(tmp_path, State.DRAINING, until_s=60)
    assert status(app, "GET", "/spotkeeper/ready") == 503
    assert status(app, "POST", "/v1/completions") == 200
    taken.close()


def status(app: FastAPI, method: str, path: str) -> int:
    """Ask an application as a server does."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http", "http_version": "1.1", "method": method, "path": path, "headers": [],
        "query_string": b"", "scheme": "http", "root_path": "", "server": ("127.0.0.1", 8000),
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return int(sent[0]["status"])
