"""Put the pages of the site together: docs/, README and SECURITY; `make site` builds it.

.venv/bin/python docs/site.py assemble build/site-src
.venv/bin/python docs/site.py localise build/site
"""

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Pages of the top folder, by their names in the site.
TOP = {"README.md": "index.md", "SECURITY.md": "security.md"}
SHIM = "https://unpkg.com/iframe-worker/shim"
FETCHED = re.compile(r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=\"?https?://[^>]*>")


def top(text: str) -> str:
    """A page of the top folder beside the others; what is no page of the site is no link."""
    pages = text.replace("](docs/", "](")

    def linked(found: re.Match[str]) -> str:
        target = found[2].partition("#")[0]
        is_page = not target or "://" in target or (ROOT / "docs" / target).exists()
        return found[0] if is_page else found[1]

    return re.sub(r"\[([^]]*)\]\(([^)\s]+)\)", linked, pages)


def decisions(folder: Path) -> str:
    """A page that lists the decisions."""
    pages = sorted(folder.glob("[0-9]*.md"))
    titles = [(page.name, page.read_text(encoding="utf-8").splitlines()[0]) for page in pages]
    return "# Decisions\n\n" + "".join(
        f"* [{text.lstrip('# ')}]({name})\n" for name, text in titles
    )


def assemble(target: Path) -> None:
    """Write the pages to a folder that is made anew."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(ROOT / "docs", target, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for page in target.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        for name, beside in TOP.items():
            text = text.replace(f"](../{name}", f"]({beside}")
        page.write_text(text, encoding="utf-8")
    for name, beside in TOP.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        (target / beside).write_text(top(text), encoding="utf-8")
    folder = target / "decisions"
    (folder / "index.md").write_text(decisions(folder), encoding="utf-8")


def localise(site: Path) -> None:
    """Let every page load the shim for file:// (docs/iframe-worker, 1.0.4) from the site itself.

    Raises ValueError for a page that would fetch anything else from elsewhere.
    """
    for page in site.rglob("*.html"):
        above = "../" * (len(page.relative_to(site).parts) - 1)
        text = page.read_text(encoding="utf-8").replace(SHIM, f"{above}iframe-worker/index.js")
        if found := FETCHED.search(text):
            raise ValueError(f"{page}: is fetched when the page is read: {found[0]}")
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    {"assemble": assemble, "localise": localise}[sys.argv[1]](Path(sys.argv[2]))
