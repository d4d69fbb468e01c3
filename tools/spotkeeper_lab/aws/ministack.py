"""All that knows the inside of ministack: what is answered in its place, and what is mended.

Written for one release; `check_release` refuses any other one.
"""

import asyncio
import contextvars
import hashlib
import importlib
import json
import re
import sys
import tempfile
import threading
import time
import zipfile
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from spotkeeper_lab.alarms import Alarm, Change, Metric, Metrics

MINISTACK = "1.5.33"


class SeamError(RuntimeError):
    """ministack is not as the seams expect it."""


def module(name: str) -> Any:
    """A module of ministack, which is not installed where the lab is checked."""
    return importlib.import_module(f"ministack.{name}")


def check_release() -> None:
    """Refuse any other release than the one that this was written for; raises SeamError."""
    if (installed := version("ministack")) != MINISTACK:
        raise SeamError(f"ministack {installed} is installed and {MINISTACK} is known: make pins")


# --- its account ----------------------------------------------------------------------------------

type Response = tuple[int, dict[str, str], bytes]
type Answering = Callable[[str, bytes], Response | None]
"""Answers one call of a service from its body, or leaves it to ministack."""


def answer_instead(service: str, answering: Answering) -> None:
    """Let calls of a query service be answered elsewhere first."""
    target = module(f"services.{service}")
    original: Callable[..., Awaitable[Response]] = target.handle_request

    async def handle(method: str, path: str, headers: Any, body: bytes, query: Any) -> Response:
        response = await asyncio.to_thread(answering, service, body)
        return response or await original(method, path, headers, body, query)

    target.handle_request = handle


def provision(kind: str, handlers: Any) -> None:
    """Let CloudFormation create, update and delete a kind of resource by these."""
    registry = module("services.cloudformation.provisioners")._RESOURCE_HANDLERS
    registry[kind] = {does: getattr(handlers, does) for does in ("create", "update", "delete")}


def zone_of(subnet: str) -> str:
    """The zone of a subnet; raises KeyError for one that is not there."""
    return str(module("services.ec2")._subnets[subnet]["AvailabilityZone"])


def in_region(region: str) -> Any:
    """Do what is in the block as a request of a region does."""
    responses = module("core.responses")
    return responses.request_scope(responses.get_account_id(), region)


def names_have_their_region() -> None:
    """What stacks of one name make in two regions has two names: roles are of the account."""
    known = module("services.cloudformation.provisioners")
    original, region = known._physical_name, module("core.responses").get_region

    def name(stack: str, logical_id: str, **how: Any) -> str:
        made = str(original(stack, logical_id, **how))
        digest = hashlib.sha256(f"{region()}{made}".encode()).hexdigest()[:12]
        digest = digest if how.get("lowercase") else digest.upper()
        return made[: -len(digest)] + digest

    known._physical_name = name


def functions_say_their_region() -> None:
    """A function's calls name its region in the user agent: a partition is between regions."""
    runtime = module("core.lambda_runtime")
    original = runtime.execution_credentials

    def credentials(config: Any) -> dict[str, str]:
        _account, region = runtime._account_region_from_function_config(config)
        return {**original(config), "AWS_SDK_UA_APP_ID": region}

    runtime.execution_credentials = credentials


def put_event(event: Mapping[str, Any]) -> None:
    """Put an event of AWS itself on the default bus."""
    entry = {
        "Source": event["source"],
        "DetailType": event["detail-type"],
        "Detail": json.dumps(event["detail"]),
        "Resources": event["resources"],
    }
    module("services.eventbridge")._put_events({"Entries": [entry]}, allow_aws_source=True)


def send_message(queue: str, body: str) -> None:
    """Send a message to the queue of a name, or to those whose names begin so and with a dash."""
    sqs = module("services.sqs")
    for url in sqs._act_list_queues({}, "").get("QueueUrls", ()):
        name = url.rpartition("/")[2]
        if name == queue or name.startswith(f"{queue}-"):
            sqs._act_send_message({"QueueUrl": url, "MessageBody": body}, url)


def parameters() -> dict[tuple[str, str], str]:
    """Every parameter, by region and name."""
    items = module("services.ssm")._parameters.all_items()
    return {(region, name): str(kept["Value"]) for (_account, region, name), kept in items}


