"""The least that a fleet document says, and what is read of it."""

import json
from typing import Any

import pytest

from spotkeeper.border.fleet_document import FleetDocumentError, parse_fleet
from spotkeeper.domain.fleet import Fleet

LEAST: dict[str, Any] = {
    "version": 1,
    "spot_group": "ocr-spot",
    "on_demand_group": "ocr-on-demand",
    "bounds": {"spot_max": 20, "on_demand_max": 10},
}


def parsed(**changes: object) -> Fleet:
    return parse_fleet("ocr", json.dumps(LEAST | changes))


def refused(text: str) -> str:
    with pytest.raises(FleetDocumentError) as caught:
        parse_fleet("ocr", text)
    assert str(caught.value).startswith("fleet document ocr: ")
    return str(caught.value)
