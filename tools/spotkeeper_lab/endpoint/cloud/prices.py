"""What instances cost in a lab: one list price, whatever the type."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spotkeeper_lab.endpoint.faults.calls import App, Receive, Send, respond

LIST_USD = 1.006
TARGET = b"AWSPriceListService.GetProducts"


@dataclass(frozen=True, slots=True)
class PriceList:
    """Answers the price list's GetProducts and leaves every other request to the endpoint."""

    app: App

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and (b"x-amz-target", TARGET) in scope["headers"]:
            await respond(send, 200, "application/x-amz-json-1.1", price_list())
        else:
            await self.app(scope, receive, send)


def price_list() -> bytes:
    """The answer to GetProducts, for whatever type."""
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": str(LIST_USD)}}
    product = {"terms": {"OnDemand": {"term": {"priceDimensions": {"hour": dimension}}}}}
    return json.dumps({"FormatVersion": "aws_v1", "PriceList": [json.dumps(product)]}).encode()