def alarms_ring(metrics: Mapping[str, Metrics], seconds: Callable[[], float]) -> None:
    """Make alarms on metric math, too, and note what functions print, by region, for `ring`."""
    known, functions = module("services.cloudformation.provisioners"), module("services.lambda_svc")
    original, execute = known._cw_metric_alarm_record, functions._execute_function
    module("services.cloudwatch")._evaluate_all_alarms = lambda: None

    def record(name: str, props: dict[str, Any]) -> Any:
        if not props.get("Metrics"):
            return original(name, props)
        plain = {key: value for key, value in props.items() if key != "Metrics"}
        made = original(name, plain | {"MetricName": "expression", "Namespace": "expression"})
        return made | {"Metrics": props["Metrics"]}

    def executed(function: Mapping[str, Any], event: Any) -> Any:
        result, now_s = execute(function, event), seconds()
        config = function.get("config") or function
        name = str(config.get("FunctionName"))
        own = metrics[functions._account_region_from_function_config(config)[1]]
        throttled = bool(result.get("throttle"))
        for metric, value in (
            ("Invocations", not throttled),
            ("Throttles", throttled),
            ("Errors", bool(result.get("error")) and not throttled),
        ):
            of = Metric("AWS/Lambda", metric, frozenset({("FunctionName", name)}))
            own.put(of, now_s, float(value))
        for line in str(result.get("log") or "").splitlines():
            own.put_log(line, now_s)
        return result

    def dropped(config: Mapping[str, Any]) -> None:
        region = functions._account_region_from_function_config(config)[1]
        name = frozenset({("FunctionName", str(config.get("FunctionName")))})
        metrics[region].put(Metric("AWS/Lambda", "AsyncEventsDropped", name), seconds(), 1.0)

    known._cw_metric_alarm_record = record
    functions._execute_function, functions.dropped = executed, dropped


def ring(alarms: dict[str, Alarm], metrics: Metrics, minute: int) -> list[Change]:
    """Evaluate every alarm at the end of a minute, and tell its topic of a change."""
    cloudwatch, sqs = module("services.cloudwatch"), module("services.sqs")
    for url in sqs._act_list_queues({}, "").get("QueueUrls", ()):
        counts = sqs._act_get_queue_attributes({"QueueUrl": url}, url)["Attributes"]
        for kind in ("", "NotVisible"):
            name = f"ApproximateNumberOfMessages{kind or 'Visible'}"
            of = frozenset({("QueueName", url.rpartition("/")[2])})
            value = float(counts[f"ApproximateNumberOfMessages{kind}"])
            metrics.put(Metric("AWS/SQS", name, of), 60.0 * minute, value)
    changes: list[Change] = []
    for name, record in list(cloudwatch._alarms.items()):
        alarm = alarms.setdefault(name, Alarm(record))
        alarm.described = record
        for change in alarm.evaluate(metrics, minute):
            changes.append(change)
            if not change.contributor:
                before, record["StateValue"] = record["StateValue"], str(change.state)
                record["StateReason"] = ", ".join(alarm.ringing) or str(change.state)
                said = (before, str(change.state), record["StateReason"])
                cloudwatch._record_history(name, *said)
                cloudwatch._dispatch_alarm_actions(record, *said)
    return changes


def conditions_on_lists() -> None:
    """Conditions may look at what Fn::Split makes of a parameter; ministack leaves it as it is."""
    engine = module("services.cloudformation.engine")
    original = engine._evaluate_conditions

    def split(value: Any, params: Mapping[str, Any]) -> Any:
        match value:
            case {"Fn::Split": _}:
                return engine._resolve_refs(value, {}, params, {}, {}, "", "")
            case dict():
                return {key: split(inner, params) for key, inner in value.items()}
            case list():
                return [split(inner, params) for inner in value]
        return value

    def evaluate(template: dict[str, Any], params: Mapping[str, Any]) -> Any:
        plain = split(template.get("Conditions", {}), params)
        return original({**template, "Conditions": plain}, params)

    for name in ("engine", "changesets", "handlers", "stacks"):
        module(f"services.cloudformation.{name}")._evaluate_conditions = evaluate


def keep_parameters(parameters: Mapping[str, str]) -> None:
    """Keep parameters of AWS's own, under names that it refuses to everybody else."""
    ssm = module("services.ssm")
    refusing, ssm._reserved_name_error = ssm._reserved_name_error, lambda _name: None
    for name, value in parameters.items():
        ssm._put_parameter({"Name": name, "Value": value, "Type": "String"})
    ssm._reserved_name_error = refusing


