"""Check the prose of pages and of code; `make check` runs it.

Pages are wrapped at 100 columns. Pages have no retired words, and neither has what a person reads
of the code: its texts (reasons, errors, help), docstrings and comments, and the descriptions in
template.yaml.

.venv/bin/python docs/prose.py          say what is wrong
.venv/bin/python docs/prose.py --fix    wrap what is too long
"""

import ast
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
WIDTH = 100
# Decisions keep the words of their time: their pages are superseded, not changed.
DECISIONS = ROOT / "docs" / "decisions"
# Long lines that a generator wrote.
NOT_WRAPPED = {"commands.md"}
RETIRED = (
    (
        r"\b(?<!-)(?:told|hears? of|heard of|asks? nothing|asked nothing)\b",
        "reported, recorded, requested",
    ),
    (r"\bso (?:long|many)\b(?! as)", "this long, this many"),
    (r"\b(?:is|are|was|were) met\b", "found, seen"),
    (r"\bgives? (?:it|them|back)\b", "release, return"),
    (r"\b(?:instance|worker|machine|spot)s? who\b", "that"),
    (r"\b(?<![-*`])(?:said|asked|heard)\b(?! {2})", "reported, set, requested"),
    (r"\b(?<!\*)(?:comes?|coming|came)\b(?! (?:from|with)\b)", "arrive, start, return"),
    (r"\bis for who\b", "use ... if"),
)
# Of texts in code, which are short: instances are no persons, and what arrives does not come.
RETIRED_IN_CODE = (
    *RETIRED,
    (r"\b(?:who|whoever)\b(?! (?:set|may))", "that, which, anyone that"),
    (r"\b(?:comes?|coming|came)\b", "arrive, start, return"),
    (r"\basked (?:for|again|of)\b", "request, try again"),
)
REMARKS = ("layers/spotkeeper", "functions", "tools", "worker", "tests", "bench", "docs")
CODE = ("layers/spotkeeper/spotkeeper", "functions", "tools", "worker/spotkeeper_worker")
# Kept scenarios have its texts as values.
VALUES = {"faults.py"}
# Commands of their own, whose docstrings are help.
HELP = {"stack_commands.py", "lab_commands.py"}
DESCRIBED = re.compile(r"^ *(?:Alarm)?Description: (.*)$")

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
    if page.parent != DECISIONS:
        yield from retired(enumerate(text.splitlines(), 1), RETIRED)


def retired(
    texts: Iterable[tuple[int, str]], words: Iterable[tuple[str, str]] = RETIRED_IN_CODE
) -> Iterator[str]:
    """Say which texts have retired words."""
    for number, text in texts:
        for pattern, better in words:
            if found := re.search(pattern, text):
                yield f"line {number}: {found[0]!r} is retired; better: {better}"


def texts(module: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module that are sentences, f-strings with {} for what is filled in.

    Docstrings are not among them, but for the help of commands.
    """
    tree = ast.parse(module.read_text(encoding="utf-8"))
    left_out: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and module.name not in HELP:
            left_out.add(node.value)
        if isinstance(node, ast.JoinedStr):
            left_out.update(node.values)
            parts = (it.value if isinstance(it, ast.Constant) else "{}" for it in node.values)
            yield node.lineno, "".join(map(str, parts))
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str() as text) if " " in text and node not in left_out:
                yield node.lineno, text


def remarks(module: Path) -> Iterator[tuple[int, str]]:
    """The lines of a module's docstrings and comments."""
    with module.open("rb") as source:
        for token in tokenize.tokenize(source.readline):
            alone = not token.line[: token.start[1]].strip() and token.string.startswith('"""')
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and alone):
                yield from enumerate(token.string.splitlines(), token.start[0])


def descriptions(template: Path) -> Iterator[tuple[int, str]]:
    """What parameters and alarms are described by."""
    for number, line in enumerate(template.read_text(encoding="utf-8").splitlines(), 1):
        if found := DESCRIBED.match(line):
            yield number, found[1]


def modules(folders: Iterable[str]) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def main(arguments: list[str]) -> int:
    """Wrap the pages, or say what is wrong with them."""
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    if "--fix" in arguments:
        for page in pages:
            text = page.read_text(encoding="utf-8")
            if page.name not in NOT_WRAPPED and wrapped(text) != text:
                page.write_text(wrapped(text), encoding="utf-8")
    found = [f"{page.relative_to(ROOT)} {it}" for page in pages for it in problems(page)]
    for module in modules(CODE):
        if module.name not in VALUES:
            found += [f"{module.relative_to(ROOT)} {it}" for it in retired(texts(module))]
    for module in modules(REMARKS):
        remarked = retired(remarks(module), RETIRED) if module != Path(__file__) else ()
        found += [f"{module.relative_to(ROOT)} {it}" for it in remarked]
    found += [f"template.yaml {it}" for it in retired(descriptions(ROOT / "template.yaml"))]
    sys.stdout.writelines(f"{line}\n" for line in found)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
