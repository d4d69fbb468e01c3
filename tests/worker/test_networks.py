"""Proxies, bundles of authorities and IPv6, as every SDK of AWS has them; all on loopback."""

import base64
import socket
import ssl
import subprocess
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.session import Session

from spotkeeper_worker.agent import web
from spotkeeper_worker.agent.aws import AwsError, SearchLogQueue, endpoint_of, parameter
from spotkeeper_worker.agent.credentials import CredentialChain
from spotkeeper_worker.agent.metadata import Metadata, identity
from spotkeeper_worker.agent.settings import IPV6_METADATA, parse
from spotkeeper_worker.extras import region_of_queue
from spotkeeper_worker.testing import FakeMachine, FakeServer
from tests.worker.management import Quiet, served

pytestmark = pytest.mark.allow_hosts(["127.0.0.1", "::1"])
KEYS = {"AWS_ACCESS_KEY_ID": "AKIATESTING", "AWS_SECRET_ACCESS_KEY": "testing"}
CHAIN = CredentialChain(None, KEYS)


class Proxy(Quiet):
    """A proxy that connects everything to one server, and remembers what it was to connect."""

    target: tuple[str, int]
    asked: list[tuple[str, str]]

    def do_CONNECT(self) -> None:
        self.asked.append((self.path, self.headers.get("Proxy-Authorization", "")))
        with socket.create_connection(self.target) as there:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=self._copy, args=(there, self.connection))
            back.start()
            self._copy(self.connection, there)
            back.join()
        self.close_connection = True

    @staticmethod
    def _copy(one: socket.socket, other: socket.socket) -> None:
        # Whoever leaves first ends the tunnel.
        with suppress(OSError):
            while data := one.recv(65_536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)


class Ssm(Quiet):
    """Answers every question with a parameter."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"Parameter": {"Value": "the-value"}}')


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """A certificate for ssm.eu-central-1.amazonaws.com that only its own bundle trusts."""
    name = "ssm.eu-central-1.amazonaws.com"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-keyout", tmp_path / "key.pem",
         "-out", tmp_path / "ca.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    return tmp_path / "ca.pem"


NAMED = ("/spotkeeper/s/search-log-queue-url", "eu-central-1", CHAIN)


def test_aws_is_asked_through_the_proxy_and_by_the_bundle(
    authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority, authority.with_name("key.pem"))
    asked: list[tuple[str, str]] = []
    with (
        served(Ssm, context=context) as there,
        served(Proxy, target=there.server_address, asked=asked) as proxy,
    ):
        where = f"http://us%40er:p%3Aw@127.0.0.1:{proxy.server_port}"
        monkeypatch.setenv("HTTPS_PROXY", where)
        with pytest.raises(AwsError, match="certificate verify failed"):
            parameter(*NAMED)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority))
        assert parameter(*NAMED) == "the-value"
    basic = f"Basic {base64.b64encode(b'us@er:p:w').decode()}"
    assert set(asked) == {("ssm.eu-central-1.amazonaws.com:443", basic)}


def test_the_metadata_and_what_no_proxy_names_are_asked_without(
    machine: FakeMachine, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.launch()
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with closing(Metadata(server.endpoint)) as metadata:
        assert identity(metadata).instance_id == machine.instance_id
    assert web.read(f"{server.endpoint}/", {}, 5.0, 10)[0]
    queue = SearchLogQueue(server.queue_url, "us-east-1", CHAIN)
    with closing(queue), pytest.raises(AwsError, match="ConnectionRefusedError"):
        queue.send("{}")
    monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1")
    with closing(SearchLogQueue(server.queue_url, "us-east-1", CHAIN)) as queue:
        queue.send("{}")
    assert machine.bodies == ["{}"]


REGIONS = [
    (region, dual)
    for partition in Session().get_available_partitions()
    for region in Session().get_available_regions("ssm", partition)[:1]
    for dual in (False, True)
    # botocore knows no endpoints of both kinds there.
    if not (dual and "-iso" in partition)
]


@pytest.mark.parametrize(("region", "dual"), REGIONS)
@pytest.mark.parametrize("service", ["sqs", "ssm", "autoscaling"])
def test_the_endpoints_are_botocore_s(
    service: Any, region: str, dual: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_USE_DUALSTACK_ENDPOINT", str(dual).lower())
    config = Config(use_dualstack_endpoint=dual)
    client = boto3.client(service, region_name=region, config=config)
    assert endpoint_of(service, region) == f"{client.meta.endpoint_url}/"
    if service == "sqs" and not dual:
        assert region_of_queue(f"{client.meta.endpoint_url}/123456789012/logs") == region
    client.close()


def test_a_queue_is_asked_by_the_endpoint_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "https://sqs.eu-central-1.amazonaws.com/123456789012/logs"
    monkeypatch.setenv("AWS_USE_DUALSTACK_ENDPOINT", "true")
    both = SearchLogQueue(url, "eu-central-1", CHAIN)
    assert both._endpoint == "https://sqs.eu-central-1.api.aws/"
    vpce = "https://vpce-1.sqs.eu-central-1.vpce.amazonaws.com"
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", vpce)
    own = SearchLogQueue(url, "eu-central-1", CHAIN)
    assert (own._endpoint, own.url) == (vpce, url)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://a")
    monkeypatch.setenv("AWS_ENDPOINT_URL_AUTO_SCALING", "http://b")
    found = [endpoint_of(service, "eu-central-1") for service in ("ssm", "autoscaling", "logs")]
    assert found == ["http://a", "http://b", "http://a"]


def test_the_metadata_is_asked_by_ipv6() -> None:
    mode = {"SPOTKEEPER_STACK": "s", "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE": "IPv6"}
    assert parse(mode).metadata_endpoint == IPV6_METADATA
    own = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://[::1]:1338"}
    assert parse({**mode, **own}).metadata_endpoint == "http://[::1]:1338"
    connection = web.connection_to(IPV6_METADATA, 1.0)
    assert (connection.host, connection.port) == ("fd00:ec2::254", 80)