def keep_launch_template(named: Mapping[str, str], image: str, role: str, versions: int) -> None:
    """Keep the launch template of all groups, with a profile of a role of its workers."""
    ec2, iam = module("services.ec2"), module("services.iam")
    trusted = {"Service": "ec2.amazonaws.com"}
    trust = [{"Effect": "Allow", "Principal": trusted, "Action": "sts:AssumeRole"}]
    document = json.dumps({"Version": "2012-10-17", "Statement": trust})
    iam._create_role({"RoleName": [role], "AssumeRolePolicyDocument": [document]})
    iam._create_instance_profile({"InstanceProfileName": [role]})
    iam._add_role_to_instance_profile({"InstanceProfileName": [role], "RoleName": [role]})
    ec2._create_launch_template(
        {
            "LaunchTemplateName": [named["LaunchTemplateName"]],
            "LaunchTemplateData.ImageId": [image],
            "LaunchTemplateData.InstanceType": ["g5.xlarge"],
            "LaunchTemplateData.IamInstanceProfile.Name": [role],
            "LaunchTemplateData.MetadataOptions.HttpTokens": ["required"],
            "LaunchTemplateData.MetadataOptions.HttpPutResponseHopLimit": ["2"],
            "LaunchTemplateData.MetadataOptions.InstanceMetadataTags": ["enabled"],
        }
    )
    ((key, made),) = ec2._launch_templates.items()
    first = {**made["Versions"][0], **named}
    made.update(named, LatestVersionNumber=versions)
    made["Versions"] = [
        {**first, "VersionNumber": n, "DefaultVersion": n == 1} for n in range(1, versions + 1)
    ]
    del ec2._launch_templates[key]
    ec2._launch_templates[named["LaunchTemplateId"]] = made


def lacking(named: Mapping[str, str], pool: str, version: str) -> str:
    """Say what a version of the groups' launch template lacks in the region of a pool.

    As moto's tests saw AWS say it of versions, and the API reference's error codes of the rest.
    """
    ec2 = module("services.ec2")
    with in_region(pool.partition("/")[0][:-1]):
        kept = ec2._launch_templates.get(named["LaunchTemplateId"], {}).get("Versions", ())
        versions = {str(one["VersionNumber"]): one["LaunchTemplateData"] for one in kept}
        if version not in versions:
            return VERSION_GONE.format(version, named["LaunchTemplateId"])
        data, images = versions[version], {*ec2._images, *(one[0] for one in ec2._STUB_AMIS)}
        needed = (
            ("image id", [i for i in [data.get("ImageId", "")] if i.startswith("ami-")], images),
            ("security group", data.get("SecurityGroupIds", ()), ec2._security_groups),
            ("key pair", filter(None, [data.get("KeyName")]), ec2._key_pairs),
        )
        gone = ((what, n) for what, names, there in needed for n in names if n not in there)
        return next((f"The {what} '{name}' does not exist." for what, name in gone), "")


VERSION_GONE = "Could not find the specified version {} for the launch template with ID {}."


def missing_versions_are_refused() -> None:
    """A version that does not exist is an error, as on AWS, and no empty list."""
    ec2 = module("services.ec2")
    describe = ec2._describe_launch_template_versions

    def described(params: Any) -> Any:
        answer, wanted = describe(params), ec2._parse_member_list(params, "LaunchTemplateVersion")
        if not wanted or b"<item>" in answer[2]:
            return answer
        text = VERSION_GONE.format(wanted[0], ec2._p(params, "LaunchTemplateId"))
        return ec2._error("InvalidLaunchTemplateId.VersionNotFound", text, 400)

    ec2._ACTION_MAP["DescribeLaunchTemplateVersions"] = described


def launch_template(named: Mapping[str, Any]) -> Mapping[str, Any]:
    """The data of a launch template's version; none where there is no such template."""
    data, _template, _error = module("services.ec2")._resolve_launch_template_data(named)
    return data or {}


