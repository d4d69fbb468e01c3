"""Messages of a batch that are no reports cost the others nothing."""

import json
from datetime import UTC, datetime

import pytest

from spotkeeper.border.job_report import NOTICE, read_job_messages

NOW = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)
OF_EC2 = {"source": "aws.ec2", "account": "123456789012"}
REPORT = {
    "version": 1, "job": "resnet", "attempt": 1, "instance_id": "i-0123456789abcdef0",
    "generation": 0, "seq": 1, "event": "running", "at": "2026-11-20T12:00:00Z",
}  # fmt: skip
WARNING = {"detail-type": "EC2 Spot Instance Interruption Warning", "detail": {"instance-id": "i"}}


@pytest.mark.parametrize(
    "poison",
    [
        "[" * 100_000,
        f'{{"seq": {"9" * 5_000}}}',
        json.dumps({**WARNING, "time": "9999-12-31T23:59:59Z"}),
        json.dumps({**WARNING, "time": "0001-01-01T00:00:00+14:00"}),
    ],
    ids=["deep", "huge number", "last day", "first day"],
)
def test_one_message_that_cannot_be_read_holds_no_report_up(poison: str) -> None:
    event = {"Records": [{"body": poison}, {"body": json.dumps(REPORT)}]}
    reports, warned, _ = read_job_messages(event, NOW, "123456789012")
    assert ([report.job for report in reports], warned) == (["resnet"], {})


def test_no_time_is_later_than_now() -> None:
    """A report of the year 9999 would stop the rule of silence, a warning buy a second machine."""
    report = {**REPORT, "at": "9999-12-31T23:59:59Z"}
    warning = {**WARNING, "time": "2099-01-01T00:00:00Z", **OF_EC2}
    event = {"Records": [{"body": json.dumps(one)} for one in (report, warning)]}
    reports, warned, _ = read_job_messages(event, NOW, OF_EC2["account"])
    assert ([one.at for one in reports], warned) == ([NOW], {"i": NOW + NOTICE})
