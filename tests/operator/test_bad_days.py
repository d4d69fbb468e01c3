"""Bad input and bad days: each command says what is wrong in a sentence, and what to do."""

import shlex
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock, patch

import boto3
import pytest
from botocore.client import BaseClient
from botocore.exceptions import (
    ClientError,
    NoCredentialsError,
    SSOTokenLoadError,
    TokenRetrievalError,
)

import spotkeeper_cli
from tests.operator.command import answered, refused, run

pytestmark = pytest.mark.usefixtures("deployed")
ON_A_STACK = (
    "status", "explain", "doctor", "cost", "types", "observe report", "watch",
    "sizing --what-if share=0.9",
)  # fmt: skip
ON_A_FLEET = (
    "mode main act --yes",
    "pause main --for 1h --why x",
    "resume main --yes",
    "stop main --yes",
    "drill main",
)
EVERY = (*ON_A_STACK, *ON_A_FLEET)
BEFORE_A_STACK = "doctor --spot-group main-spot --on-demand-group main-on-demand"


def test_an_unknown_stack_or_fleet_and_a_stack_without_a_name() -> None:
    no_fleet = "error: there is no fleet nope; the stack has: main"
    for line in EVERY:
        words = shlex.split(line)
        told = refused(*words, "--stack", "nope")
        assert told == "error: there is no stack nope in us-east-1: give --stack and --region", line
        if line in ON_A_STACK:
            assert refused(*words, "--fleet", "nope") == no_fleet, line
        elif line != "drill main":
            assert refused(*shlex.split(line.replace("main", "nope"))) == no_fleet, line
        told = refused(*words, "--stack", "").replace("│", "")
        assert "give the name of a stack" in " ".join(told.split()), line


def test_an_unknown_rule_is_answered_with_the_known_ones() -> None:
    told = refused("explain", "--since", "1h", "--rule", "backfil")
    assert told == (
        "error: no turn in this time has the rule 'backfil'; others: "
        "at target, backfill, make before break, sizing is off"
    )


NO_GOOD = " (log in again: these credentials are not valid any more)"
CLOCK = " (check this machine's clock, then the secret key)"
ERRORS = (
    ("ExpiredToken", "The security token included in the request is expired", NO_GOOD),
    ("RequestExpired", "Request has expired.", NO_GOOD),
    ("InvalidClientTokenId", "The security token included in the request is invalid", NO_GOOD),
    ("Throttling", "Rate exceeded", ""),
    ("InvalidSignatureException", "Signature expired: 20261120T121320Z is now earlier than "
     "20261120T121500Z (20261120T122000Z - 5 min.)", CLOCK),
)  # fmt: skip


WRONGLY_SET = {
    "AWS_ENDPOINT_URL": ("nonsense", "http://", "http://[", "http://h:99999999", "::"),
    "AWS_PROFILE": ("nope",),
    "AWS_CONFIG_FILE": ("CONFIG",),
    "AWS_SHARED_CREDENTIALS_FILE": ("CONFIG",),
    "AWS_REGION": ("no_such_region!", "a b"),
    "AWS_STS_REGIONAL_ENDPOINTS": ("bad",),
    "AWS_DEFAULTS_MODE": ("bad",),
}
ON_JOBS = ("job status", "job stop x", "job logs x", "job fetch x FOLDER", "job delete x --yes")


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONGLY_SET.items() for value in values]
)
def test_what_is_set_wrong_for_aws_costs_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str
) -> None:
    config = tmp_path / "config"
    config.write_text("[default\nregion")
    monkeypatch.setenv(name, str(config) if value == "CONFIG" else value)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
    for line in (*EVERY, *ON_JOBS, BEFORE_A_STACK):
        code, out, err = run(*shlex.split(line.replace("FOLDER", str(tmp_path / "to"))))
        assert (code, out, err.count("\n")) == (2, "", 1), (line, err)
        assert err.startswith("error: "), line


def test_an_endpoint_of_one_service_that_is_set_wrong_costs_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SSM", "nonsense")
    told = refused("status")
    assert told.startswith("error: AWS cannot be called as it is configured: Invalid endpoint")
    wrong = "us-wset-2 is not the name of a region, such as us-west-2"
    assert wrong in refused("status", "--region", "us-wset-2")


