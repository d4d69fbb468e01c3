"""The JSON of each command, as types: what docs/json.schema.json is written from (`make docs`)."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from spotkeeper.domain.doctor.finding import Finding
from spotkeeper.domain.permission import Control
from spotkeeper_operator.cost import CostAnswer
from spotkeeper_operator.drill import DrillAnswer
from spotkeeper_operator.explain import EntryAnswer, Hole
from spotkeeper_operator.fleets import Difference
from spotkeeper_operator.jobs import JobAnswer
from spotkeeper_operator.observed import ObservedAnswer
from spotkeeper_operator.regions import FleetRegions, NewRegion, RegionsWhatIf
from spotkeeper_operator.rollout import Step
from spotkeeper_operator.status.known import Details, FleetEvents, FleetInstances
from spotkeeper_operator.status.shown import FleetAnswer
from spotkeeper_operator.text import VERSION
from spotkeeper_operator.types import FleetTypes
from spotkeeper_operator.what_if import WhatIf

type Fields = Mapping[str, Any]

_CONTROLLED: Fields = {"fleet": str, "control": Control}
_LINES: Fields = {"lines": Sequence[str]}
_ROWS: Fields = {"rows": Sequence[Mapping[str, Any]]}
# The fields of an answer, or the type that has them, by the command; what follows a name is an
# option that changes the shape.
ANSWERS: Mapping[str, Any] = {
    "status": {
        "stack": str,
        "region": str,
        "at": datetime,
        "fleets": Sequence[FleetAnswer],
        "ringing": Sequence[str] | None,
        "ringing_fleets": Mapping[str, Sequence[str]],
        "troubles": Sequence[str],
    },
    "status --instances": Details[FleetInstances],
    "status --events": Details[FleetEvents],
    "explain": {"entries": Sequence[EntryAnswer], "unreadable": int, "holes": Sequence[Hole]},
    "sizing": {"fleets": Sequence[WhatIf]},
    "doctor": {"findings": Sequence[Finding]},
    "cost": CostAnswer,
    "regions": {"fleets": Sequence[FleetRegions]},
    "regions what-if": RegionsWhatIf,
    "region add": NewRegion,
    "region remove": _CONTROLLED,
    "types": {"fleets": Sequence[FleetTypes]},
    "observe report": {"fleets": Sequence[ObservedAnswer]},
    "drill": DrillAnswer,
    "mode": _CONTROLLED,
    "pause": _CONTROLLED,
    "resume": _CONTROLLED,
    "fleet diff": {"fleets": Sequence[Difference]},
    "fleet apply": {"fleets": Sequence[Difference]},
    "fleet show": {"fleet": str, "settings": Mapping[str, Any]},
    "rollout": {"fleet": str, "step": Step, "group": str, "why": str},
    "stop": {"fleet": str, "did": Sequence[str], "left": Sequence[str]},
    "job status": {"jobs": Sequence[JobAnswer]},
    "job status NAME": JobAnswer,
    "job logs": _LINES,
    "job start": _LINES,
    "job stop": _LINES,
    "job recover": _LINES,
    "job fetch": _LINES,
    "job delete": _LINES,
    "backtest": _ROWS,
    "replay": _ROWS,
}


def schema() -> dict[str, Any]:
    """Return the JSON Schema: the answer of a command is `$defs/COMMAND`."""
    kinds = {
        (command, field): kind
        for command, answer in ANSWERS.items()
        for field, kind in (answer if isinstance(answer, Mapping) else {"": answer}).items()
    }
    read, shared = TypeAdapter.json_schemas(
        [(at, "serialization", TypeAdapter(kind)) for at, kind in kinds.items()]
    )
    definitions = shared["$defs"]
    answers: dict[str, Any] = {}
    for (command, field), _ in read:
        fields = read[(command, field), "serialization"]
        whole = fields if field else definitions[fields["$ref"].rpartition("/")[2]]
        properties = {field: whole} if field else whole["properties"]
        before = answers.get(command, {"properties": {"version": {"const": VERSION}}})
        properties = before["properties"] | properties
        answers[command] = {
            "type": "object", "properties": properties, "required": [*properties],
        }  # fmt: skip
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The answers of spotkeeper with --json",
        "$defs": answers | definitions,
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(schema(), indent=1) + "\n", encoding="utf-8")
