"""Each seam of the endpoint, over the wire: what a new release of ministack has to pass."""

import json
from collections.abc import Callable

import pytest
from botocore.exceptions import ClientError

from spotkeeper_lab.aws.answers import LAUNCH_TEMPLATE
from spotkeeper_lab.aws.wire import ACCOUNT, REGION
from spotkeeper_lab.faults import Kind
from spotkeeper_lab.run.serve import IMAGES
from tests.endpoint.conftest import (
    CHECKOUT,
    SETTINGS,
    Endpoint,
    allow,
    destination,
    policy,
    received,
    typed,
    until,
    user_keys,
)


def user(endpoint: Endpoint, name: str, *statements: dict[str, object]) -> dict[str, str]:
    """The keys of a new user who has some permissions."""
    key, secret = user_keys(endpoint, name, policy(*statements))
    return {"aws_access_key_id": key, "aws_secret_access_key": secret}


def spot(endpoint: Endpoint) -> list[str]:
    (group,) = endpoint.aws("autoscaling").describe_auto_scaling_groups(
        AutoScalingGroupNames=[SETTINGS.spot_group]
    )["AutoScalingGroups"]
    return [one["InstanceId"] for one in group["Instances"]]


def test_awss_own_parameters_exist_and_are_read_only(endpoint: Endpoint) -> None:
    ssm = endpoint.aws("ssm")
    for name in IMAGES:
        assert ssm.get_parameter(Name=name)["Parameter"]["Value"].startswith("ami-")
        with pytest.raises(ClientError, match="reserved parameter name"):
            ssm.put_parameter(Name=name, Value="ami-1", Type="String", Overwrite=True)


def test_a_function_sees_nothing_of_the_endpoint(
    endpoint: Endpoint, role: Callable[..., str], function: Callable[..., str]
) -> None:
    source = """
        import importlib.util
        def handler(event, context):
            return [name for name in event if importlib.util.find_spec(name)]
    """
    function("sees", role("sees"), source)
    asked = json.dumps(["json", "ministack", "moto", "spotkeeper", "spotkeeper_lab"])
    answer = endpoint.aws("lambda").invoke(FunctionName="sees", Payload=asked)
    assert json.load(answer["Payload"]) == ["json"]


def test_an_invocation_by_a_rule_that_failed_reaches_its_destination_after_no_retry(
    endpoint: Endpoint, role: Callable[..., str], function: Callable[..., str]
) -> None:
    source = """
        def handler(event, context):
            raise LookupError("nothing here")
    """
    target = function("fails", role("fails", allow("sqs:SendMessage")), source)
    queue = destination(endpoint, "failed", "fails")
    rules = endpoint.aws("events")
    rules.put_rule(Name="fails", EventPattern=json.dumps({"source": ["test"]}))
    rules.put_targets(Rule="fails", Targets=[{"Id": "1", "Arn": target}])
    rules.put_events(Entries=[{"Source": "test", "DetailType": "t", "Detail": "{}"}])

    record = json.loads(received(endpoint, queue))
    assert record["requestContext"]["approximateInvokeCount"] == 1
    assert record["requestContext"]["condition"] == "RetriesExhausted"
    assert record["requestPayload"]["source"] == "test"
    assert record["responsePayload"]["errorMessage"] == "nothing here"
    assert record["responsePayload"]["errorType"] == "LookupError"