def machine_keys(template: Mapping[str, Any], instance_arn: str) -> dict[str, str]:
    """What a machine's metadata has of the role in the profile of its launch template."""
    named = template.get("IamInstanceProfile", {})
    iam = module("services.iam")
    profile = iam._lookup_instance_profile(named.get("Name", ""), named.get("Arn", ""))
    role = next(iter((profile or {}).get("Roles", ())), "")
    # A session of the role, as that of a function.
    name = instance_arn.rpartition("/")[2]
    arn = f"{instance_arn.partition(':instance/')[0].replace(':ec2:', ':lambda:')}:function:{name}"
    keys = module("core.lambda_runtime").execution_credentials(
        {"Role": f"role/{role}", "FunctionArn": arn, "FunctionName": name}
    )
    return {
        "AccessKeyId": keys["AWS_ACCESS_KEY_ID"],
        "SecretAccessKey": keys["AWS_SECRET_ACCESS_KEY"],
        "Token": keys["AWS_SESSION_TOKEN"],
    }


mails: deque[dict[str, str]] = deque(maxlen=100)
"""What topics sent, functions' messages and alarms' alike, and to which addresses; newest last."""


def mails_are_kept() -> None:
    """Keep what a topic sends."""
    sns = module("services.sns")
    send = sns._fanout

    def kept(topic: str, number: str, message: Any, subject: str, *how: Any, **more: Any) -> None:
        subscribed = sns._topic_by_arn_any_scope(topic)["subscriptions"]
        to = ", ".join(one["endpoint"] for one in subscribed if one["protocol"] == "email")
        mails.append({"topic": topic, "to": to, "subject": subject, "message": str(message)})
        send(topic, number, message, subject, *how, **more)

    sns._fanout = kept


def service_linked_roles() -> None:
    """The account has launched instances before: AWS's own roles for that are there."""
    iam = module("services.iam")
    for name, service in (("AutoScaling", "autoscaling"), ("EC2Spot", "spot")):
        iam._create_service_linked_role({"AWSServiceName": [f"{service}.amazonaws.com"]})
        made = iam._roles.pop(f"AWSServiceRoleFor{service.capitalize()}")
        path, named = made["Path"], f"AWSServiceRoleFor{name}"
        arn = made["Arn"].partition(path)[0] + path + named
        iam._roles[named] = made | {"RoleName": named, "Arn": arn}


# --- permissions ----------------------------------------------------------------------------------

_instances: ContextVar[tuple[str, ...]] = ContextVar("instances", default=())
_leading: ContextVar[tuple[str, ...]] = ContextVar("leading", default=())
used: Counter[tuple[str, str]] = Counter()
"""How often a principal was allowed an action."""
refused: Counter[tuple[str, str]] = Counter()


def authorize_as_aws(tags_of: Callable[[str], Mapping[str, str]]) -> None:
    """Roles are enforced on the resources and condition keys that AWS names for a call.

    `tags_of` answers the tags of an instance, its group's name among them.
    """
    _name_resources(tags_of)
    _name_actions()
    evaluator = module("core.iam_evaluator")
    enforce = evaluator.enforce

    def enforce_each(key: str, action: str, service: str, *call: Any, **named: Any) -> Any:
        context = named.pop("service_context", None) or {}
        first = named.pop("resource_arn", "*")
        denied = None
        for arn in (service == "ec2" and _instances.get()) or (first,):
            tags = tags_of(arn.rpartition("/")[2]) if ":instance/" in arn else {}
            keys = context | {f"ec2:ResourceTag/{name}": value for name, value in tags.items()}
            if service == "dynamodb" and _leading.get():
                keys["dynamodb:LeadingKeys"] = list(_leading.get())
            denied = denied or enforce(
                key, action, service, *call, resource_arn=arn, service_context=keys, **named
            )
        (refused if denied else used)[_principal(key), action] += 1
        return denied

    evaluator.enforce = enforce_each


def conditional_writes_are_seen() -> None:
    """Policies of buckets see on what condition an object is written."""
    actions = module("core.iam_actions")
    original = actions.s3_service_context

    def context(action: str, query: Any, path: str, headers: Mapping[str, str]) -> Any:
        sent = {name.lower(): value for name, value in headers.items()}
        conditions = ("if-match", "if-none-match")
        keys = {f"s3:{name}": sent[name] for name in conditions if name in sent}
        return {**original(action, query, path, headers), **keys}

    actions.s3_service_context = context


def loopback_is_secure() -> None:
    """Buckets that refuse what is not encrypted take what never leaves this machine."""
    app = module("app")
    pin = app.pin_request_origin
    app.pin_request_origin = lambda address, _secure: pin(address, True)