def test_a_defect_of_ours_is_not_taken_for_a_wrong_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BaseClient, "_make_api_call", Mock(return_value={}))
    with pytest.raises(KeyError):
        run("status")


def test_no_credentials_expired_ones_a_wrong_clock_and_calls_that_are_throttled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # mludvig/aws-ssm-tools#53; botocore's credentials.py and tokens.py.
    wrong: dict[str, Exception] = {
        f"{error} (log in to AWS, or name a profile)": error
        for error in (
            NoCredentialsError(),
            SSOTokenLoadError(error_msg="Token for my does not exist"),
            TokenRetrievalError(provider="sso", error_msg="Token has expired and refresh failed"),
        )
    }
    for code, text, todo in ERRORS:
        wrong[f"{code}: {text}{todo}"] = ClientError(
            {"Error": {"Code": code, "Message": text}}, "Call"
        )
    for expected, error in wrong.items():
        monkeypatch.setattr(BaseClient, "_make_api_call", Mock(side_effect=error))
        for line in (*EVERY, BEFORE_A_STACK):
            assert expected in refused(*shlex.split(line)), line


def test_the_region_is_named_although_credentials_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert refused("status", "--region", "") == "error: no region: give --region or set AWS_REGION"
    monkeypatch.setattr(BaseClient, "_make_api_call", Mock(side_effect=NoCredentialsError()))
    why = "in us-east-2: Unable to locate credentials (log in to AWS, or name a profile)"
    assert why in refused("status", "--region=us-east-2")


def test_an_operator_without_permission_is_pointed_to_a_role(denied: Callable[..., None]) -> None:
    denied("DescribeStacks")
    assert "function" not in refused("status")
    assert "the role in the stack's output OperatorRole has it" in refused("status")


DENIED = (
    ("status", "DescribeAlarms", "alarms are not known: cloudwatch:DescribeAlarms"),
    ("status", "DescribeAlarms", "alarms unknown"),
    ("status", "DescribeAutoScalingGroups", "UNKNOWN: the groups could not be read"),
    ("status", "Query", "UNKNOWN: the decision records could not be read"),
    (
        "status",
        "Query",
        "turns unknown: the decision records could not be read; newest search log unknown",
    ),
    ("status --instances", "DescribeAutoScalingGroups", "main: no known instance"),
    ("status --events", "DescribeScalingActivities", "main: 2 known events in 3.0 h"),
    ("status", "GetItem", "mode unknown: it could not be read"),
    ("status --instances", "DescribeInstances", "in service unknown counts: "),
    ("status --instances", "DescribeInstances", "; cost unknown trouble "),
    ("doctor", "ListServiceQuotas", "servicequotas:ListServiceQuotas: Refused"),
    ("doctor", "GetParametersByPath", "allow ssm:GetParametersByPath to the role that runs this"),
    (
        "status",
        "GetParametersByPath",
        "OperatorRole has it); those that were read last stay in force",
    ),
    ("doctor", "GetRole", "allow iam:GetRole to the role that runs this"),
    (BEFORE_A_STACK, "DescribeAutoScalingGroups", "allow autoscaling:DescribeAutoScalingGroups"),
    ("cost", "GetMetricData", "cloudwatch:GetMetricData: AccessDenied"),
    ("cost --actual", "GetCostAndUsage", "trouble ce:GetCostAndUsage: AccessDenied"),
)
NEEDED = (
    ("explain", "Query"), ("mode main act", "PutItem"),
    ("stop main --anyway --yes", "ResumeProcesses"),
)  # fmt: skip


def test_one_denied_action_is_named_and_the_rest_is_shown(denied: Callable[[str], None]) -> None:
    for line, operation, expected in DENIED:
        denied(operation)
        code, out, err = run(*line.split())
        assert err == "", line
        assert not line.startswith("status") or code == 1, operation
        assert expected in " ".join(out.split()), line
    # Without these there is no answer.
    for line, operation in NEEDED:
        denied(operation)
        _, _, err = run(*line.split())
        assert "error: " in err, line
        assert "AccessDenied" in err, line


