"""Every failure text and code that AWS is known to answer, whole, with its class."""

import re
from itertools import combinations
from pathlib import Path

import pytest
from botocore.session import get_session

from spotkeeper.adapters import errors
from spotkeeper.adapters.errors import (
    BOOTSTRAP_CODES,
    CAPACITY_CODES,
    CONFIGURATION_CODES,
    CREDENTIAL_CODES,
    FAULT_CODES,
    GONE_CODES,
    PERMISSION_CODES,
    PRICE_CODES,
    QUOTA_CODES,
    SPOT_CAPACITY_STATUSES,
    SPOT_CONFIGURATION_STATUSES,
    SPOT_MARKED_STATUSES,
    SPOT_PRICE_STATUSES,
    SPOT_QUOTA_STATUSES,
    SPOT_TAKEN_STATUSES,
    SPOT_TROUBLED_STATUSES,
    THROTTLE_CODES,
    classify,
    classify_spot_status,
)
from spotkeeper.domain.failure import FailureClass

CAPACITY, PRICE, QUOTA = FailureClass.CAPACITY, FailureClass.PRICE, FailureClass.QUOTA
CONFIGURATION = FailureClass.CONFIGURATION
TEXTS = (Path(__file__).parent / "failure_texts.txt").read_text(encoding="utf-8").splitlines()[1:]
CODES: dict[FailureClass, frozenset[str]] = {
    CAPACITY: CAPACITY_CODES | FAULT_CODES,
    PRICE: PRICE_CODES,
    QUOTA: QUOTA_CODES,
    CONFIGURATION: CONFIGURATION_CODES,
    FailureClass.PERMISSION: PERMISSION_CODES | CREDENTIAL_CODES,
    FailureClass.BOOTSTRAP: BOOTSTRAP_CODES,
    FailureClass.THROTTLE: THROTTLE_CODES,
}

# The EC2 user guide's list of spot request status codes, whole: class, and whether an instance
# that has it is about to go.
STATUSES: dict[str, tuple[FailureClass | None, bool]] = {
    "pending-evaluation": (None, False),
    "bad-parameters": (CONFIGURATION, False),
    "capacity-not-available": (CAPACITY, False),
    "capacity-oversubscribed": (CAPACITY, False),
    "price-too-low": (PRICE, False),
    "not-scheduled-yet": (None, False),
    "launch-group-constraint": (CAPACITY, False),
    "az-group-constraint": (CAPACITY, False),
    "placement-group-constraint": (CAPACITY, False),
    "constraint-not-fulfillable": (CAPACITY, False),
    "schedule-expired": (CONFIGURATION, False),
    "canceled-before-fulfillment": (None, False),
    "system-error": (CAPACITY, False),
    "pending-fulfillment": (None, False),
    "fulfilled": (None, False),
    "limit-exceeded": (QUOTA, False),
    "marked-for-stop": (None, True),
    "marked-for-termination": (None, True),
    "instance-stopped-by-user": (None, False),
    "instance-stopped-by-price": (PRICE, True),
    "instance-stopped-no-capacity": (CAPACITY, True),
    "request-canceled-and-instance-running": (None, False),
    "instance-terminated-by-price": (PRICE, True),
    "instance-terminated-by-schedule": (None, False),
    "instance-terminated-by-service": (CAPACITY, True),
    "instance-terminated-by-user": (None, False),
    "spot-instance-terminated-by-user": (None, False),
    "instance-terminated-no-capacity": (CAPACITY, True),
    "instance-terminated-launch-group-constraint": (CAPACITY, True),
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_message_of_aws_has_its_class(text: str) -> None:
    failure_class, _, message = text.partition(": ")
    assert classify(message) == (FailureClass(failure_class), True)


@pytest.mark.parametrize(
    "told",
    [
        "Could not launch Spot Instances. {code} - some new words. Launching EC2 instance failed.",
        "{code}: some new words",
    ],
)
def test_a_code_decides_whatever_text_follows_it(told: str) -> None:
    expected = {code: (of, True) for of, codes in CODES.items() for code in codes}
    assert {code: classify(told.format(code=code)) for code in expected} == expected


@pytest.mark.parametrize(
    "message",
    [
        "",
        "Launching EC2 instance failed.",
        "The moon is in the wrong house. Launching EC2 instance failed.",
        "Could not launch Spot Instances. MoonPhaseException - Wait. Launching failed.",
        "insufficientinstancecapacity",
    ],
)
def test_an_unknown_message_counts_as_capacity_and_says_so(message: str) -> None:
    assert classify(message) == (CAPACITY, False)


def test_no_code_has_two_classes() -> None:
    named = [value for name, value in vars(errors).items() if name.endswith("_CODES")]
    assert frozenset().union(*named) == frozenset().union(*CODES.values()) | GONE_CODES
    assert len(frozenset().union(*named)) == sum(map(len, named))


def test_a_spot_request_status_has_its_meaning() -> None:
    going = SPOT_MARKED_STATUSES | SPOT_TAKEN_STATUSES
    assert {it: (classify_spot_status(it), it in going) for it in STATUSES} == STATUSES
    assert {it for it in STATUSES if it.startswith("marked-")} == SPOT_MARKED_STATUSES
    trouble = {it for it, (of, at_risk) in STATUSES.items() if of is not None or at_risk}
    assert trouble == SPOT_TROUBLED_STATUSES & STATUSES.keys()


def test_no_status_is_invented_and_none_has_two_classes() -> None:
    assert set(STATUSES) >= SPOT_TROUBLED_STATUSES
    classes = (
        SPOT_CAPACITY_STATUSES,
        SPOT_PRICE_STATUSES,
        SPOT_QUOTA_STATUSES,
        SPOT_CONFIGURATION_STATUSES,
    )
    assert not any(one & other for one, other in combinations(classes, 2))


def test_an_unknown_status_means_nothing() -> None:
    assert classify_spot_status("marked-for-promotion") is None


def test_every_error_that_auto_scaling_documents_is_understood() -> None:
    model = get_session().get_service_model("autoscaling")
    documented = {
        shape.metadata.get("error", {}).get("code", shape.name) for shape in model.error_shapes
    }
    known = set().union(
        *(value for name, value in vars(errors).items() if re.fullmatch(r"[A-Z]+_CODES", name))
    )
    # Never answered to a call that this product makes.
    foreign = {
        "ActiveInstanceRefreshNotFound",
        "AlreadyExists",
        "IdempotentCallInProgress",
        "IdempotentParameterMismatch",
        "InstanceRefreshInProgress",
        "InvalidNextToken",
        "IrreversibleInstanceRefresh",
        "LimitExceeded",
        "ResourceInUse",
    }
    assert documented - foreign <= known
