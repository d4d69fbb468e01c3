"""The worker's pages: their commands run, and their tables are the code's."""

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import yaml

from spotkeeper_worker import Worker
from spotkeeper_worker.agent.settings import Settings, parse, read_file
from spotkeeper_worker.logs.files import FORMATS, Follow
from spotkeeper_worker.states import TARGETS, State
from spotkeeper_worker.testing import FakeServer, until
from tests.worker.logs import say
from tests.worker.page import COMMANDS, DOC, PAGES, ROOT, RUN_BY, of, plain

type Shell = Callable[..., subprocess.Popen[bytes]]
KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIATESTING",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_REGION": "us-east-1",
}
"""What a user has who may send search logs from a machine that is not AWS's."""
EXAMPLES = ROOT / "worker" / "examples"
OTHERS = ("access-logs", "asyncio", "model-servers", "queues")
"""Pages of ways to join that tests of their own run."""
TITLES = re.findall(r"^## (.+)$", DOC, re.MULTILINE)
TEXTS = re.split(r"^## .+$", DOC, flags=re.MULTILINE)[1:]
SECTIONS = dict(zip(TITLES, TEXTS, strict=True))
# As `pip install` makes it of `[project.scripts]`.
SCRIPT = (
    f"#!{sys.executable}\nfrom spotkeeper_worker.agent.cli import main\nraise SystemExit(main())\n"
)


def test_every_command_has_a_test() -> None:
    for command in COMMANDS:
        assert len([each for each in RUN_BY if plain(command).startswith(each)]) == 1, command
    for begins, path in RUN_BY.items():
        assert of(begins), f"the page has no {begins}"
        assert f'"{begins}"' in (ROOT / path).read_text(), f"{path} does not run {begins}"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Run a line of the page as a shell does; what it says is in a file."""
    (tmp_path / "spotkeeper-agent").write_text(SCRIPT)
    (tmp_path / "spotkeeper-agent").chmod(0o755)
    with ExitStack() as ending, (tmp_path / "said").open("ab") as said:

        def run(line: str, **settings: str) -> subprocess.Popen[bytes]:
            environment = {k: v for k, v in os.environ.items() if k[:4] not in ("AWS_", "SPOT")}
            environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
            process = subprocess.Popen(
                ["bash", "-c", f"exec env {line}"], env=environment | settings, cwd=ROOT,
                stdout=said, stderr=said,
            )  # fmt: skip
            ending.callback(process.wait, 60)
            ending.callback(process.terminate)
            return process

        yield run


def on_the_machine(server: FakeServer, tmp_path: Path) -> dict[str, str]:
    """The environment of a machine whose stack is `spotkeeper`; it looks ten times a second."""
    server.machine.parameters["/spotkeeper/spotkeeper/search-log-queue-url"] = server.queue_url
    found = server.environment() | {
        "SPOTKEEPER_RUN_DIR": str(tmp_path / "run"),
        "SPOTKEEPER_SPOOL_DIR": str(tmp_path / "spool"),
        "SPOTKEEPER_POLL_S": "0.1",
        "SPOTKEEPER_TICK_S": "0.05",
    }
    del found["SPOTKEEPER_SEARCH_LOG_QUEUE_URL"]
    return found


@pytest.mark.make_e2e
@pytest.mark.allow_hosts(["127.0.0.1"])
@pytest.mark.parametrize("command", of("spotkeeper-agent run"))
def test_an_agent_runs(command: str, server: FakeServer, shell: Shell, tmp_path: Path) -> None:
    """Without settings in its line it is the fleet's, and has those of the cloud-config."""
    settings = on_the_machine(server, tmp_path)
    settings |= agent_env() if command == plain(command) else KEYS
    agent = shell(command, **settings)
    until(lambda: (tmp_path / "run" / "agent.sock").exists(), "it runs")
    if "SPOTKEEPER_REQUEST_QUEUE" in command:
        until(lambda: "the request queue's length is not known" in said(tmp_path), "it looks")
    else:
        server.machine.launch()
        with Worker("gpu-0", tmp_path / "run") as worker:
            worker.ready()
            until(lambda: worker.may_take, "it serves")
            [notice] = of("spotkeeper-agent notice")
            assert shell(notice, **settings).wait(60) == 0
        assert '"state": "serving"' in said(tmp_path)
    agent.terminate()
    assert agent.wait(60) == 0


def agent_env() -> dict[str, str]:
    """What the example's machine has in agent.env."""
    config: Any = yaml.safe_load((EXAMPLES / "ecs-gpu.cloud-config.yaml").read_text())
    [text] = [f["content"] for f in config["write_files"] if f["path"].endswith("agent.env")]
    return dict(line.split("=", 1) for line in text.split())


