"""Check the prose of the pages: wrapped at 100 columns, no retired words; `make check` runs it.

.venv/bin/python docs/prose.py          say what is wrong
.venv/bin/python docs/prose.py --fix    wrap what is too long
"""

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
WIDTH = 100
# Pages that are not yet free of retired words; new pages are held to them.
OLD_WORDS = {"lab.md", "operations.md", "sizing.md", "settings.md"}
OLD_WORDS |= {"monitoring.md", "backtest.md", "commands.md"}
# Long lines that a generator wrote, or that somebody else is writing.
NOT_WRAPPED = {"commands.md", "findings.md", "sizing.md", "lab.md", "operations.md"}
RETIRED = (
    (
        r"\b(?<!-)(?:told|hears? of|heard of|asks? nothing|asked nothing)\b",
        "reported, recorded, requested",
    ),
    (r"\bso (?:long|many)\b(?! as)", "this long, this many"),
    (r"\b(?:is|are|was|were) met\b", "found, seen"),
    (r"\bgives? (?:it|them|back)\b", "release, return"),
    (r"\b(?:instance|worker|machine|spot)s? who\b", "that"),
    (r"\bis for who\b", "use ... if"),
)
BULLET = re.compile(r"( *)([*-]|\d+\.) +")
# Tables, code, headings, pictures and rules stand in lines of their own.
LINE_OF_ITS_OWN = re.compile(r"$|    |\||#|!\[|<|---")

# What stays on one line: code, a link's text, a number and its unit.
TOGETHER = re.compile(r"`[^`]{1,60}`|\[[^]]{1,60}\]\(|\d (?:%|s\b|h\b|ms\b)")

type Block = list[str]
"""The lines of one paragraph or list item."""


def blocks(text: str) -> Iterator[Block | str]:
    """Split a page into paragraphs and list items; a line that must not be wrapped is a str."""
    block: Block = []
    fenced, within = False, ""
    for line in text.splitlines():
        within = within if not line or line.startswith(within) else ""
        fence = line.lstrip().startswith("```")
        starts = BULLET.match(line)
        inner = line.removeprefix(within)
        if fenced or fence or (LINE_OF_ITS_OWN.match(inner) and not starts):
            yield from [block] if block else []
            yield line
            block = []
            fenced ^= fence
        elif starts or not block:
            yield from [block] if block else []
            within = " " * starts.end() if starts else within
            block = [line]
        else:
            block.append(line)
    yield from [block] if block else []


def wrapped(text: str) -> str:
    """The page with every paragraph and list item that is too wide wrapped again."""
    lines: list[str] = []
    for block in blocks(text):
        if isinstance(block, str):
            lines.append(block)
        else:
            lines += _wrapped(block) if any(len(line) > WIDTH for line in block) else block
    return "\n".join(lines) + "\n"


def _wrapped(block: Block) -> list[str]:
    bullet = BULLET.match(block[0])
    own = re.match(r" *", block[0])
    later = " " * bullet.end() if bullet else own[0] if own else ""
    first = block[0][: bullet.end()] if bullet else later
    words = " ".join(line.strip() for line in block)[len(first.strip()) :]
    lines = textwrap.wrap(
        TOGETHER.sub(lambda found: found[0].replace(" ", "\0"), words.strip()),
        WIDTH,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\0", " ") for line in lines]


def problems(page: Path) -> Iterator[str]:
    """Say what is wrong with a page."""
    text = page.read_text(encoding="utf-8")
    if page.name not in NOT_WRAPPED and wrapped(text) != text:
        yield "is not wrapped at 100 columns: .venv/bin/python docs/prose.py --fix"
    if page.name in OLD_WORDS:
        return
    for number, line in enumerate(text.splitlines(), 1):
        for words, better in RETIRED:
            if found := re.search(words, line):
                yield f"line {number}: {found[0]!r} is retired; better: {better}"


def main(arguments: list[str]) -> int:
    """Wrap the pages, or say what is wrong with them."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if "--fix" in arguments:
        for page in pages:
            text = page.read_text(encoding="utf-8")
            if page.name not in NOT_WRAPPED and wrapped(text) != text:
                page.write_text(wrapped(text), encoding="utf-8")
    found = [f"{page.relative_to(ROOT)} {it}" for page in pages for it in problems(page)]
    sys.stdout.writelines(f"{line}\n" for line in found)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
