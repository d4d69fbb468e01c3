"""The release of ministack that the seams are written for, and its modules."""

import importlib
from importlib.metadata import version
from typing import Any

MINISTACK = "1.5.33"


class SeamError(RuntimeError):
    """ministack is not as the seams expect it."""


def module(name: str) -> Any:
    """A module of ministack, which is not installed where the lab is checked."""
    return importlib.import_module(f"ministack.{name}")


def check_release() -> None:
    """Refuse any other release than the one that this was written for; raises SeamError."""
    if (found := version("ministack")) != MINISTACK:
        raise SeamError(f"ministack {found} is installed and {MINISTACK} is known: make pins")
