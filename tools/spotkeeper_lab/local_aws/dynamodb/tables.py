"""The tables of an account, by their names."""

from collections.abc import Mapping
from typing import Any

from spotkeeper_lab.cloud.values import CloudError
from spotkeeper_lab.local_aws.dynamodb.table import Table
from spotkeeper_lab.local_aws.wire import Answer, Respond

MOST_ITEMS_A_BATCH = 25


class Tables(dict[str, Table]):
    """Tables that can be made, each with the keys of the product's, and asked."""

    def answers(self) -> dict[str, Respond]:
        """The operations that they answer, by their names."""
        named = {name: self._of_one(name) for name in Table().operations()}
        return {**named, "create_table": self._create, "batch_write_item": self._write}

    def create(self, name: str) -> Table:
        """Make a table in the place of the one before."""
        self[name] = Table()
        return self[name]

    def _create(self, params: Mapping[str, Any]) -> Answer:
        self.create(params["TableName"])
        return {}

    def _of_one(self, operation: str) -> Respond:
        def respond(params: Mapping[str, Any]) -> Answer:
            asked = dict(params)
            return self.named(asked.pop("TableName")).operations()[operation](**asked)

        return respond

    def _write(self, params: Mapping[str, Any]) -> Answer:
        for name, requests in params["RequestItems"].items():
            if len(requests) > MOST_ITEMS_A_BATCH:
                raise CloudError("ValidationException", "Too many items requested")
            for request in requests:
                self.named(name).put_item(**request["PutRequest"])
        return {"UnprocessedItems": {}}

    def named(self, name: str) -> Table:
        """The table of a name, as AWS refuses one that is not there."""
        if name not in self:
            raise CloudError("ResourceNotFoundException", "Requested resource not found")
        return self[name]
