"""The description of a setting, besides its type and default.

A setting is a field of a dataclass, with one of these in its metadata. From it the border makes
the field of the fleet document, and `make docs` the row of docs/settings.md.
"""

from dataclasses import MISSING, dataclass, field
from functools import partial
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: what it means, in which unit, between which bounds, and when to change it.

    A text matches `pattern`, as `example` does, and has from `least` to `most` characters.
    """

    meaning: str
    change_when: str = ""
    unit: str = ""
    least: float | None = None
    above: float | None = None
    most: float | None = None
    pattern: str | None = None
    example: str = ""

    @property
    def span(self) -> str:
        """The unit and the bounds, as people read them."""
        if self.pattern or (self.least is None and self.above is None):
            return self.unit
        low = f"above {self.above:g}" if self.above is not None else f"{self.least:g}"
        high = "" if self.most is None else f" to {self.most:g}"
        bounds = f"{low}{high}" if high else f"{low} and more"
        return ", ".join(part for part in (self.unit, bounds) if part)


def setting(meaning: str, change_when: str = "", *, default: Any = MISSING, **more: Any) -> Any:
    """Make a dataclass's field of a setting; without a default, every document has to set it."""
    return field(default=default, metadata={"setting": Setting(meaning, change_when, **more)})


seconds = partial(setting, unit="s", least=0, most=86_400)
share = partial(setting, above=0, most=1)
instances = partial(setting, unit="instances", least=0, most=10_000)

# AWS describes the groups of all fleets in one call, and refuses that for any other character.
_OF_A_GROUP = "[\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
group_name = partial(setting, unit="name", pattern=f"^{_OF_A_GROUP}{{1,255}}$")
