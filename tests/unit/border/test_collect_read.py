"""Reading message bodies: every form that counts, and a named refusal of every other."""

import base64
import gzip
import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper.border.search_log import MAX_BODY_BYTES, MAX_ERRORS, MAX_LOGS, MessageRefused, read
from spotkeeper.domain.load.load import Cluster
from tests.search_logs import before, lines, packed, sent_log

TWO = [sent_log(0), sent_log(1)]


def look(**changed: object) -> dict[str, Any]:
    """The field of a log in which an agent tells of a queue."""
    queue = {"vhost": "/", "name": "anfragen-ü", "ready": 5, "unacknowledged": 2}
    return {"agent": {"queue": queue | {"at": before(20).isoformat()} | changed}}


def refusal(body: str) -> str:
    with pytest.raises(MessageRefused) as caught:
        read(body)
    return str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(TWO),
        json.dumps(TWO, indent=2),
        lines(TWO),
        lines(TWO) + "\n",
        lines(TWO).replace("\n", " \r\n\n  "),
        "\n".join(json.dumps(each, indent=2) for each in TWO),
        packed(json.dumps(TWO)),
        packed(lines(TWO)),
        "\ufeff" + lines(TWO),
        packed("\ufeff" + lines(TWO)),
        json.dumps({"Type": "Notification", "MessageId": "m", "Message": lines(TWO)}, indent=2),
        json.dumps({"Type": "Notification", "Message": packed(json.dumps(TWO))}),
        base64.encodebytes(gzip.compress(lines(TWO).encode(), mtime=0)).decode(),
        # What a function of Lambda returned, at its destination (CDK's page of destinations), sent
        # on by EventBridge and SNS; events of Logstash and fluent-plugin-sqs.
        json.dumps({"Type": "Notification", "Message": json.dumps({"version": "0", "detail": {
            "version": "1.0", "requestContext": {"requestId": "c2a6f2ae", "condition": "Success"},
            "requestPayload": {"Success": True},
            "responsePayload": {"statusCode": 200, "body": json.dumps(TWO)}}})}),
        json.dumps({"@timestamp": "2026-11-20T10:00:00Z", "@version": "1", "message": lines(TWO)}),
        json.dumps({"log": lines(TWO) + "\n", "stream": "stdout", "__tag": "ocr"}),
        json.dumps({"logs": TWO}),
        # Batches: EventBridge Pipes, SNS on SQS in a batch, Fluent Bit's lines, CloudWatch Logs'
        # subscriptions, Kinesis, Firehose (their guides).
        base64.b64encode(json.dumps(TWO, indent=1).encode()).decode(),
        json.dumps([{"messageId": "1", "body": json.dumps(each)} for each in TWO]),
        lines([{"Type": "Notification", "Message": packed(json.dumps([each]))} for each in TWO]),
        json.dumps({"awslogs": {"data": packed(json.dumps({"logEvents": [
            {"id": "1", "message": json.dumps(each)} for each in TWO]}))}}),
        json.dumps({"Records": [{"kinesis": {"partitionKey": "1", "data": base64.b64encode(
            json.dumps(each).encode()).decode()}} for each in TWO]}),
        json.dumps({"token": "eyJhbGciOi.eyJzdWIi.x", "page": "eyJwYWdlIjogMX0=", "logs": TWO}),
    ],
)  # fmt: skip
def test_every_form_of_a_message_reads_alike(body: str) -> None:
    assert [each.request_id for each in read(body).logs] == ["r-0", "r-1"]


