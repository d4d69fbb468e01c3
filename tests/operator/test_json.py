"""What programs read: one object with a version, by its schema, and nothing read off prose."""

import json
import random
import re
from typing import Any

import pytest
import typer.main
from jsonschema import ValidationError  # type: ignore[import-untyped]

from functions.check_availability.app import handler as check_availability
from functions.check_health.app import handler as check_health
from spotkeeper_cli.main import app
from spotkeeper_operator.answers import ANSWERS, schema
from tests.functions.conftest import Stage
from tests.operator.command import SCHEMA, holds, run

PROSE = {"reason", "text", "message", "why", "nobody_serves", "unread"}
SHOWN = {"reason", "why", "error", "what"}
ANSWERED = ("status", "status --instances", "observe report --since 1h")


def reworded(value: Any, *, prose: bool, words: random.Random) -> Any:
    """A record with other words wherever a person reads it."""
    if isinstance(value, dict):
        return {k: reworded(v, prose=k in PROSE, words=words) for k, v in value.items()}
    if isinstance(value, list):
        return [reworded(each, prose=prose, words=words) for each in value]
    if not (prose and isinstance(value, str) and value):
        return value
    return " ".join(words.choices(["i-0", "moon;", "desired", "nobody", "9"], k=7))


def shown(value: Any) -> Any:
    """An answer without what is for people."""
    if isinstance(value, dict):
        return {k: shown(v) for k, v in value.items() if k not in SHOWN}
    return [*map(shown, value)] if isinstance(value, list) else value


def answers() -> list[Any]:
    return [shown(json.loads(run(*line.split(), "--json")[1])) for line in ANSWERED]


def test_answers_do_not_depend_on_the_words_of_records(deployed: Stage) -> None:
    """One instance is a suspect, and for some turns the fleet only observes."""
    hung, *_ = deployed.cloud.group("main-spot").instances
    run("mode", "main", "observe", "--yes")
    deployed.cloud.set_desired("main-spot", 6)
    for _ in range(9):
        deployed.at(deployed.cloud.now_s + 60)
        deployed.serve("main", 6.5, 6)
        deployed.call(check_health)
        deployed.call(check_availability)
    suspect = {
        "instance_id": hung.instance_id, "kind": "silent", "why": "finished nothing",
        "since": deployed.now.isoformat(), "on_premises": False, "replaced_at": None,
    }  # fmt: skip
    *_, newest = [i for i in deployed.items("main", "decision#") if "#health#" in i["sk"]["S"]]
    record = json.loads(newest["record"]["S"])
    record |= {"suspects": [suspect], "health": record["health"] | {"workers_suspect": 1}}
    deployed.keep(newest | {"record": {"S": json.dumps(record)}})
    before, words = answers(), random.Random(4)
    assert before[2]["fleets"][0]["wishes"]
    assert hung.instance_id in str(before[0]["fleets"][0]["suspects"])
    assert [it["counted"] for it in before[1]["fleets"][0]["instances"]].count(False) == 1
    for item in deployed.items("main", "decision#"):
        text = reworded(json.loads(item["record"]["S"]), prose=False, words=words)
        deployed.keep(item | {"record": {"S": json.dumps(text)}})
    assert answers() == before


def test_the_schema_is_what_make_docs_writes_and_names_each_command() -> None:
    assert schema() == SCHEMA, "run make docs"
    with_json = set[str]()

    def look(command: Any, name: str) -> None:
        for sub, each in getattr(command, "commands", {}).items():
            look(each, f"{name} {sub}".strip())
        if any("--json" in it.opts for it in command.params):
            with_json.add(name)

    look(typer.main.get_command(app), "")
    assert {name.partition(" --")[0].removesuffix(" NAME") for name in ANSWERS} == with_json


def test_names_are_in_snake_case_and_amounts_are_numbers_of_usd() -> None:
    parts = [it.get("properties", {}) for it in SCHEMA["$defs"].values()]
    names = {name: kind for part in parts for name, kind in part.items()}
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in names)
    usd = [kind for name, kind in names.items() if "usd" in name]
    assert len(usd) > 10
    assert all("number" in str(kind) for kind in usd)
    assert all(name.endswith("_usd") for name in names if "usd" in name)


@pytest.mark.parametrize("wrong", ['{"version": 2}', "[]", '{"version": 1}'])
def test_another_shape_is_refused(wrong: str) -> None:
    with pytest.raises(ValidationError):
        holds(["status"], wrong)
