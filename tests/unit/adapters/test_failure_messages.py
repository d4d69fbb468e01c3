"""Every failure text and code that AWS is known to answer, whole, with its class."""

import csv
from pathlib import Path

import pytest
from botocore.session import get_session

from spotkeeper.adapters.errors import (
    CODES,
    GONE_CODES,
    SPOT_FINAL_STATUSES,
    SPOT_MARKED_STATUSES,
    SPOT_TROUBLED_STATUSES,
    classify,
    classify_spot_status,
)
from spotkeeper.domain.failure import FailureClass
from spotkeeper_lab.aws import answers
from spotkeeper_lab.aws.answers import request_states
from spotkeeper_lab.scenario import TAKING

CAPACITY, PRICE = FailureClass.CAPACITY, FailureClass.PRICE
EVIDENCE = Path(__file__).parents[2] / "evidence"
with (EVIDENCE / "launch_failures.tsv").open(encoding="utf-8") as _lines:
    ROWS = list(csv.DictReader(_lines, dialect="excel-tab", quoting=csv.QUOTE_NONE))
# Where AWS writes a code into a message.
AROUND = (
    "{}",
    "Could not launch Spot Instances. {} - new words. Launching EC2 instance failed.",
    "Launching failed (Service: AmazonEC2; Status Code: 400; Error Code: {})",
)

# AWS's spot request statuses: by class, and whether an instance that has it is about to go.
STATUSES: dict[tuple[FailureClass | None, bool], str] = {
    (None, False): """
        pending-evaluation not-scheduled-yet canceled-before-fulfillment pending-fulfillment
        fulfilled instance-stopped-by-user request-canceled-and-instance-running
        instance-terminated-by-user spot-instance-terminated-by-user""",
    (None, True): """
        marked-for-stop marked-for-stop-by-experiment marked-for-termination
        instance-stopped-by-experiment instance-terminated-by-experiment
        instance-terminated-by-schedule""",
    (CAPACITY, False): """
        capacity-not-available capacity-oversubscribed launch-group-constraint az-group-constraint
        placement-group-constraint constraint-not-fulfillable system-error""",
    (CAPACITY, True): """
        instance-stopped-no-capacity instance-terminated-by-service instance-terminated-no-capacity
        instance-terminated-launch-group-constraint instance-terminated-capacity-oversubscribed""",
    (PRICE, False): "price-too-low",
    (PRICE, True): "instance-stopped-by-price instance-terminated-by-price",
    (FailureClass.QUOTA, False): "limit-exceeded",
    (FailureClass.CONFIGURATION, False): "bad-parameters schedule-expired",
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["text"][:60])
def test_a_message_of_aws_has_its_class(row: dict[str, str]) -> None:
    around = AROUND[:1] if " " in row["text"] else AROUND
    found = {classify(words.format(row["text"])) for words in around}
    assert found == {(FailureClass(row["class"]), True)}
    assert row["source"]


def test_a_name_in_a_message_is_no_code() -> None:
    named = "The key pair InsufficientCapacityKey, for LimitExceeded, does not exist."
    assert classify(named) == (FailureClass.CONFIGURATION, True)


def test_every_class_has_its_codes_and_a_text() -> None:
    """A class that nothing is classified as would never be acted on."""
    quoted = {row["class"] for row in ROWS}
    assert {*FailureClass} - quoted == set(), "quote a message of each in launch_failures.tsv"
    assert {*FailureClass} - CODES.keys() == set(), "name the codes of each in adapters/errors.py"


def test_a_code_decides_whatever_text_follows_it_and_has_one_class() -> None:
    expected = {code: (of, True) for of, codes in CODES.items() for code in codes}
    for told in (
        "Could not launch Spot Instances. {} - new words. Launching EC2 instance failed.",
        "{}: some new words",
    ):
        assert {code: classify(told.format(code)) for code in expected} == expected
    assert len(expected) == sum(map(len, CODES.values()))
    assert not expected.keys() & GONE_CODES


@pytest.mark.parametrize(
    "message",
    [
        "",
        "The moon is in the wrong house. Launching EC2 instance failed.",
        "Could not launch Spot Instances. MoonPhaseException - Wait. Launching failed.",
        "insufficientinstancecapacity",
    ],
)
def test_an_unknown_message_counts_as_capacity_and_says_so(message: str) -> None:
    assert classify(message) == (CAPACITY, False)


def test_a_spot_request_status_has_its_meaning() -> None:
    meant = {it: means for means, text in STATUSES.items() for it in text.split()}
    going = SPOT_MARKED_STATUSES | SPOT_FINAL_STATUSES
    assert {it: (classify_spot_status(it), it in going) for it in meant} == meant
    assert meant.keys() == {status for status, _ in request_states()}
    assert {it for it in meant if it.startswith("marked-")} == SPOT_MARKED_STATUSES
    assert {it for it, means in meant.items() if means != (None, False)} == SPOT_TROUBLED_STATUSES
    assert classify_spot_status("marked-for-promotion") is None


def test_the_lab_and_the_product_hold_aws_s_table_of_statuses() -> None:
    name = "spot_request_statuses.tsv"
    assert (EVIDENCE / name).read_bytes() == Path(answers.__file__).with_name(name).read_bytes()
    assert set(TAKING) <= SPOT_MARKED_STATUSES | SPOT_FINAL_STATUSES
    running = {status for status, state in request_states() if state == "running"}
    assert set(TAKING) <= running


def test_every_error_that_auto_scaling_documents_is_understood() -> None:
    model = get_session().get_service_model("autoscaling")
    documented = {
        shape.metadata.get("error", {}).get("code", shape.name) for shape in model.error_shapes
    }
    # Never answered to a call that this product makes.
    foreign = {
        "ActiveInstanceRefreshNotFound", "AlreadyExists", "IdempotentCallInProgress",
        "IdempotentParameterMismatch", "InstanceRefreshInProgress", "InvalidNextToken",
        "IrreversibleInstanceRefresh", "LimitExceeded", "ResourceInUse",
    }  # fmt: skip
    assert documented - foreign <= GONE_CODES.union(*CODES.values())
