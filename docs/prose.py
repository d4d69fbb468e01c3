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
WRAPPED = {"README.md", "deploy.md", "backtest.md"}
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


def main(arguments: list[str]) -> int:
    """Say which pages are not wrapped, or wrap them."""
    fix, wrong = "--fix" in arguments, 0
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = page.read_text(encoding="utf-8")
        if fix and wrapped(text) != text:
            page.write_text(wrapped(text), encoding="utf-8")
        elif page.name in WRAPPED and wrapped(text) != text:
            wrong += 1
            sys.stdout.write(
                f"{page.relative_to(ROOT)}: not wrapped; .venv/bin/python {__file__}\n"
            )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
