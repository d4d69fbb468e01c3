"""The words of earlier releases: what they wrote into the table still reads."""

import json
from typing import Any

# 0.2 and before; a turn of 0.1 kept what is the risk's beside the rest.
_MEMORY = {
    "asks": "pending_increases",
    "first_seen_coming": "launching_since",
    "waves": "warning_bursts",
    "bridging": "deferral",
}
_RISK = ("warning_bursts", "deferral")
_RECORD = {"half": "controller"}
# What began the line of a step that was not done.
_FAILED = ("AWS refused ", "failed: ")
_FIGURES = {"SpotComing": "SpotLaunching"}


def memory_in_todays_words(memory: Any) -> Any:
    """Rename the fields of a controller's memory, and gather what the risk remembers."""
    if not isinstance(memory, dict):
        return memory
    memory = {_MEMORY.get(name, name): value for name, value in memory.items()}
    risk = memory.get("risk", {name: memory[name] for name in _RISK if name in memory})
    if isinstance(risk, dict):
        risk = {_MEMORY.get(name, name): value for name, value in risk.items()}
    return memory | {"risk": risk}


def record_of_lines(item: Any) -> str:
    """Write as a record what the turn of a job left in lines, until 0.2."""
    name, at = (item[key]["S"].partition("#")[2] for key in ("pk", "sk"))
    lines = [line["S"] for line in item["lines"]["L"]]
    outcomes = [
        {"asked": "the step before", "error": line} if line.startswith(_FAILED) else {"asked": line}
        for line in lines
    ]
    of = {"fleet": name, "controller": "jobs", "at": at, "action": "step", "rule": "steps"}
    return json.dumps({**of, "reason": "", "seen": {}, "outcomes": outcomes})


def record_in_todays_words(record: Any) -> Any:
    """Rename the fields of a decision record, and the figures that it holds."""
    if not isinstance(record, dict):
        return record
    record = {_RECORD.get(name, name): value for name, value in record.items()}
    seen = record.get("seen")
    if isinstance(seen, dict):
        seen = {_FIGURES.get(name, name): value for name, value in seen.items()}
    return record | {"seen": seen}