def test_an_empty_table() -> None:
    table = boto3.client("dynamodb")
    for item in table.scan(TableName="spotkeeper")["Items"]:
        table.delete_item(TableName="spotkeeper", Key={k: item[k] for k in ("pk", "sk")})
    assert "UNKNOWN: no availability turn has succeeded yet" in answered("status")
    assert answered("explain") == "no decision in this time\n"
    cost = answered("cost")
    assert "paid          not known" in cost
    assert "interrupted   not known" in cost
    assert "no instance of this time is in the ledger" in answered("types")
    assert "no turn in observe mode" in answered("observe", "report")


@pytest.fixture
def in_tokyo() -> Iterator[None]:
    with patch.dict("os.environ", TZ="Asia/Tokyo"):
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_tokyo")
def test_a_clock_in_another_zone_changes_nothing() -> None:
    out = answered("explain", "--at", "12:15", "--rule", "backfill")
    assert out.startswith("2026-11-20 12:1")
    assert out == answered("explain", "--at", "21:15+09:00", "--rule", "backfill")


WRONG = (
    ("pause main --for -1h --why x", "no duration"),
    ("pause main --for 30d --why x", "at most 24h"),
    ("cost --since 200d", "at most 90 d"),
    ("cost --since 0", "at least 60 s"),
    ("explain --since 0", "at least 1 s"),
    ("types --since 3h", "at most 2.0 h"),
    ("observe report --since 0", "at least 60 s"),
    ("status --watch 0", "at least 1 s"),
    ("drill main --timeout 0", "at least 60 s"),
    ("backtest --tick 7d", "at most 10 min"),
    ("cost --by hour", "day, zone or type"),
    ("cost --price g5.xlarge", "TYPE=USD, such as g5.xlarge=0.62"),
    ("cost --price g5.xlarge=-1", "TYPE=USD, such as g5.xlarge=0.62"),
    ("pause main --for 0 --why x", "at most 24h"),
    ("pause main --for 1h --why ' '", "give --why"),
    ("pause main --why x", "Missing option '--for'"),
    ("resume main --yes", "error: main is not paused"),
    ("explain --at yesterday", "Invalid value for --at"),
    ("explain --at 0001-01-01T00:00+14:00", "Invalid value for --at"),
    ("drill main --timeout 99999999d", "longer than ten years"),
    ("explain --at 12:00 --since 1h", "not both"),
    ("status --watch soon", "no duration"),
    ("status --instances --events", "give one of"),
    ("status --instances --watch 10s", "give one of"),
    ("status --profile nobody", "(nobody) could not be found: see `aws configure list-profiles`"),
    ("drill main", "deploy it with Drills=true"),
    ("drill main --count 0", "greater than or equal to 1"),
    ("mode main sleep", "'act', 'observe'"),
    ("drill main --count 6", "less than or equal to 5"),
    ("doctor --spot-group a", "--spot-group and --on-demand-group together"),
    ("doctor --spot-group a --on-demand-group a", "a is given as both groups; a fleet needs two"),
)


def test_a_text_that_is_not_utf_8() -> None:
    pause = ["pause", "main", "--for", "1h", "--why", "\udcff"]
    for line in (pause, ["status", "--stack", "\udcff"]):
        assert refused(*line).startswith("error: an argument or a file is not UTF-8 text: ")


def test_ctrl_c_while_the_command_still_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    set_to: list[tuple[object, ...]] = []
    monkeypatch.setattr("spotkeeper_cli.main.main", interrupted)
    monkeypatch.setattr("signal.signal", lambda *args: set_to.append(args))
    with pytest.raises(SystemExit) as ended:
        spotkeeper_cli.run()
    assert ended.value.code == 130
    # A second one, while Python closes what is open, is ignored.
    assert set_to == [(signal.SIGINT, signal.SIG_IGN)]


def test_an_argument_that_is_wrong() -> None:
    for line, expected in WRONG:
        code, out, err = run(*shlex.split(line))
        assert (code, out) == (2, ""), line
        assert expected.replace(" ", "") in "".join(err.split()).replace("│", ""), line
