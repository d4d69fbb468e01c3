"""What AWS answers to a call becomes one of four errors, each with what was being done."""

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)

from spotkeeper.adapters.errors import (
    CREDENTIAL_CODES,
    GONE_CODES,
    PERMISSION_CODES,
    THROTTLE_CODES,
    aws_errors,
    by_a_user,
)
from spotkeeper.ports import FleetError, Gone, Refused, Throttled, TimedOut, Unavailable


def answered(code: str, message: str = "") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, "SetDesiredCapacity")


def raised(error: Exception) -> FleetError:
    with pytest.raises(FleetError) as caught, aws_errors("counting sheep"):
        raise error
    assert caught.value.__cause__ is error
    assert str(caught.value).startswith("counting sheep: ")
    return caught.value


@pytest.mark.parametrize(
    ("codes", "kind"),
    [
        (THROTTLE_CODES, Throttled),
        (PERMISSION_CODES | CREDENTIAL_CODES, Refused),
        (GONE_CODES, Gone),
    ],
    ids=["throttle", "permission", "gone"],
)
def test_every_code_of_a_set_becomes_its_error(
    codes: frozenset[str], kind: type[FleetError]
) -> None:
    assert {type(raised(answered(code, "words"))) for code in codes} == {kind}


@pytest.mark.parametrize(
    "error",
    [
        answered("InternalFailure", "An internal error occurred"),
        answered("ServiceUnavailable", "Try again"),
        answered("ValidationError", "New SetDesiredCapacity value 9 is above max value 4"),
        answered("SomethingNew", ""),
        ClientError({}, "SetDesiredCapacity"),
        EndpointConnectionError(endpoint_url="https://example.test"),
        NoCredentialsError(),
    ],
    ids=repr,
)
def test_everything_else_is_unavailable_and_tried_again(error: Exception) -> None:
    assert type(raised(error)) is Unavailable


@pytest.mark.parametrize(
    "hung",
    [ConnectTimeoutError(endpoint_url="here"), ReadTimeoutError(endpoint_url="here")],
    ids=repr,
)
def test_an_api_that_does_not_answer_is_told_from_one_that_fails(hung: Exception) -> None:
    error = raised(hung)
    assert type(error) is TimedOut
    assert isinstance(error, Unavailable)


def test_what_is_no_error_of_aws_passes_through() -> None:
    with pytest.raises(KeyError), aws_errors("counting sheep"):
        raise KeyError("a bug is a bug")


@pytest.mark.parametrize(
    ("reason", "a_user"),
    [
        ("User suspended at 2018-08-30T14:11:58Z", True),
        ("User suspended at 2012-12-02T23:00:03", True),
        ("", True),
        ("Administrative suspension", False),
        ("Suspended after 24 hours of failed launches", False),
    ],
)
def test_a_suspension_that_names_no_user_is_awss(reason: str, a_user: bool) -> None:
    assert by_a_user(reason) is a_user