def test_unknown_fields_are_kept_out_and_braces_in_text_do_no_harm() -> None:
    fields = sent_log(request_id="}\n{", gpu={"model": "T4"}, cluster="onprem", fleet="ocr.eu-1")
    del fields["instance_id"]
    [only] = read(json.dumps(fields | {"note": "} {"})).logs
    assert (only.request_id, only.cluster, only.instance_id) == ("}\n{", Cluster.ONPREM, "")
    assert (only.fleet, hasattr(only, "gpu")) == ("ocr.eu-1", False)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("2026-11-20T10:00:00Z", 0),
        ("2026-11-20t10:00:00.5Z", 500),
        ("2026-11-20 11:00:00.123456789+01:00", 123),
        ("2026-11-20T04:30:00-05:30", 0),
    ],
)
def test_times_are_rfc_3339(text: str, milliseconds: int) -> None:
    [only] = read(json.dumps(sent_log(enqueued_at=text, started_at=text, finished_at=text))).logs
    expected = datetime(2026, 11, 20, 10, tzinfo=UTC).timestamp() * 1000 + milliseconds
    assert int(only.finished_at.timestamp() * 1000) == expected


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({"version": 2}, "logs[0].version: should be the number 1"),
        ({"version": True}, "logs[0].version: should be the number 1"),
        ({"request_id": ""}, "logs[0].request_id: "),
        ({"worker_id": "w" * 129}, "logs[0].worker_id: "),
        ({"cluster": "gcp"}, "logs[0].cluster: Input should be 'aws' or 'onprem'"),
        ({"instance_id": "i-123"}, "logs[0].instance_id: "),
        ({"instance_id": ""}, "logs[0].instance_id: is missing"),
        ({"cluster": "onprem"}, "logs[0].instance_id: is not for a worker in cluster onprem"),
        ({"status": "done"}, "logs[0].status: Input should be 'ok', 'error' or 'timeout'"),
        ({"fleet": "a b"}, "logs[0].fleet: "),
        ({"enqueued_at": "yesterday"}, "logs[0].enqueued_at: should be an RFC 3339 time"),
        ({"enqueued_at": "1763632800"}, "logs[0].enqueued_at: should be an RFC 3339 time"),
        ({"enqueued_at": "2026-11-20T10:00:00"}, "logs[0].enqueued_at: should be an RFC 3339"),
        ({"enqueued_at": 1763632800}, "logs[0].enqueued_at: should be an RFC 3339 time"),
        ({"started_at": "2026-02-30T10:00:00Z"}, "logs[0].started_at: Value error, day is out"),
        ({"started_at": "2026-11-20T10:00:00+24:00"}, "logs[0].started_at: Value error, offset"),
        ({"enqueued_at": before(26).isoformat()}, "logs[0].started_at: lies more than 5 s before"),
        ({"finished_at": before(38).isoformat()}, "logs[0].finished_at: lies more than 5 s before"),
        ({"enqueued_at": "2026-11-06T10:00:00Z"}, "logs[0].finished_at: lies more than 14 days"),
        (
            dict.fromkeys(("enqueued_at", "started_at"), "2026-11-18T10:00:00Z"),
            "logs[0].finished_at: lies more than 24 hours after started_at",
        ),
        ({"agent": {"lost": -1}}, "logs[0].agent.lost"),
        (look(ready=None), "logs[0].agent.queue.ready"),
        (look(name=""), "logs[0].agent.queue.name"),
        (look(vhost="v" * 256), "logs[0].agent.queue.vhost"),
        (look(at="2026-11-20T10:00:00"), "logs[0].agent.queue.at"),
        (look(at=1763632800), "logs[0].agent.queue.at"),
        ({"agent": {"queue": []}}, "logs[0].agent.queue"),
    ],
)
def test_a_wrong_field_is_named(changed: dict[str, object], wrong: str) -> None:
    assert refusal(json.dumps(sent_log() | changed)).startswith(wrong)


def test_every_missing_field_is_named() -> None:
    required = sent_log().keys() - {"instance_id"}
    assert set(re.findall(r"logs\[1\]\.(\w+): ", refusal(lines([sent_log(), {}])))) == required


