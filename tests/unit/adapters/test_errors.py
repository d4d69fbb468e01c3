"""What AWS answers to a call becomes one of the ports' errors, with what was being done."""

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)

from spotkeeper.adapters.errors import aws_errors, by_a_user
from spotkeeper.ports import FleetError, Gone, Refused, Throttled, TimedOut, Unavailable
from tests.builders import evidence

KINDS: dict[str, type[FleetError]] = {"throttle": Throttled, "permission": Refused}
GONE = (
    "InvalidInstanceID", "InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed",
    "InvalidInstanceID.NotLinkable", "ResourceNotFoundException", "NoSuchEntity",
    "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", "InvalidAddress",
)  # fmt: skip
NAMED = dict.fromkeys(GONE, Gone) | {
    row["text"]: KINDS[row["class"]]
    for row in evidence("launch_failures")
    if row["class"] in KINDS and " " not in row["text"]
}


def answered(code: str, message: str = "words") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, "SetDesiredCapacity")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        *((answered(code), kind) for code, kind in sorted(NAMED.items())),
        (answered("ServiceUnavailable"), Unavailable),
        (answered("ValidationError", "New value 9 is above max value 4"), Unavailable),
        (answered("SomethingNew", ""), Unavailable),
        (ClientError({}, "SetDesiredCapacity"), Unavailable),
        (EndpointConnectionError(endpoint_url="https://example.test"), Unavailable),
        (NoCredentialsError(), Unavailable),
        # An API that does not answer is not one that fails.
        (ConnectTimeoutError(endpoint_url="here"), TimedOut),
        (ReadTimeoutError(endpoint_url="here"), TimedOut),
    ],
)
def test_an_error_of_aws_is_one_of_the_ports(error: Exception, kind: type[FleetError]) -> None:
    with (
        pytest.raises(FleetError, match=r"^counting sheep: ") as caught,
        aws_errors("counting sheep"),
    ):
        raise error
    assert type(caught.value) is kind
    assert caught.value.__cause__ is error


def test_other_errors_than_awss_pass_through() -> None:
    with pytest.raises(KeyError), aws_errors("counting sheep"):
        raise KeyError("a bug is a bug")


@pytest.mark.parametrize(
    ("reason", "a_user"),
    [
        ("User suspended at 2018-08-30T14:11:58Z", True),
        ("", True),
        ("Suspended after 24 hours of failed launches", False),
    ],
)
def test_a_suspension_that_names_no_user_is_awss(reason: str, a_user: bool) -> None:
    assert by_a_user(reason) is a_user


ARN = "arn:aws:sts::123456789012:assumed-role/ocr-CheckHealthRole-1A2B/ocr-CheckHealth-3C"
WHAT = "is not authorized to perform: autoscaling:SetDesiredCapacity on resource: arn:aws:x"
BECAUSE = " because no identity-based policy allows the autoscaling:SetDesiredCapacity action"
LACKS = "lacks the statement Allow autoscaling:SetDesiredCapacity on arn:aws:x"


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (f"User: {ARN} {WHAT}{BECAUSE}",
         f"(grant it: the function's role ocr-CheckHealthRole-1A2B {LACKS}: template.yaml has it, "
         "deploy the stack again)"),
        (f"User: {ARN} {WHAT} because no permissions boundary allows the x:Y action",
         "(grant it: ocr-CheckHealthRole-1A2B may not autoscaling:SetDesiredCapacity on arn:aws:x: "
         "no permissions boundary allows it: correct that policy)"),
        (f"User: {ARN} {WHAT} with an explicit deny in a service control policy",
         "an explicit deny in a service control policy refuses it: correct that policy)"),
        (f"User: arn:aws-cn:sts::1:assumed-role/Admin/me@x.org {WHAT}",
         f"(grant it: Admin {LACKS}; the role in the stack's output OperatorRole has it)"),
        ("User: arn:aws:iam::1:user/team/alice is not authorized to perform: ec2:DescribeInstances",
         "(grant it: alice lacks the statement Allow ec2:DescribeInstances on *; the role in"),
        ("You are not authorized to perform this operation.", "(grant it: template.yaml lists"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_role_and_the_statement_that_it_lacks(text: str, advice: str) -> None:
    with pytest.raises(Refused) as caught, aws_errors("sizing"):
        raise answered("AccessDenied", text)
    assert advice in str(caught.value)
