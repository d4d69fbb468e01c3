"""The four calls of AWS: signed as botocore signs, taken by moto's SQS, refused in words."""

import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import boto3
import botocore.session
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreCredentials

from spotkeeper.border.search_log import read
from spotkeeper_worker.agent.aws import (
    AutoScaling,
    AwsError,
    NoActiveAction,
    SearchLogQueue,
    endpoint_of,
    region_of_queue,
    signed,
)
from spotkeeper_worker.agent.credentials import CredentialChain, Credentials, NoCredentials
from spotkeeper_worker.agent.metadata import Metadata
from spotkeeper_worker.logs.intake import take
from spotkeeper_worker.logs.journal import Segment
from spotkeeper_worker.testing import FakeMachine, FakeServer
from tests.worker.logs import AWS, a_log

pytestmark = pytest.mark.allow_hosts(["127.0.0.1"])
KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "secret"}


@pytest.mark.parametrize("token", ["", "a/session+token=="])
@pytest.mark.parametrize(
    ("service", "url", "body"),
    [
        ("sqs", "https://sqs.eu-central-1.amazonaws.com/", b'{"MessageBody": "\xc3\xbc"}'),
        ("autoscaling", "https://autoscaling.us-east-1.amazonaws.com/", b"Action=X&Name=a%2Fb"),
        ("sqs", "http://127.0.0.1:4566/", b""),
    ],
)
def test_a_signature_is_botocore_s(service: str, url: str, body: bytes, token: str) -> None:
    now = 1_763_632_800.0
    headers = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.X"}
    ours = signed(service, "us-east-1", url, headers, body, Credentials("AK", "sk", token), now)
    request = AWSRequest(method="POST", url=url, data=body, headers=headers)
    theirs = SigV4Auth(BotocoreCredentials("AK", "sk", token or None), service, "us-east-1")
    moment = datetime.fromtimestamp(now, UTC).replace(tzinfo=None)
    with patch("botocore.auth.get_current_datetime", return_value=moment):
        theirs.add_auth(request)
    assert ours["Authorization"] == request.headers["Authorization"]


def test_sqs_takes_a_message_and_names_a_queue_that_is_not_there(moto_url: str) -> None:
    client = boto3.client("sqs", endpoint_url=moto_url, region_name="us-east-1")
    url = client.create_queue(QueueName="search-logs")["QueueUrl"]
    chain = CredentialChain(None, KEYS)
    with closing(SearchLogQueue(url, "us-east-1", chain)) as queue:
        queue.send(Segment(None, (take(a_log(), AWS, 5.0).line,)).body())
    (message,) = client.receive_message(QueueUrl=url)["Messages"]
    assert [log.request_id for log in read(message["Body"]).logs] == ["r-0"]
    with (
        closing(SearchLogQueue(url + "-of-another", "us-east-1", chain)) as queue,
        pytest.raises(AwsError, match=r"SendMessage: .*NonExistentQueue|QueueDoesNotExist"),
    ):
        queue.send("body")
    client.close()


def test_an_answer_that_does_not_come_is_said_to_be_none() -> None:
    queue = SearchLogQueue("http://127.0.0.1:1/1/q", "us-east-1", CredentialChain(None, KEYS))
    with pytest.raises(AwsError, match="SendMessage: no answer: ConnectionRefusedError"):
        queue.send("body")


def test_hooks_by_the_machine_s_role(
    machine: FakeMachine, server: FakeServer, metadata: Metadata
) -> None:
    chain = CredentialChain(metadata, {"AWS_SHARED_CREDENTIALS_FILE": "/dev/null"})
    scaling = AutoScaling(server.endpoint, "us-east-1", chain)
    with pytest.raises(NoActiveAction):
        scaling.complete(machine.group, "spotkeeper-ready", machine.instance_id)
    machine.launch()
    assert scaling.group_of(machine.instance_id) == machine.group
    scaling.heartbeat(machine.group, "spotkeeper-ready", machine.instance_id)
    scaling.complete(machine.group, "spotkeeper-ready", machine.instance_id)
    assert machine.completed == [("spotkeeper-ready", "InService")]
    machine.refuses = "AccessDenied"
    with pytest.raises(AwsError, match="CompleteLifecycleAction: AccessDenied: refused") as refused:
        scaling.complete(machine.group, "spotkeeper-ready", machine.instance_id)
    assert not isinstance(refused.value, NoActiveAction)
    scaling.close()


def test_where_permissions_come_from(tmp_path: Path, metadata: Metadata) -> None:
    nothing = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")}
    with pytest.raises(NoCredentials, match="IamInstanceProfile"):
        CredentialChain(None, nothing).get(0.0)
    (tmp_path / "keys").write_text("[gpu]\naws_access_key_id = AKF\naws_secret_access_key = s\n")
    file = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "keys"), "AWS_PROFILE": "gpu"}
    assert CredentialChain(None, file).get(0.0).key == "AKF"
    assert CredentialChain(None, KEYS).get(0.0).key == "AKIDEXAMPLE"
    (tmp_path / "keys").write_text("\ufeff" + (tmp_path / "keys").read_text(), encoding="utf-8")
    assert CredentialChain(None, file).get(0.0).key == "AKF"
    (tmp_path / "keys").write_text("aws_access_key_id = AKF\n")
    with pytest.raises(NoCredentials, match="no section headers"):
        CredentialChain(None, file).get(0.0)
    role = CredentialChain(metadata, nothing)
    assert role.get(time.time()).key == "ASIATESTING"


def test_a_role_is_renewed_before_it_ends_and_kept_while_nobody_answers(
    machine: FakeMachine, metadata: Metadata
) -> None:
    file = {"AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
    chain = CredentialChain(metadata, file)
    first = chain.get(time.time())
    machine.fault = "503"
    late = first.ends_at - 60
    assert chain.get(late) == first
    with pytest.raises(NoCredentials, match="answered 503"):
        chain.get(first.ends_at + 1)
    machine.fault = ""
    assert chain.get(late).ends_at >= first.ends_at


def test_endpoints_have_the_suffix_of_their_regions_partition() -> None:
    partitions = botocore.session.get_session().get_data("endpoints")["partitions"]
    regions = {region: it["dnsSuffix"] for it in partitions for region in it["regions"]}
    assert regions["eusc-de-east-1"] == "amazonaws.eu"
    for region, suffix in regions.items():
        assert endpoint_of("ssm", region) == f"https://ssm.{region}.{suffix}/"
        assert region_of_queue(f"https://sqs.{region}.{suffix}/123456789012/logs") == region