def _name_resources(tags_of: Callable[[str], Mapping[str, str]]) -> None:
    actions = module("core.iam_actions")
    original = actions.extract_resource_arn

    def extract(*call: Any) -> str:
        service, _method, _path, headers, body, query, region, account = call
        where = f"{region}:{account}"
        _instances.set(())
        _leading.set(tuple(_partitions(json.loads(body or b"{}"))) if service == "dynamodb" else ())
        if service == "ssm" and "GetParametersByPath" in headers.get("x-amz-target", ""):
            path = str(json.loads(body)["Path"]).rstrip("/")
            return f"arn:aws:ssm:{where}:parameter{path}"
        if service == "logs":
            # As policies name a group, all streams of it.
            return f"{original(*call)}:*"
        if service == "autoscaling" and {"InstanceId", "Tags.member.1.ResourceId"} & query.keys():
            group = actions._query_param(query, "Tags.member.1.ResourceId")
            if "InstanceId" in query:
                tags = tags_of(actions._query_param(query, "InstanceId"))
                group = tags.get("aws:autoscaling:groupName", "")
            return f"arn:aws:autoscaling:{where}:autoScalingGroup:*:autoScalingGroupName/{group}"
        if service == "ec2":
            # Under whatever name a call lists them.
            listed = (n for n in query if n.startswith(("ResourceId.", "InstanceId.")))
            named = (str(actions._query_param(query, name)) for name in listed)
            arns = tuple(f"arn:aws:ec2:{where}:instance/{one}" for one in named if one[:2] == "i-")
            _instances.set(arns)
            if arns:
                return arns[0]
        return str(original(*call))

    actions.extract_resource_arn = extract


def _partitions(request: Mapping[str, Any]) -> Iterator[str]:
    """The partitions that a call of the table names: what a policy calls its leading keys."""
    for name, value in request.items():
        if name in ("Key", "Item") and "pk" in value:
            yield value["pk"]["S"]
        elif name == "KeyConditionExpression":
            (key,) = re.findall(r"\bpk = (:\w+)", value)
            yield request["ExpressionAttributeValues"][key]["S"]
        elif isinstance(value, dict):
            yield from _partitions(value)
        elif isinstance(value, list):
            yield from (
                key for each in value if isinstance(each, dict) for key in _partitions(each)
            )


def _name_actions() -> None:
    """Name the reads of Lambda that ministack takes for a list, and for a change."""
    actions = module("core.iam_actions")
    original = actions._lambda_action

    def action(method: str, path: str) -> str | None:
        *_, kind, last = path.strip("/").split("/")
        if method == "GET" and kind == "event-source-mappings":
            return "GetEventSourceMapping"
        if method == "GET" and last == "concurrency":
            return "GetFunctionConcurrency"
        named: str | None = original(method, path)
        return named

    actions._lambda_action = action


def _principal(key: str) -> str:
    caller = module("core.iam_evaluator").resolve_caller_identity(key) or {}
    return _role(str(caller.get("userArn", key)))


def _role(arn: str) -> str:
    """A principal by its short name: `user/x`, or `role/x` for an assumed role."""
    kind, _, name = arn.rpartition(":")[2].partition("/")
    return f"role/{name.partition('/')[0]}" if kind == "assumed-role" else f"{kind}/{name}"


def permissions(account: str) -> dict[str, object]:
    """What each principal used and was refused so far, and what a role has and never used."""
    policies_of = module("core.iam_evaluator")._gather_role_policies
    granted: dict[str, object] = {}
    for principal_name in sorted({principal_name for principal_name, _ in (*used, *refused)}):
        mine = {action for one, action in used if one == principal_name}
        kind, _, role = principal_name.partition("/")
        policies = policies_of(role, account) if kind == "role" else []
        allowing = (one for policy in policies for one in policy if one.effect == "Allow")
        allowed = {action for statement in allowing for action in statement.actions}
        granted[principal_name] = {
            "used": sorted(mine),
            "refused": sorted(action for one, action in refused if one == principal_name),
            "unused": sorted(allowed - mine),
        }
    return granted


def may(function: Mapping[str, Any], action: str, resource: str) -> bool:
    """Whether the role of a function is allowed an action; without enforcement it always is."""
    if not module("app").AUTH:
        return True
    _, _, _, region, account, _ = resource.split(":", 5)
    keys = module("core.lambda_runtime").execution_credentials(function)
    evaluator = module("core.iam_evaluator")
    principal = evaluator.resolve_principal(keys["AWS_ACCESS_KEY_ID"], account)
    context = evaluator.EvalContext(
        principal_arn=principal.arn,
        principal_type=principal.type,
        principal_account=principal.account,
        action=action,
        resource_arn=resource,
        region=region,
    )
    allows = evaluator.evaluate(context, principal.policies).decision == "Allow"
    (used if allows else refused)[_role(principal.arn), action] += 1
    return bool(allows)


