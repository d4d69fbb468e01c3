import asyncio
import json
from collections.abc import Mapping
from typing import Any, cast

import pytest

from spotkeeper.adapters.ec2.prices import on_demand_prices
from spotkeeper_lab.endpoint.cloud.prices import LIST_USD, TARGET, PriceList, price_list
from spotkeeper_lab.endpoint.faults.calls import Message, Receive, Send


async def behind(_scope: Mapping[str, Any], _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b"the endpoint"})


@pytest.mark.parametrize(("target", "status"), [(TARGET, 200), (b"AmazonSSM.GetParameter", 299)])
def test_only_the_price_list_is_answered(target: bytes, status: int) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "headers": [(b"x-amz-target", target)]}
    asyncio.run(PriceList(behind)(scope, receive, send))
    assert sent[0]["status"] == status


class Pricing:
    def get_products(self, **_: object) -> object:
        return json.loads(price_list())


def test_the_product_reads_a_price_out_of_it() -> None:
    found = on_demand_prices(cast("Any", Pricing()), ["g5.xlarge"], "us-east-1")
    assert found == {"g5.xlarge": LIST_USD}
