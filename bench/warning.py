"""A warning in the local AWS: how long until its instance drains and its replacement is asked for.

Needs a lab with the stack in it (`make local-aws`, `sam deploy`); 20 losses, one after the other.
"""

import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from spotkeeper_lab.endpoint.faults.values import LoseInstances
from spotkeeper_lab.endpoint.story.client import LabClient, at_port

TIMES = 20
PROMISED_S = 5.0
PORT = 4566
LOOK_EVERY_S = 0.05
PATIENCE_S = 120.0


def main() -> None:
    """Print the times; exit with 1 when one was longer than promised."""
    lab = at_port(PORT, Path.cwd())
    if lab is None:
        sys.exit(f"no lab answers at port {PORT}: make local-aws, then deploy")
    taken = [_replaced_s(lab) for _ in range(TIMES)]
    held = sum(one <= PROMISED_S for one in taken)
    table = Table("warnings", "median s", "longest s", f"within {PROMISED_S:g} s")
    table.add_row(str(TIMES), f"{median(taken):.2f}", f"{max(taken):.2f}", f"{held} of {TIMES}")
    Console().print(table)
    sys.exit(held < TIMES)


def _replaced_s(lab: LabClient) -> float:
    """Warn one instance; seconds until it drains and a new one is launching."""
    _until(lab, lambda spot: len(_serving(spot)) >= spot["desired"])
    before = {one["id"] for one in _spot(lab)["instances"]}
    began_s = time.monotonic()
    warned = lab.order(LoseInstances(do="loss", count=1, in_s=120.0))
    _until(lab, lambda spot: _new(spot, before) and warned not in _ids(spot))
    return time.monotonic() - began_s


def _until(lab: LabClient, holds: Any) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not holds(_spot(lab)):
        if time.monotonic() > end_s:
            sys.exit(f"the spot group is not as expected after {PATIENCE_S:g} s")
        time.sleep(LOOK_EVERY_S)


def _spot(lab: LabClient) -> Any:
    return next(one for one in lab.look("state")["groups"] if one["purchase"] == "spot")


def _serving(spot: Any) -> list[Any]:
    return [one for one in spot["instances"] if one["state"] == "InService" and not one["warned"]]


def _ids(spot: Any) -> set[str]:
    return {one["id"] for one in spot["instances"]}


def _new(spot: Any, before: set[str]) -> set[str]:
    return _ids(spot) - before


if __name__ == "__main__":
    main()