# --- asynchronous invocations ---------------------------------------------------------------------

# A failed invocation is tried again after one minute, then after two.
RETRY_S, LONGEST_RETRY_S, RETRIES = 60.0, 120.0, 2
# One that finds no free concurrency stays in its queue, and is tried after up to five minutes.
THROTTLED_S, LONGEST_THROTTLED_S, OLDEST_S = 1.0, 300.0, 21_600.0


def invocations_are_lambda_s() -> None:
    """Throttled events wait, failed ones are tried again, and the destination gets a record.

    Rules and schedules invoke in this way, too.
    """
    events, functions = module("services.eventbridge"), module("services.lambda_svc")

    def invoke(function: Mapping[str, Any], event: Any) -> None:
        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(_invoke, function, event), daemon=True).start()

    def dispatch(arn: str, payload: str) -> None:
        record, config, _name = functions._get_func_record_for_ref(arn)
        if record and config:
            invoke(record, json.loads(payload))

    functions.invoke_async_with_retry = invoke
    events._dispatch_to_lambda = dispatch


def _invoke(function: Mapping[str, Any], event: Any) -> None:
    """Invoke until it succeeds, or for as often and as long as the function's limits allow.

    The record of a failure is sent to its destination, which the function's role must allow.
    """
    functions, began_s = module("services.lambda_svc"), time.monotonic()
    config = function.get("config") or function
    # Of no qualifier, or as CloudFormation makes it, of the version that rules invoke.
    limits = function.get("event_invoke_config") or {}
    limits = limits or (function.get("event_invoke_configs") or {}).get("$LATEST") or {}
    retries = limits.get("MaximumRetryAttempts")
    oldest_s = float(limits.get("MaximumEventAgeInSeconds") or OLDEST_S)
    account, region = functions._account_region_from_function_config(config)
    functions._request_account_id.set(account)
    functions._request_region.set(region)
    failures = throttles = 0
    while True:
        result = functions._execute_function(function, event)
        if output := result.get("log"):
            functions.logger.info("%s\n%s", config.get("FunctionName"), output)
        if not result.get("error"):
            return
        if result.get("throttle"):
            wait_s = min(LONGEST_THROTTLED_S, THROTTLED_S * 2.0**throttles)
            throttles += 1
        else:
            failures += 1
            wait_s = min(LONGEST_RETRY_S, RETRY_S * failures)
        exhausted = failures > (RETRIES if retries is None else int(retries))
        if exhausted or time.monotonic() - began_s + wait_s > oldest_s:
            break
        time.sleep(wait_s)
    functions.dropped(config)
    record: dict[str, Any] = {
        "version": "1.0",
        "timestamp": datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="milliseconds"),
        "requestContext": {
            "requestId": str(uuid4()),
            "functionArn": f"{config.get('FunctionArn', '')}:$LATEST",
            "condition": "RetriesExhausted" if exhausted else "EventAgeExceeded",
            "approximateInvokeCount": failures,
        },
        "requestPayload": event,
    }
    if not result.get("throttle"):
        record["responseContext"] = {
            "statusCode": 200,
            "executedVersion": "$LATEST",
            "functionError": "Unhandled",
        }
        record["responsePayload"] = result.get("body")
    on_failure = (limits.get("DestinationConfig") or {}).get("OnFailure") or {}
    target = on_failure.get("Destination", "")
    if target and may(config, "sqs:SendMessage", target):
        send_message(target.rpartition(":")[2], json.dumps(record))


# --- functions and their processes ----------------------------------------------------------------


def functions_have_only_their_layers() -> None:
    """A function sees the standard library and its layers, not what the endpoint is made of."""
    runtime = module("core.lambda_runtime")
    original = runtime._detect_runtime_binary

    def binary(name: str) -> tuple[str, str]:
        path, script = original(name)
        base: str = sys._base_executable  # type: ignore[attr-defined]
        return (base if path == sys.executable else path), script

    runtime._detect_runtime_binary = binary


