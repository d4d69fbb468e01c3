"""A timeline of decisions as text of 80 columns, and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from spotkeeper_operator.decisions.timeline import Entry, answered, seen_words
from spotkeeper_operator.text import labelled, paragraphs


def explain_text(entries: Sequence[Entry], unreadable: int = 0) -> str:
    """Say what was decided and why, oldest first; times are UTC."""
    blocks = [_block(entry) for entry in entries] or [["no decision in this time"]]
    if unreadable:
        blocks.append([f"{unreadable} records of another release are left out"])
    return paragraphs(blocks)


def explain_json(entries: Sequence[Entry], unreadable: int = 0) -> str:
    """The same for programs."""
    whole = {"entries": [asdict(entry) for entry in entries], "unreadable": unreadable}
    return json.dumps(whole, indent=2, default=lambda value: value.isoformat()) + "\n"


def _block(entry: Entry) -> list[str]:
    lines = labelled(_when(entry), "", indent=0)
    lines += labelled(entry.fleet, f"{entry.controller}: {entry.action} [{entry.rule}]")
    lines += labelled("seen", seen_words(entry) or "nothing")
    lines += labelled("why", entry.reason)
    for failure in entry.failures:
        lines += labelled("failure", failure)
    for line in answered(entry.outcomes):
        lines += labelled("asked", line)
    return lines


def _when(entry: Entry) -> str:
    first = f"{entry.first:%Y-%m-%d %H:%M:%S}"
    if entry.turns == 1:
        return first
    day = "" if entry.first.date() == entry.last.date() else f"{entry.last:%Y-%m-%d} "
    return f"{first} to {day}{entry.last:%H:%M:%S}, {entry.turns} turns"
