"""The doctor's eyes on Parameter Store: groups that fleet documents of other stacks name."""

import boto3
import pytest

from spotkeeper.adapters.doctor.account import groups_elsewhere

OWN = "/spotkeeper/ours/fleets"


pytestmark = pytest.mark.usefixtures("aws")


def put(name: str, value: str) -> None:
    boto3.client("ssm").put_parameter(Name=name, Value=value, Type="String")


def pair(name: str) -> str:
    """A document, of a release that has a field which this one does not know."""
    return f'{{"spot_group": "{name}-spot", "on_demand_group": "{name}-od", "later": 1}}'


def test_only_what_is_not_ours_counts_on_however_many_pages() -> None:
    put(f"{OWN}/main", pair("ours"))
    put("/spotkeeper/ours-2/fleets/main", pair("second"))
    for n in range(12):
        put(f"/spotkeeper/theirs/fleets/f{n:02}", pair(f"f{n}"))
    found = groups_elsewhere(boto3.client("ssm"), OWN)
    assert len(found) == 26
    assert found["second-od"] == ("/spotkeeper/ours-2/fleets/main",)
    assert found["f11-spot"] == ("/spotkeeper/theirs/fleets/f11",)


def test_before_there_is_a_stack_every_document_is_another_s() -> None:
    put(f"{OWN}/main", pair("ours"))
    assert set(groups_elsewhere(boto3.client("ssm"), None)) == {"ours-spot", "ours-od"}


def test_overrides_go_before_the_document() -> None:
    put("/spotkeeper/theirs/fleets/main", pair("old"))
    put("/spotkeeper/theirs/fleets/main-2", pair("second"))
    put("/spotkeeper/theirs/fleets/main.overrides", '{"spot_group": "new-spot"}')
    assert groups_elsewhere(boto3.client("ssm"), OWN) == {
        "new-spot": ("/spotkeeper/theirs/fleets/main",),
        "old-od": ("/spotkeeper/theirs/fleets/main",),
        "second-spot": ("/spotkeeper/theirs/fleets/main-2",),
        "second-od": ("/spotkeeper/theirs/fleets/main-2",),
    }


@pytest.mark.parametrize("value", ["no JSON", "[]", "{}", '{"spot_group": {"a": 1}}'])
def test_what_is_no_document_names_no_group(value: str) -> None:
    put("/spotkeeper/theirs/fleets/main", value)
    put("/spotkeeper/theirs/search-log-queue-url", pair("url"))
    assert groups_elsewhere(boto3.client("ssm"), OWN) == {}
