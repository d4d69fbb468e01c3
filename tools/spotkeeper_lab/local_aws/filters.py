"""The filters of EC2's calls, as AWS reads them."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from spotkeeper_lab.cloud.values import CloudError
from spotkeeper_lab.local_aws.wire import Answer, Get


def passes(instance: Answer, name: str, values: Sequence[str]) -> bool:
    """Whether an instance passes a filter of EC2's; `CloudError` for one not simulated."""
    state, tags = instance["State"], instance["Tags"]
    assert isinstance(state, dict)
    assert isinstance(tags, list)
    by_key = {tag["Key"]: tag["Value"] for tag in tags}
    match name.split(":", 1):
        case ["instance-state-name"]:
            return state["Name"] in values
        case ["instance-id"]:
            return instance["InstanceId"] in values
        case ["tag-key"]:
            return not by_key.keys().isdisjoint(values)
        case ["tag", key]:
            return any(fnmatchcase(by_key.get(key, ""), value) for value in values)
        case _:
            raise CloudError("InvalidParameterValue", f"The filter '{name}' is not simulated")


def filters_of(get: Get) -> Sequence[Mapping[str, Any]]:
    """Give the filters of a call."""
    filters: Sequence[Mapping[str, Any]] = get("Filters", [])
    return filters