GOOD = json.dumps(sent_log())


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ("", "body: should be a JSON object"),
        ("hello", "body: should be a JSON object"),
        ('{"Type": "Notification"}', "logs[0].version: Field required"),
        (json.dumps({"requestPayload": [], "a": GOOD, "b": GOOD}), "body: a and b hold logs"),
        (json.dumps({"Message": json.dumps({"detail": sent_log(status="?")})}), "logs[0].status"),
        (reduce(lambda text, _: json.dumps({"a": text}), range(5), GOOD), "logs[0].version: Field"),
        ('{"Type": "Notification", "Message": "{}"}', "logs[0].version: Field required"),
        ('{"Type": "Notification"', "body: Invalid JSON: expected"),
        ("[]", "logs: the message holds no search log"),
        ("[[]]", "logs[0]: should be an object"),
        (f"[{GOOD}, [{GOOD}]]", "logs[1]: should be an object"),
        ('{"version": 2, "agent": {"lost": 1}}', "logs[0]"),
        ('{"version": 1}', "logs[0]"),
        ('{"version": 1, "agent": {"lost": ""}}', "logs[0]"),
        (GOOD[:-5], "body: Invalid JSON: "),
        (f"[{GOOD}", "body: Invalid JSON: EOF"),
        (f"{GOOD}\n{GOOD}\n{GOOD[:4]}", "body: Invalid JSON: EOF while parsing a string at line 3"),
        (f"{GOOD}{GOOD}", "body: Invalid JSON: expected `,`"),
        ("[" * 10_000, "body: Invalid JSON: recursion limit"),
        ('[{"version": ' + "9" * 10_000 + "}]", "body: Invalid JSON: number out of range"),
        ('{"version": NaN}', "logs[0].version: should be the number 1"),
        ('{"request_id": "\ud800"}', "body: Invalid JSON: "),
        ("H4sI*not base64*", "body: starts like gzip in base64 but is not base64"),
        ("H4sI\u00e9", "body: starts like gzip in base64 but is not base64"),
        (packed(GOOD)[:-7], "body: "),
        (packed(GOOD)[:40] + "A" * 60, "body: is base64 but cannot be unpacked"),
        (packed(" " * (MAX_BODY_BYTES + 1)), "body: unpacks to more than 8 MiB"),
        (json.dumps([{"Message": GOOD}, {"Message": "hello"}]), "logs[0].version: Field required"),
        (lines([{"a": packed('{"x": "' + "y" * 5_000_000 + '"}')}] * 2), "body: unpacks to more"),
        (packed(packed(GOOD)), "body: should be a JSON object"),
        (packed("\x00\xff"), "body: should be a JSON object"),
    ],
)
def test_a_mangled_message_is_refused_by_name(body: str, wrong: str) -> None:
    assert refusal(body).startswith(wrong)


def test_every_wrong_field_of_every_log_is_named_up_to_a_bound() -> None:
    wrong = [sent_log(), sent_log(status="?", version=3), sent_log(cluster="onprem")]
    named = ["logs[1].version", "logs[1].status", "logs[2].instance_id"]
    assert re.findall(r"logs\[\d+\]\.\w+", refusal(json.dumps(wrong))) == named
    many = refusal(json.dumps([sent_log(status="?")] * 1000))
    assert many.count("status") == MAX_ERRORS
    assert many.endswith("; and more")


def test_a_log_of_two_clocks_is_read_up_to_five_seconds_and_alone_left_out_beyond() -> None:
    near, far = ({"enqueued_at": before(at).isoformat()} for at in (27.0, 26.9))
    body = read(lines([sent_log(0), sent_log(1, **near), sent_log(2, **far)]))
    assert [each.request_id for each in body.logs] == ["r-0", "r-1"]
    assert body.left_out == ("logs[2].started_at: lies more than 5 s before enqueued_at",)


# Go and .NET write a time that nobody set as the first of their calendar.
@pytest.mark.parametrize("unset", ["0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00"])
@pytest.mark.parametrize("name", ["enqueued_at", "started_at", "finished_at"])
def test_a_time_that_nobody_set_costs_its_own_log_only(name: str, unset: str) -> None:
    body = read(lines([sent_log(0), sent_log(1) | {name: unset}]))
    assert [each.request_id for each in body.logs] == ["r-0"]
    assert body.left_out[0].startswith("logs[1].")