def said(folder: Path) -> str:
    return (folder / "said").read_text()


def test_the_page_names_files_that_exist() -> None:
    for name in re.findall(r"`(?:worker/)?examples/([\w./-]+)`", DOC):
        assert (EXAMPLES / name).exists(), name


def blocks(language: str, text: str = DOC) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("page", [*PAGES, *OTHERS])
def test_a_page_begins_with_what_to_paste_and_ends_with_how_to_see_that_it_works(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    first = re.search(r"^(```|    \S|\| )", text, re.MULTILINE)
    assert first and len(text[: first.start()].split()) < 80
    assert re.findall(r"^## (.+)$", text, re.MULTILINE)[-1] == "See that it works"


def test_what_the_pages_import_is_there() -> None:
    code = blocks("python", DOC + (ROOT / "docs" / "asyncio.md").read_text())
    found = [node for block in code for node in ast.walk(ast.parse(block))]
    imports = [node for node in found if isinstance(node, ast.ImportFrom) and node.module]
    assert len(imports) >= 9
    for node in imports:
        module = importlib.import_module(str(node.module))
        assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)


def test_the_page_s_settings_and_its_access_log_are_the_agent_s() -> None:
    page = (ROOT / "docs" / "access-logs.md").read_text()
    settings, (nginx, *_) = blocks("toml")[0], blocks("nginx", page)
    found = parse({}, read_file(settings))
    assert found.logs is not None and found.on_drain and found.ready and found.live
    written = "".join(re.findall(r"'(.*?)'", nginx))
    values = {
        "msec": "1763632803.250", "request_id": "r-1", "request_time": "2.5",
        "status": "200", "uri": "/ocr", "http_x_request_start": "t=1763553599.5",
    }  # fmt: skip
    entry = json.loads(re.sub(r"\$(\w+)", lambda name: values[name[1]], written))
    log = found.logs.log_of(entry, "web")
    assert log is not None
    # A client sets no wait of its own.
    assert (log["request_id"], log["enqueued_at"]) == ("r-1", "2025-11-20T10:00:00.750Z")
    assert log["started_at"] == "2025-11-20T10:00:00.750Z"


def test_the_page_of_access_logs_has_every_format() -> None:
    page = (ROOT / "docs" / "access-logs.md").read_text()
    settings = blocks("toml", page)[0]
    assert parse({}, read_file(settings)).logs == Follow.parse(
        {"follow": "/var/log/caddy/access.log", "format": "caddy"}
    )
    assert re.findall(r"^\| `(\w+)`", page, re.MULTILINE)[1:] == list(FORMATS)


def rows(section: str) -> list[list[str]]:
    lines = [line for line in SECTIONS[section].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_setting_has_its_row_and_its_default() -> None:
    told: dict[str, str] = {}
    for names, _, *default in rows("Settings")[1:]:
        listed = re.findall(r"`([A-Z_]+)`", names)
        values = (default[0] if default else "").strip(" |").split(", ")
        each = values if len(values) == len(listed) else [""] * len(listed)
        told |= zip(listed, each, strict=True)
    known = {name.upper(): default for name, default in Settings._field_defaults.items()}
    assert set(told) == set(known)
    for name, text in told.items():
        fallback: Any = known[name]
        shown = f"{fallback:g}" if isinstance(fallback, float) else str(fallback)
        assert text in (shown, "", str(fallback)) or name.endswith("ENDPOINT"), name


def test_the_table_of_states_has_every_state_and_every_target() -> None:
    text = SECTIONS["The states"]
    for state in State:
        assert f"| `{state.value}` |" in text
    for target, meant in TARGETS.items():
        [row] = [row for row in rows("The states") if f"`{target}`" in row[0]]
        assert meant.reason in row[2]
        if len(meant.hooks) == 1:
            assert f"spotkeeper-{meant.hooks[0].value}" in row[-1]


def test_the_page_s_loop_begins_nothing_after_a_drain(tmp_path: Path) -> None:
    """The machine starts to drain during a poll; its hook may be complete when the poll returns."""
    (loop,) = (each for each in blocks("python") if "take_one" in each)
    say(tmp_path, State.SERVING)
    message = SimpleNamespace(id="r-0", enqueued_at=1_763_632_800.0)
    worker = Worker("gpu-0", tmp_path)
    polls = [message, None, message]

    def take_one() -> object:
        if len(polls) == 1:
            say(tmp_path, State.IDLE)
        return polls.pop()

    answer, return_it = Mock(), Mock(side_effect=lambda _: worker.stop())
    names = {"worker": worker, "take_one": take_one, "return_it": return_it, "answer": answer}
    exec(loop, names | {"model": None})
    worker.close(timeout_s=0.0)
    assert (answer.call_count, return_it.call_count, polls) == (1, 1, [])
