"""AWS as a machine has it: its metadata, its permissions, and the calls that it signs."""

import json
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import boto3
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
    signed,
)
from spotkeeper_worker.agent.credentials import CredentialChain, Credentials, NoCredentials
from spotkeeper_worker.agent.metadata import Metadata, MetadataError, identity, look
from spotkeeper_worker.logs.intake import take
from spotkeeper_worker.logs.journal import Segment
from spotkeeper_worker.states import Seen
from spotkeeper_worker.testing import FakeMachine, FakeServer
from tests.worker.logs import AWS, a_log
from tests.worker.management import serving

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
        pytest.raises(AwsError, match=r"SendMessage: .*; compare the URL with the stack's out"),
    ):
        queue.send("body")
    client.close()


def test_hooks_by_the_machine_s_role(
    machine: FakeMachine, server: FakeServer, metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = CredentialChain(metadata, {"AWS_SHARED_CREDENTIALS_FILE": "/dev/null"})
    mine = (machine.group, "spotkeeper-ready", machine.instance_id)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    with closing(AutoScaling("autoscaling", "us-east-1", chain)) as scaling:
        with pytest.raises(NoActiveAction):
            scaling.act(*mine)
        machine.launch()
        assert scaling.group_of(machine.instance_id) == machine.group
        scaling.act(*mine, heartbeat=True)
        scaling.act(*mine)
        assert (machine.heartbeats, len(machine.completed)) == (["spotkeeper-ready"], 1)
        machine.refuses = "AccessDenied"
        with pytest.raises(AwsError, match="CompleteLifecycleAction: AccessDenied") as refused:
            scaling.act(*mine)
        assert type(refused.value) is AwsError


def test_permissions_are_of_the_environment_a_file_a_container_or_the_instance(
    tmp_path: Path, metadata: Metadata
) -> None:
    keys = tmp_path / "keys"
    nothing = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")}
    file = {"AWS_SHARED_CREDENTIALS_FILE": str(keys), "AWS_PROFILE": "gpu"}
    profile = "[gpu]\naws_access_key_id = AKF\naws_secret_access_key = s\n"
    for text in (profile, f"\ufeff{profile}"):
        keys.write_text(text, encoding="utf-8")
        assert CredentialChain(metadata, file).get(0.0).key == "AKF"
    # What the SSM agent or aws_signing_helper writes anew each hour (aws-sdk-go-v2#2135).
    chain = CredentialChain(None, file)
    assert chain.get(0.0).key == "AKF"
    keys.write_text(profile.replace("AKF", "ASIAF") + "aws_session_token = t\n")
    assert chain.get(61.0).key == "ASIAF"
    assert CredentialChain(metadata, KEYS | file).get(0.0).key == "AKIDEXAMPLE"
    assert CredentialChain(metadata, nothing).get(0.0).key == "ASIATESTING"
    with serving("/role") as container:
        uri = nothing | {"AWS_CONTAINER_CREDENTIALS_FULL_URI": container.url}
        told = {"AccessKeyId": "ASIAC", "SecretAccessKey": "s", "Token": "t"}
        container.body = json.dumps(told | {"Expiration": "2025-11-20T10:00:00Z"})
        assert CredentialChain(metadata, uri).get(0.0).key == "ASIAC"
        # EKS Pod Identity has the token in a file (runatlantis/helm-charts#349, minio-java#1719).
        pod = tmp_path / "eks-pod-identity-token"
        container.token = "of-the-pod"
        tokens = {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(pod)}
        pod.write_text("of-the-pod\n")
        assert CredentialChain(metadata, uri | tokens).get(0.0).key == "ASIAC"
        with pytest.raises(NoCredentials, match="/role: answered 400"):
            CredentialChain(metadata, uri).get(0.0)
        container.token = ""
        container.body = json.dumps(told)
        with pytest.raises(NoCredentials, match=r"incomplete: KeyError.*Expiration"):
            CredentialChain(metadata, uri).get(0.0)
    with pytest.raises(NoCredentials, match="IamInstanceProfile"):
        CredentialChain(None, nothing).get(0.0)
    keys.write_text("aws_access_key_id = AKF\n")
    with pytest.raises(NoCredentials, match="no section headers"):
        CredentialChain(None, file).get(0.0)


def test_a_role_is_renewed_before_it_ends(machine: FakeMachine, metadata: Metadata) -> None:
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


# --- metadata -------------------------------------------------------------------------------------


def test_every_notice_is_read_by_this_machine_s_clock(
    machine: FakeMachine, metadata: Metadata
) -> None:
    machine.clock_ahead_s = 300.0
    assert look(metadata, Seen())[0] == Seen()
    machine.launch()
    machine.interrupt(in_s=1200)
    machine.tag(in_s=600)
    machine.recommend_rebalance()
    seen = look(metadata, Seen())[0]
    assert seen.target == "InService"
    assert seen.taken_at == pytest.approx(time.time() + 1200, abs=60)
    assert seen.tagged_until == pytest.approx(time.time() + 600, abs=60)
    assert seen.rebalance
    machine.untag()
    assert look(metadata, seen)[0].tagged_until is None


def test_scheduled_maintenance_is_read(machine: FakeMachine, metadata: Metadata) -> None:
    machine.schedule(9000, "instance-retirement")
    machine.schedule(7200, "system-reboot")
    machine.schedule(60, "system-reboot", "completed")
    machine.schedule(60, "instance-dance")
    seen = look(metadata, Seen())[0]
    at, code = seen.maintenance or (0.0, "")
    assert at == pytest.approx(time.time() + 7200, abs=60)
    assert code == "system-reboot"
    machine.maintenance = [{"Code": "system-reboot", "State": "active"}]
    found, (trouble,) = look(metadata, seen)
    assert found == seen
    assert "events/maintenance/scheduled" in trouble
    machine.maintenance = []
    assert look(metadata, seen)[0].maintenance is None


@pytest.mark.parametrize(
    ("befalls", "trouble"),
    [
        ({"fault": "hang"}, "timed out"),
        ({"fault": "html"}, "api/token: answered 200 and no token"),
        ({"fault": "401"}, "api/token: answered 401 and no token"),
        ({"fault": "503"}, "answered 503"),
        ({"target": "Quarantined"}, "target-lifecycle-state: 'Quarantined' is not a known state"),
        ({"action": {}}, "spot/instance-action"),
        ({"action": {"action": "terminate"}}, "spot/instance-action"),
        ({"action": {"action": "terminate", "time": "soon"}}, "spot/instance-action"),
    ],
)
def test_a_bad_answer_is_no_order_to_drain(
    machine: FakeMachine, server: FakeServer, befalls: dict[str, Any], trouble: str
) -> None:
    before = Seen(target="InService")
    vars(machine).update({"target": "InService", **befalls})
    patience_s = 0.2 if machine.fault == "hang" else 60.0
    with closing(Metadata(server.endpoint, patience_s)) as client:
        after, troubles = look(client, before)
    assert after == before
    assert trouble in troubles[0]


def test_an_invalid_token_is_renewed_once(machine: FakeMachine, metadata: Metadata) -> None:
    look(metadata, Seen())
    machine.tokens.clear()
    assert look(metadata, Seen())[1] == ()
    assert len(machine.tokens) == 1


def test_metadata_identifies_the_instance(machine: FakeMachine, metadata: Metadata) -> None:
    assert identity(metadata) == (machine.instance_id, "us-east-1", "demo-spot", True)
    machine.tags = None
    assert identity(metadata) == (machine.instance_id, "us-east-1", "", False)
    machine.instance_id = "<html>"
    with pytest.raises(MetadataError, match="not EC2 metadata"):
        identity(metadata)
