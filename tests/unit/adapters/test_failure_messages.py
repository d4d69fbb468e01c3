"""What AWS is known to write of failed launches and of ends, whole, with what it means for us."""

import pytest
from botocore.session import get_session

from spotkeeper.adapters.errors import (
    SPOT_CLASSES,
    SPOT_FINAL_STATUSES,
    SPOT_MARKED_STATUSES,
    SPOT_TROUBLED_STATUSES,
    End,
    classify,
    end_of,
)
from spotkeeper.domain.failure import FailureClass, LaunchFailure
from tests.builders import NOON, evidence

ROWS = evidence("launch_failures")
# Where AWS writes a code into a message.
AROUND = (
    "{}",
    "Could not launch Spot Instances. {} - new words. Launching EC2 instance failed.",
    "Launching failed (Service: AmazonEC2; Status Code: 400; Error Code: {})",
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["text"][:60])
def test_a_message_of_aws_has_its_class(row: dict[str, str]) -> None:
    around = AROUND[:1] if " " in row["text"] else AROUND
    found = {classify(words.format(row["text"])) for words in around}
    assert found == {(FailureClass(row["class"]), True)}
    assert row["source"]
    failure = LaunchFailure(at=NOON, failure_class=FailureClass.CAPACITY, message=row["text"])
    for noise in ("Could not launch", "Termination Reason", "instance failed"):
        assert noise not in failure.text
    assert not failure.text.endswith(".")


def test_every_class_has_a_text() -> None:
    """A class that nothing is classified as would never be acted on."""
    quoted = {row["class"] for row in ROWS}
    assert {*FailureClass} - quoted == set(), "quote a message of each in launch_failures.tsv"


@pytest.mark.parametrize(
    ("message", "named"),
    [
        # What is unknown counts as capacity, and says so.
        ("", ""),
        ("The moon is in the wrong house. Launching EC2 instance failed.", ""),
        ("Could not launch Spot Instances. MoonPhaseException - Wait. Launching failed.", ""),
        ("insufficientinstancecapacity", ""),
        # A usual code counts wherever it stands, and a name is no code.
        ("We got InsufficientInstanceCapacity, and try again", "capacity"),
        ("We got VcpuLimitExceeded, and try again", "quota"),
        ("The key pair InsufficientCapacityKey, for LimitExceeded, does not exist.",
         "configuration"),
    ],
)  # fmt: skip
def test_a_message_that_nobody_quoted_has_a_class(message: str, named: str) -> None:
    assert classify(message) == (FailureClass(named or "capacity"), bool(named))


@pytest.mark.parametrize("row", evidence("ends"), ids=lambda row: row["cause"][-50:])
def test_the_cause_of_an_activity_tells_what_ended_an_instance(row: dict[str, str]) -> None:
    assert end_of(row["cause"]) is End(row["end"])
    assert row["source"]


def test_a_spot_request_status_has_its_meaning() -> None:
    meant = {
        (it["status"], it["class"], it["instance"]) for it in evidence("spot_request_statuses")
    }
    names = {status for status, *_ in meant}
    going = SPOT_MARKED_STATUSES | SPOT_FINAL_STATUSES
    assert meant == {(it, SPOT_CLASSES.get(it, ""), "goes" if it in going else "") for it in names}
    assert {it for it in names if it.startswith("marked-")} == SPOT_MARKED_STATUSES
    assert {status for status, *means in meant if any(means)} == SPOT_TROUBLED_STATUSES


def test_every_error_that_auto_scaling_documents_is_understood() -> None:
    model = get_session().get_service_model("autoscaling")
    documented = {
        shape.metadata.get("error", {}).get("code", shape.name) for shape in model.error_shapes
    }
    # Never answered to a call that this product makes.
    foreign = {"AlreadyExists", "InstanceRefreshInProgress", "IrreversibleInstanceRefresh"}
    assert {code for code in documented if not classify(code)[1]} == foreign
