"""The demo: a virtual day of spot capacity and requests through the deployed functions.

What is real: the functions, their handlers, settings and adapters. What is simulated: AWS, the spot
market, the workers, and the clock.
"""

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from spotkeeper_charts.page import Page, page_html
from spotkeeper_lab.demo.figures import table
from spotkeeper_lab.demo.live import progress
from spotkeeper_lab.demo.picture import page
from spotkeeper_lab.end_to_end.day import running
from spotkeeper_lab.end_to_end.results import Results, results
from spotkeeper_lab.end_to_end.scene import DemoSettings, scene
from spotkeeper_lab.files import write_whole

# Narrower terminals show the figures without what they mean.
WIDE = 120


class DemoError(Exception):
    """The demo cannot write where it was asked to."""


def run_demo(settings: DemoSettings, out: Path, console: Console) -> dict[str, Any]:
    """Run a demo, write its files to `out`, show its figures; answers those of summary.json.

    Raises MarketError when the market is too short, DemoError when `out` cannot be written.
    """
    stage = scene(settings)
    _make(out)
    with running(stage) as day:
        with progress(console, day) as show:
            day.run(show)
        found = results(day)
        drawn = page(day, found)
    _write(out, found, drawn)
    console.print(table(found.values, wide=console.width >= WIDE))
    for name in ("report.html", "summary.json", "decisions.jsonl"):
        console.print(f"{out / name}", highlight=False, soft_wrap=True)
    return found.values


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(f"{out}: cannot be made: {error.strerror}; give another --out") from error


def _write(out: Path, found: Results, drawn: Page) -> None:
    lines = (f"{decision.text}\n" for decision in found.decisions)
    _put(out / "decisions.jsonl", "".join(lines))
    _put(out / "report.html", page_html(drawn))
    _put(out / "summary.json", json.dumps(found.values, indent=1) + "\n")


def _put(path: Path, text: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise DemoError(f"{path}: cannot be written: {error.strerror}; name another") from error
