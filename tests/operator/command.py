"""The command as a person runs it, and a stack that it is run on.

Some answers are kept: `GOLDEN=write pytest tests/operator` writes them anew.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from typer.testing import CliRunner

from spotkeeper_cli.main import app
from tests.functions.conftest import TABLE, Stage

STACK = "test"
KEPT = Path(__file__).parent / "kept"
_SEND: Callable[..., Any] = getattr(BaseClient, "_make_api_call")  # noqa: B009 - untyped


def deploy(**outputs: str) -> None:
    """Make a stack with the outputs that commands read."""
    told = {"TableName": TABLE, **outputs}
    template = {
        "Resources": {"AlarmTopic": {"Type": "AWS::SNS::Topic"}},
        "Outputs": {
            "AlarmTopicArn": {"Value": {"Ref": "AlarmTopic"}},
            **{name: {"Value": value} for name, value in told.items()},
        },
    }
    boto3.client("cloudformation").create_stack(StackName=STACK, TemplateBody=json.dumps(template))


SCHEMA = json.loads((Path(__file__).parents[2] / "docs/json.schema.json").read_text())


def holds(arguments: Sequence[str], out: str) -> None:
    """Hold an answer in JSON against the schema of its command."""
    line = " ".join(arguments)
    line = re.sub(r"^job status [^-]\S*", "job status NAME", line)
    of = [it for it in SCHEMA["$defs"] if it.islower() or "NAME" in it]
    of = [it for it in of if f"{line} ".startswith(f"{it.partition(' --')[0]} ")]
    name = max((it for it in of if it.partition(" --")[2] in line), key=len)
    Draft202012Validator({"$ref": f"#/$defs/{name}", **SCHEMA}).validate(json.loads(out))


def run(*arguments: str) -> tuple[int, str, str]:
    """Run the command on the stack: exit code, standard output, standard error."""
    result = CliRunner(env={"SPOTKEEPER_STACK": STACK}).invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if "--json" in arguments and result.stdout:
        holds(arguments, result.stdout)
    return result.exit_code, result.stdout, result.stderr


def answered(*arguments: str) -> str:
    """What the command answers; nothing may go to standard error, nor beyond 80 columns."""
    _, out, err = run(*arguments)
    assert err == ""
    if "--json" not in arguments:
        assert max(map(len, out.splitlines())) <= 80
    return out


def words(line: str) -> str:
    """What the command answers, whatever its lines are."""
    return " ".join(answered(*line.split()).split())


def record(stage: Stage, controller: str, text: Mapping[str, object]) -> None:
    """Have the table hold a decision record of now, whatever it says."""
    key = {
        "pk": {"S": "fleet#main"},
        "sk": {"S": f"decision#{stage.now.isoformat()}#{controller}#0"},
    }
    stage.keep({**key, "record": {"S": json.dumps(text)}})


def intercept(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[BaseClient, str, Any], Any]
) -> None:
    """Let `answer` see every call of AWS, and answer or refuse it; None lets it through."""

    def asked(client: BaseClient, operation: str, arguments: Any) -> Any:
        found = answer(client, operation, arguments)
        return _SEND(client, operation, arguments) if found is None else found

    monkeypatch.setattr(BaseClient, "_make_api_call", asked)


def refused(*arguments: str) -> str:
    """What the command says when it refuses: exit code 2 and no output."""
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    return " ".join(err.split())


def matches(name: str, answer: str) -> None:
    path = KEPT / name
    if os.environ.get("GOLDEN") == "write":
        path.write_text(answer, encoding="utf-8")
    assert answer == path.read_text(encoding="utf-8")
    if path.suffix == ".txt":
        assert max(map(len, answer.splitlines())) <= 80


def sleeps(monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], None]) -> None:
    """Have commands sleep so; threads of other tests, which share `time`, sleep as ever."""
    for module in ("stack_commands", "job_commands"):
        monkeypatch.setattr(f"spotkeeper_cli.{module}.time", SimpleNamespace(sleep=sleep))