def archives_are_unpacked_once() -> None:
    """A new process finds code and layers in place, as on AWS; it waits for its own start only."""
    runtime = module("core.lambda_runtime")
    unpacked = Path(tempfile.mkdtemp(prefix="layers-"))
    lock = threading.Lock()

    class UnpackedOnce(zipfile.ZipFile):
        def extractall(self, path: Any = None, members: Any = None, pwd: Any = None) -> None:
            digest = hashlib.sha256(Path(str(self.filename)).read_bytes()).hexdigest()
            with lock:
                if not (unpacked / digest).exists():
                    super().extractall(unpacked / "part", members, pwd)
                    (unpacked / "part").rename(unpacked / digest)
            for entry in (unpacked / digest).iterdir():
                (Path(path) / entry.name).symlink_to(entry)

    runtime.zipfile = SimpleNamespace(**vars(zipfile) | {"ZipFile": UnpackedOnce})


RAISED = """            failed = {
                "errorMessage": str(e),
                "errorType": type(e).__name__,
                "requestId": context.aws_request_id,
                "stackTrace": traceback.format_tb(e.__traceback__),
            }
            traceback.print_exc()
            _real_stdout.write(json.dumps({"status": "ok", "result": {"_raised": failed}}) + "\\n")
"""
UNTOLD = re.compile(
    r' +_real_stdout\.write\(json\.dumps\(\{"status": "error", "error": str\(e\), "trace".*\n'
)


def exceptions_have_their_type() -> None:
    """A handler's exception is answered with its type and trace, and its process lives on."""
    runtime, functions = module("core.lambda_runtime"), module("services.lambda_svc")
    script, count = UNTOLD.subn(lambda _: RAISED, runtime._PYTHON_WORKER_SCRIPT)
    if count != 1:
        raise SeamError("the script that runs handlers has another form")
    runtime._PYTHON_WORKER_SCRIPT = script
    original = functions._execute_function_warm

    def execute(func: Any, event: Any, request_id: str) -> Any:
        result = original(func, event, request_id)
        body = result.get("body")
        if not (isinstance(body, dict) and "_raised" in body):
            return result
        return {"body": body["_raised"], "error": True, "log": result.get("log", "")}

    functions._execute_function_warm = execute


LOOK_EVERY_S = 0.02


def processes_start_in_turn() -> None:
    """A function's processes start one at a time; a waiting call takes a free one first.

    Simultaneous events would otherwise each start one, and slow each other down.
    """
    runtime, functions = module("core.lambda_runtime"), module("services.lambda_svc")
    acquire = runtime.acquire_worker
    starting: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def is_free(key: str) -> bool:
        with runtime._lock:
            return any(not worker.in_use for worker in runtime._workers.get(key, ()))

    def acquire_in_turn(
        name: str, config: Any, code: bytes, qualifier: str = "$LATEST", **rest: Any
    ) -> Any:
        key = runtime._worker_key(name, config, qualifier)
        turn = starting[key]
        while not is_free(key):
            if not turn.acquire(timeout=LOOK_EVERY_S):
                continue
            try:
                worker, how = acquire(name, config, code, qualifier=qualifier, **rest)
                # What does not start says why when it is invoked.
                with suppress(RuntimeError):
                    runtime.ensure_spawned(worker)
                return worker, how
            finally:
                turn.release()
        return acquire(name, config, code, qualifier=qualifier, **rest)

    functions.acquire_worker = acquire_in_turn


def logs_end_with_their_function() -> None:
    """What a deleted function still logs does not make its log group anew."""
    functions = module("services.lambda_svc")
    emit = functions._emit_lambda_logs

    def emit_of_the_living(function: Any, *call: Any, **named: Any) -> None:
        config = function.get("config") or function
        if functions._functions.get(config.get("FunctionName")) is not None:
            emit(function, *call, **named)

    functions._emit_lambda_logs = emit_of_the_living


def kill_workers(function: str) -> int:
    """Kill the processes of a function, at work or not, and wait for their end; count them."""
    runtime = module("core.lambda_runtime")
    processes = [
        worker
        for workers in runtime._workers.values()
        for worker in workers
        if function in worker.func_name and worker._proc is not None
    ]
    for worker in processes:
        worker._proc.kill()
        # One that is about to end still counts as alive, and gets the next invocation.
        worker._proc.wait()
    return len(processes)


def end() -> None:
    """End every process of every function."""
    module("core.lambda_runtime").reset()