@given(st.lists(st.datetimes().map(lambda at: f"{at.isoformat()}Z"), min_size=3, max_size=3))
def test_any_three_times_read_or_are_refused(times: list[str]) -> None:
    named = dict(zip(("enqueued_at", "started_at", "finished_at"), times, strict=True))
    try:
        [only] = read(json.dumps(sent_log() | named)).logs
    except MessageRefused as refusal:
        assert str(refusal).startswith("logs[0].")
    else:
        assert only.finished_at >= only.enqueued_at - timedelta(seconds=10)


@pytest.mark.parametrize("around", ["{}%sx", '{"a": "ey%s!"}', '{"a":%s"x"}'])
def test_megabytes_of_line_ends_take_no_time(around: str) -> None:
    blanks = "\n" if around[1] == "}" else " "
    with pytest.raises(MessageRefused):
        read(packed(around.replace("%s", blanks * (MAX_BODY_BYTES - 20))))


READ_WITHIN = """
import resource, sys
from spotkeeper.border.search_log import MessageRefused, read
for line in open("/proc/self/status"):
    if line.startswith("VmSize"):
        most = int(line.split()[1]) * 1024 + 256 * 1024 * 1024
resource.setrlimit(resource.RLIMIT_AS, (most, most))
for body in sys.stdin:
    try:
        print(len(read(body).logs))
    except MessageRefused as refused:
        print(str(refused)[:5])
"""


def test_no_message_takes_more_than_256_mebibytes() -> None:
    """Whatever its JSON is made of: a batch of honest messages would die with it."""
    log = json.dumps(sent_log())
    many_keys = ",".join(f'"{number:x}":1' for number in range(590_000))
    alone = '{"version":1,"agent":{}}'
    told = {"request_id": 'a "[{,\\" b'}
    units = [
        *("{}", "1", "null", "1.5", "[]", "[1]", '{"":1}', '""', '"ab"', '{"a":{"b":[1]}}', alone),
        *("[" * 150 + "]" * 150, '{"a":' * 150 + "1" + "}" * 150, "9" * 400, log, "[[[],[]],[]]"),
        *(log.replace('"ok"', '"no"'), log[:-1] + ',"x":[[],{},1]}', '{"version":1,"agent":1}'),
    ]
    bombs = [f"[{','.join([unit] * (MAX_BODY_BYTES // (len(unit) + 1)))}]" for unit in units]
    bombs += ["\n".join([unit] * (MAX_BODY_BYTES // (len(unit) + 1))) for unit in units]
    bombs += [
        *(f"[{{{many_keys}}}]", f"[{{{many_keys}}},{log}]", f'[{{"{"k" * 8_000_000}":1}}]'),
        *(f'["{"a" * 8_000_000}"]', f'["{"😀" * 2_000_000}"]', "[" + "9" * 8_000_000 + "]"),
        *("[" * 8_000_000, "}\n" * 4_000_000, '["' * 4_000_000, '["' + '\\"' * 4_000_000 + '"]'),
        f'[{{"version":1,"agent":{{"queue":[{"[]," * 2_500_000}1]}}}}]',
    ]
    honest = [json.dumps([sent_log() | told for _ in range(MAX_LOGS)])[:MAX_BODY_BYTES]]
    bodies = "\n".join(packed(text) for text in bombs + honest)
    done = subprocess.run(
        [sys.executable, "-c", READ_WITHIN], input=bodies, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    *refused, read_logs = done.stdout.split()
    assert int(read_logs) == MAX_LOGS
    assert {*refused} == {"body:", "logs[", "logs:"}


@given(cut=st.integers(0, len(GOOD) - 1), put=st.characters())
def test_one_wrong_character_never_breaks_the_reader(cut: int, put: str) -> None:
    try:
        logs = read(GOOD[:cut] + put + GOOD[cut + 1 :]).logs
    except MessageRefused as refusal:
        assert str(refusal).startswith(("logs", "body"))
    else:
        assert len(logs) == 1
