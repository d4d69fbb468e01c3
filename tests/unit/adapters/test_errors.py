"""What AWS answers to a call becomes one of the ports' errors, with what was being done."""

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)

from spotkeeper.adapters.errors import CODES, GONE_CODES, aws_errors, by_a_user
from spotkeeper.domain.failure import FailureClass
from spotkeeper.ports import FleetError, Gone, Refused, Throttled, TimedOut, Unavailable

NAMED: dict[type[FleetError], frozenset[str]] = {
    Throttled: CODES[FailureClass.THROTTLE],
    Refused: CODES[FailureClass.PERMISSION],
    Gone: GONE_CODES,
}


def answered(code: str, message: str = "words") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, "SetDesiredCapacity")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        *((answered(code), kind) for kind, codes in NAMED.items() for code in sorted(codes)),
        (answered("OptInRequired"), Refused),
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
