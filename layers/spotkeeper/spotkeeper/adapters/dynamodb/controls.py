"""What operators set for a fleet: one item each; a change must know its last version.

pk fleet#NAME  sk control
"""

from dataclasses import replace

from pydantic import TypeAdapter

from spotkeeper.adapters.table import Items, only_if, parsed
from spotkeeper.domain.permission import Control
from spotkeeper.ports import Conflict

_CONTROL = TypeAdapter(Control)


class ControlTable(Items):
    """Reads and changes controls."""

    def of(self, fleet: str) -> Control:
        """Read a fleet's control; an empty one if operators set nothing.

        Raises `Unreadable` for an item that no release of this format wrote: whether turns may act
        is not guessed.
        """
        doing = f"reading the control of {fleet}"
        item = self._get(doing, f"fleet#{fleet}", "control", consistent=True)
        fix = "delete it, and set it again"
        return parsed(_CONTROL, item, "control", fix) if item else Control()

    def change(self, fleet: str, before: Control, wanted: Control) -> Control:
        """Put a control in the place of the one that was seen; raises `Conflict` if it is not."""
        changed = replace(wanted, version=before.version + 1)
        try:
            self._put(
                f"changing the control of {fleet}",
                f"fleet#{fleet}",
                "control",
                only_if("attribute_not_exists(version) OR version = :seen", seen=before.version),
                control=_CONTROL.dump_json(changed).decode(),
                version=changed.version,
            )
        except Conflict as error:
            message = f"another operator has just changed {fleet}: look at status, then try again"
            raise Conflict(message) from error
        return changed
