"""Take the first scatter out of a backtest's report as an SVG file of its own.

    .venv/bin/python docs/images/scatter.py REPORT.html docs/images/policies.svg

The file has the report's colours and the scatter's rules, light and dark.
"""

import re
import sys
from pathlib import Path

PICTURE = re.compile(r'<svg class="scatter" viewBox="0 0 ([\d.]+) ([\d.]+)"(.*?)</svg>', re.DOTALL)
COLOURS = re.compile(r":root \{.*?\n\}\n(?=\*)", re.DOTALL)
RULES = re.compile(
    r"^(?:svg text|\.scatter|\.limit|\.beyond|\.grid|\.leader)[^\n]*\}$", re.MULTILINE
)
EDGE = 12.0
COMMAND = re.compile(r"Made by <code>(.*?)</code>")


def standalone(report: str) -> str:
    """Give the scatter of a report; raises ValueError when there is none."""
    picture, colours, command = (it.search(report) for it in (PICTURE, COLOURS, COMMAND))
    if not (picture and colours and command):
        raise ValueError("no scatter in it: give the report of `spotkeeper backtest --report`")
    rules = "\n".join(RULES.findall(report))
    width, height, body = picture.groups()
    # As an image of its own it is cut at its edges, and labels reach a little beyond them.
    box = f"{-EDGE:g} 0 {float(width) + EDGE:g} {height}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="640" class="scatter" viewBox="{box}"'
        f"{body}<desc>{command[1]}</desc>\n<style>\n{colours[0]}{rules}\n"
        "svg { background: var(--paper); }\n</style>\n</svg>\n"
    )


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(standalone(source.read_text(encoding="utf-8")), encoding="utf-8")
