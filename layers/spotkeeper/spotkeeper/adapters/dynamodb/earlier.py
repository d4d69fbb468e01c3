"""The words of earlier releases: what they wrote into the table still reads."""

import re
from collections.abc import Collection, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any

from spotkeeper.domain.decision import (
    Alarm,
    Answer,
    AvailabilityFigures,
    Controller,
    Failure,
    HealthFigures,
    Outcome,
    Request,
    RequestKind,
)
from spotkeeper.domain.failure import FailureClass, LaunchFailure
from spotkeeper.ports import TimedOut, Unavailable

# 0.2 and before; a turn of 0.1 kept what is the risk's beside the rest.
_HEALTH_MEMORY = {"unheard": "unproven"}
_AVAILABILITY_MEMORY = {
    "asks": "pending_increases",
    "first_seen_coming": "launching_since",
    "waves": "warning_bursts",
    "bridging": "deferral",
    "unproven": "unproven_marks",
}
_RISK = ("warning_bursts", "deferral")
_RECORD = {"half": "controller"}
_FIGURES = {"SpotComing": "SpotLaunching", "OnDemandHours": "OnDemandH"}
_WORD = re.compile(r"(?<!^)(?=[A-Z])|(?<=[a-z])(?=\d)")


def memory_in_todays_words(memory: Any, of: Controller) -> Any:
    """Rename the fields of a controller's memory, and gather what the risk remembers."""
    if not isinstance(memory, dict):
        return memory
    today = _HEALTH_MEMORY if of is Controller.HEALTH else _AVAILABILITY_MEMORY
    memory = {today.get(name, name): value for name, value in memory.items()}
    risk = memory.get("risk", {name: memory[name] for name in _RISK if name in memory})
    if isinstance(risk, dict):
        risk = {today.get(name, name): value for name, value in risk.items()}
    return memory | {"risk": risk}


def record_in_todays_words(record: Any) -> Any:
    """Read a decision record of 0.2 or before: its figures had names, and its requests were texts.

    What 0.3 knew of a new version is left out. Raises ValueError for what is none.
    """
    if not isinstance(record, dict):
        return record
    known = record.get("new_version")
    if isinstance(known, dict) and "requests" in known:
        record = record | {"new_version": None}
    if "seen" not in record:
        return record
    record = {_RECORD.get(name, name): value for name, value in record.items()}
    try:
        figures: dict[str, float] = {
            str(_FIGURES.get(name, name)): float(value) for name, value in record["seen"].items()
        }
        if "SpotSpare" in figures:
            # What was spare of the group had a figure of its own.
            figures["SpotDesired"] = figures.get("SpotDesired", 0.0) + figures["SpotSpare"]
        health = record["controller"] == Controller.HEALTH
        looked = figures.keys() - {"TurnsFailed"}
        named = {name.replace("_", "-") for name in record.get("alarms", ())}
        named |= {alarm for name, alarm in _RANG.items() if figures.get(name)}
        at, unknown = record["at"], record.get("unknown_failures", ())
        return record | {
            "availability": _figures(AvailabilityFigures, figures)
            if looked and not health
            else None,
            "health": _figures(HealthFigures, figures) if looked and health else None,
            "outcomes": [_outcome(one, health=health) for one in record.get("outcomes", ())],
            "alarms": sorted(named & {*Alarm}),
            "failures": [_launch(one, at, unknown) for one in record.get("failures", ())],
            "error": _failure(record.get("error", "")),
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no decision record: {type(error).__name__} {error}") from error


# Figures of before that are alarms today.
_RANG = {"NobodyServes": Alarm.NOBODY_SERVES, "StaleSearchLogs": Alarm.STALE_SEARCH_LOGS}


def _figures(of: type[Any], figures: Mapping[str, float]) -> Mapping[str, float]:
    """Name figures as their fields of today, some of which end in their unit."""
    words = {_WORD.sub("_", name).lower(): value for name, value in figures.items()}
    names = [each.name for each in fields(of)]
    return {
        name: words[at] for name in names for at in (name, name.removesuffix("_s")) if at in words
    }


_VERBS = ("drain", "stop draining", "terminate", "end", "claim")
_KINDS = {verb: RequestKind(verb.replace(" ", "_")) for verb in _VERBS} | {
    "suspend AZRebalance": RequestKind.SUSPEND_AZ_REBALANCE,
    "resume Launch": RequestKind.RESUME_LAUNCH,
}
_OF_INSTANCES = re.compile(r"(?P<verb>[a-z ]+) (?P<ids>i-\w+(?:, i-\w+)*)(?:: (?P<why>.*))?")
_OF_GROUP = re.compile(r"(?P<group>\S+): (?:desired (?P<desired>\d+)|(?P<verb>[a-zA-Z ]+))")


def _outcome(line: Mapping[str, Any], *, health: bool) -> Outcome:
    text, failure = line["asked"], _failure(line.get("error", ""))
    request = Request(kind=RequestKind.EARLIER, why=text)
    if text.startswith("look again"):
        request = Request(kind=RequestKind.LOOK_AGAIN)
    elif match := _OF_INSTANCES.fullmatch(text):
        replaced = RequestKind.REPLACE_WORKER if health else RequestKind.REPLACE_EARLY
        kind = replaced if match["verb"] == "replace" else _KINDS.get(match["verb"])
        ids = tuple(match["ids"].split(", "))
        request = Request(kind=kind, instances=ids, why=match["why"] or "") if kind else request
    elif match := _OF_GROUP.fullmatch(text):
        sized = RequestKind.RESIZE_SPOT if health else RequestKind.BACKFILL
        kind = sized if match["desired"] else _KINDS.get(match["verb"])
        desired = int(match["desired"]) if match["desired"] else None
        request = Request(kind=kind, group=match["group"], desired=desired) if kind else request
    answer = Answer.OBSERVED if line.get("would") else Answer.DONE
    if failure:
        lost = failure.kind in (Unavailable.__name__, TimedOut.__name__)
        answer = Answer.LOST if lost else Answer.REFUSED
    return Outcome(request=request, answer=answer, error=failure)


def _failure(text: str) -> Failure | None:
    kind, colon, rest = text.partition(": ")
    known = bool(colon) and kind.isidentifier()
    failure = Failure(kind=kind, text=rest) if known else Failure(kind="", text=text)
    return failure if text else None


def _launch(text: str, at: str, unknown: Collection[str]) -> LaunchFailure:
    kind, _, message = text.partition(": ")
    return LaunchFailure(
        at=datetime.fromisoformat(at),
        failure_class=FailureClass(kind),
        message=message,
        known=message not in unknown,
    )
