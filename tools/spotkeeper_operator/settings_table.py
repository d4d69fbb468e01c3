"""The table of the fleet document's settings, written into docs/settings.md by `make docs`.

Every cell comes from the definitions in `spotkeeper.domain.settings` and `spotkeeper.domain.fleet`.
"""

import json
import re
import sys
from dataclasses import fields
from pathlib import Path

from spotkeeper.border.sections import default_of, settings_of
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.settings.availability import AvailabilityPolicy
from spotkeeper.domain.settings.sizing import Bounds, Objective, SizingPolicy
from spotkeeper.domain.settings.worker_health import WorkerHealthPolicy

SECTIONS = {
    "bounds": Bounds,
    "objective": Objective,
    "sizing": SizingPolicy,
    "availability": AvailabilityPolicy,
    "worker_health": WorkerHealthPolicy,
}
_HEAD = ("| field | meaning | unit | default | change it when |", "|---|---|---|---|---|")
_VERSION = "| `version` | of this format | | required: 1 | never |"
_MARKED = re.compile(
    r"(<!-- settings: made by `make docs` -->\n).*?(<!-- end of settings -->)", re.DOTALL
)


def settings_table() -> str:
    """Return a row for each setting of the document, in its order."""
    lines = [*_HEAD, _VERSION]
    for section in ("", *(field.name for field in fields(Fleet) if field.name in SECTIONS)):
        prefix = f"{section}." if section else ""
        for field, setting in settings_of(SECTIONS.get(section, Fleet)):
            default = default_of(field)
            cells = (
                f"`{prefix}{field.name}`",
                setting.meaning,
                setting.span,
                "required" if default is ... else json.dumps(default),
                setting.change_when,
            )
            lines.append("|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|")
    return "\n".join(lines) + "\n"


def written(document: str) -> str:
    """Return a document with the table between its marks."""
    return _MARKED.sub(lambda match: f"{match[1]}\n{settings_table()}\n{match[2]}", document)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
