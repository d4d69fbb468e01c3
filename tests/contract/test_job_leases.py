"""What the lease of a job promises: that of a fleet, in the job's item."""

from typing import TYPE_CHECKING

import pytest

from spotkeeper.adapters.dynamodb.jobs import JobItems
from spotkeeper.border.job_document import parse_job
from tests.builders import NOON, TABLE, at

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


@pytest.fixture
def jobs(dynamodb: "DynamoDBClient") -> JobItems:
    table = JobItems(dynamodb, TABLE, tuple)
    machine = {"types": ["g5.xlarge"]}
    document = {"version": 1, "name": "resnet", "command": ["true"], "machine": machine}
    assert table.create(parse_job(document), NOON)
    return table


def test_one_turn_at_a_time_has_the_lease_for_45_s(jobs: JobItems) -> None:
    first = jobs.acquire("resnet", NOON)
    assert first
    assert [jobs.acquire("resnet", at(after_s)) for after_s in (1, 45)] == [None, None]
    second = jobs.acquire("resnet", at(46))
    assert second
    jobs.release(first)
    assert jobs.acquire("resnet", at(47)) is None
    jobs.release(second)
    assert jobs.acquire("resnet", at(48 + 46)), "it was released"
    assert jobs.acquire("resnet", at(47)), "the lease of a clock that was ahead is void"
    assert jobs.acquire("other", NOON) is None