def test_a_warning_reaches_the_targets_of_a_rule(endpoint: Endpoint) -> None:
    queue = endpoint.aws("sqs").create_queue(QueueName="warnings")["QueueUrl"]
    rules = endpoint.aws("events")
    pattern = {"source": ["aws.ec2"], "detail-type": ["EC2 Spot Instance Interruption Warning"]}
    rules.put_rule(Name="warnings", EventPattern=json.dumps(pattern))
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:warnings"
    rules.put_targets(Rule="warnings", Targets=[{"Id": "1", "Arn": arn}])
    until(lambda: len(spot(endpoint)) == SETTINGS.desired, within_s=120, what="a whole group")
    taken = endpoint.order(do=Kind.LOSS)
    event = json.loads(received(endpoint, queue))
    assert event["detail"] == {"instance-id": taken, "instance-action": "terminate"}
    assert event["resources"] == [f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/{taken}"]


def test_tagging_is_allowed_by_the_group_of_an_instance(endpoint: Endpoint) -> None:
    by_group = {
        "StringLike": {"ec2:ResourceTag/aws:autoscaling:groupName": [SETTINGS.spot_group]},
        "ForAllValues:StringEquals": {"aws:TagKeys": ["mine"]},
    }
    instances = f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/*"
    keys = user(endpoint, "tagger", allow("ec2:CreateTags", instances, Condition=by_group))
    ec2 = endpoint.aws("ec2", **keys)
    member = spot(endpoint)[0]
    ec2.create_tags(Resources=[member], Tags=[{"Key": "mine", "Value": "1"}])
    for resource, key in ((member, "other"), ("i-0abc1234def567890", "mine")):
        with pytest.raises(ClientError, match="UnauthorizedOperation"):
            ec2.create_tags(Resources=[resource], Tags=[{"Key": key, "Value": "1"}])
    with pytest.raises(ClientError, match="UnauthorizedOperation"):
        ec2.create_tags(
            Resources=[member, "i-0abc1234def567890"], Tags=[{"Key": "mine", "Value": "1"}]
        )


@pytest.mark.parametrize(("group", "refused"), [(SETTINGS.spot_group, False), ("other", True)])
def test_replacing_is_allowed_by_the_group_of_an_instance(
    endpoint: Endpoint, group: str, refused: bool
) -> None:
    arn = f"arn:aws:autoscaling:*:*:autoScalingGroup:*:autoScalingGroupName/{group}"
    keys = user(endpoint, f"replacer-{group}", allow("autoscaling:SetInstanceHealth", arn))
    client = endpoint.aws("autoscaling", **keys)
    asked = {"InstanceId": spot(endpoint)[0], "HealthStatus": "Unhealthy"}
    if refused:
        with pytest.raises(ClientError, match="AccessDenied"):
            client.set_instance_health(**asked)
    else:
        client.set_instance_health(**asked)


def test_parameters_are_allowed_by_their_path(endpoint: Endpoint) -> None:
    arn = f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/mine"
    keys = user(endpoint, "reader", allow("ssm:GetParametersByPath", arn))
    ssm = endpoint.aws("ssm", **keys)
    ssm.get_parameters_by_path(Path="/mine")
    with pytest.raises(ClientError, match="AccessDenied"):
        ssm.get_parameters_by_path(Path="/other")
    with pytest.raises(ClientError, match="AccessDenied"):
        endpoint.aws("sqs", **keys).list_queues()
    seen = endpoint.look("permissions")["user/reader"]
    by_path = "ssm:GetParametersByPath"
    assert (seen["used"], seen["refused"]) == ([by_path], ["sqs:ListQueues", by_path])


def test_reading_a_mapping_or_a_concurrency_is_allowed_by_its_own_name(endpoint: Endpoint) -> None:
    """The doctor reads both; ministack took them for ListEventSourceMappings and a Put."""
    allowed = ("lambda:GetEventSourceMapping", "lambda:GetFunctionConcurrency")
    functions = endpoint.aws("lambda", **user(endpoint, "doctor", *map(allow, allowed)))
    with pytest.raises(ClientError, match="ResourceNotFound"):
        functions.get_event_source_mapping(UUID="00000000-0000-0000-0000-000000000000")
    with pytest.raises(ClientError, match="ResourceNotFound"):
        functions.get_function_concurrency(FunctionName="nobody")
    with pytest.raises(ClientError, match="AccessDenied"):
        functions.list_event_source_mappings()
    assert endpoint.look("permissions")["user/doctor"]["used"] == sorted(allowed)


def test_the_doctor_finds_no_error_of_the_labs_groups(endpoint: Endpoint) -> None:
    groups = f"--spot-group {SETTINGS.spot_group} --on-demand-group {SETTINGS.on_demand_group}"
    told = typed(f"spotkeeper doctor {groups}", endpoint.environment, CHECKOUT / ".venv/bin")
    assert ("one-instance-type" in told.stdout, "ERROR" in told.stdout) == (True, False)


def test_a_missing_resource_is_refused_by_name(endpoint: Endpoint) -> None:
    """The drill needs FIS, the doctor's quotas Service Quotas; stacks create groups."""
    with pytest.raises(ClientError, match="fis is not simulated by the local AWS"):
        endpoint.aws("fis").list_experiments()
    with pytest.raises(ClientError, match="servicequotas is not simulated by the local AWS"):
        endpoint.aws("service-quotas").list_service_quotas(ServiceCode="ec2")
    with pytest.raises(ClientError, match="CreateAutoScalingGroup is not simulated"):
        endpoint.aws("autoscaling").create_auto_scaling_group(
            AutoScalingGroupName="x", MinSize=0, MaxSize=1, AvailabilityZones=[f"{REGION}a"]
        )


def test_a_killed_process_is_followed_by_another_with_the_same_copy_of_the_code(
    endpoint: Endpoint, role: Callable[..., str], function: Callable[..., str]
) -> None:
    source = """
        import os
        def handler(event, context):
            return [os.getpid(), os.path.realpath(__file__)]
    """
    # All whose names contain it are killed, so those of a stack may not.
    function("IsKilled", role("killed"), source)
    client = endpoint.aws("lambda")

    def seen() -> tuple[int, str]:
        process, place = json.load(client.invoke(FunctionName="IsKilled")["Payload"])
        return process, place

    process, place = seen()
    assert seen() == (process, place)
    assert endpoint.order(do="kill-function", function="IsKilled") == "1 processes killed"
    other, same = seen()
    assert (other != process, same) == (True, place)


def test_an_alarm_on_what_functions_print_rings_and_tells_its_topic(
    endpoint: Endpoint, role: Callable[..., str], function: Callable[..., str]
) -> None:
    """And names the fleet for which it rings."""
    source = """
        import json
        def handler(event, context):
            metric = {"Namespace": "Spotkeeper", "Dimensions": [["service", "fleet"]],
                      "Metrics": [{"Name": "Short", "Unit": "Count"}]}
            print(json.dumps({"_aws": {"CloudWatchMetrics": [metric]},
                              "service": "seam", "fleet": "main", "Short": [1]}))
    """
    function("prints", role("prints"), source)
    topic = endpoint.aws("sns").create_topic(Name="rings")["TopicArn"]
    arn = f"arn:aws:sqs:{REGION}:{ACCOUNT}:rings"
    takes = policy(allow("sqs:SendMessage", arn, Principal={"Service": "sns.amazonaws.com"}))
    queue = endpoint.aws("sqs").create_queue(QueueName="rings", Attributes={"Policy": takes})
    endpoint.aws("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
    query = "SELECT MAX(Short) FROM SCHEMA(Spotkeeper, service, fleet) WHERE service = 'seam'"
    alarm = {
        "AlarmName": "seam", "AlarmActions": [topic], "EvaluationPeriods": 1, "Threshold": 0,
        "ComparisonOperator": "GreaterThanThreshold", "TreatMissingData": "notBreaching",
        "Metrics": [{"Id": "q", "Period": 60, "Expression": f"{query} GROUP BY fleet"}],
    }  # fmt: skip
    body = {"Resources": {"Rings": {"Type": "AWS::CloudWatch::Alarm", "Properties": alarm}}}
    endpoint.aws("cloudformation").create_stack(StackName="seam", TemplateBody=json.dumps(body))
    endpoint.aws("lambda").invoke(FunctionName="prints")
    endpoint.post("skip", 60.0)
    told = json.loads(json.loads(received(endpoint, queue["QueueUrl"]))["Message"])
    assert (told["AlarmName"], told["NewStateValue"]) == ("seam", "ALARM")
    assert told["NewStateReason"] == "main"
    [seen] = endpoint.aws("cloudwatch").describe_alarms(AlarmNames=["seam"])["MetricAlarms"]
    assert seen["StateValue"] == "ALARM"


def test_a_launch_template_that_lacks_something_is_refused_or_launches_nothing(
    endpoint: Endpoint,
) -> None:
    ec2, groups = endpoint.aws("ec2"), endpoint.aws("autoscaling")
    template = LAUNCH_TEMPLATE["LaunchTemplateId"]
    lost = ec2.create_security_group(GroupName="lost", Description="lost")["GroupId"]
    made = ec2.create_launch_template_version(
        LaunchTemplateId=template,
        SourceVersion="8",
        LaunchTemplateData={"SecurityGroupIds": [lost]},
    )

    def refresh(version: str) -> None:
        spec = {"LaunchTemplate": {"LaunchTemplateId": template, "Version": version}}
        groups.start_instance_refresh(AutoScalingGroupName="ocr-spot", DesiredConfiguration=spec)

    with pytest.raises(ClientError, match="specified version 99"):
        refresh("99")
    with pytest.raises(ClientError, match="VersionNotFound"):
        ec2.describe_launch_template_versions(LaunchTemplateId=template, Versions=["99"])
    refresh(str(made["LaunchTemplateVersion"]["VersionNumber"]))
    ec2.delete_security_group(GroupId=lost)
    told = f"The security group '{lost}' does not exist. Launching EC2 instance failed."

    def failed() -> bool:
        found = groups.describe_scaling_activities(AutoScalingGroupName="ocr-spot")["Activities"]
        return any(one.get("StatusMessage") == told for one in found)

    until(failed, within_s=60, what="a launch that fails")
    groups.cancel_instance_refresh(AutoScalingGroupName="ocr-spot")
