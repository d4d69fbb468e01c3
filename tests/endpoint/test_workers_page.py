"""docs/workers.md by its own commands: from nothing to a fleet that serves, in the local AWS.

What is replaced in a line is what the page says is somebody's own: ids that a command before it
printed, subnets, a security group.
"""

import base64
import gzip
import os
import re

from tests.endpoint.conftest import CHECKOUT, Endpoint, types, until
from tests.worker.page import of

QUEUE = "requests"
STACKS = ("spotkeeper", "ocr-workers")


def asked(begins: str, **own: str) -> str:
    """The page's line that begins so, with what is one's own in the place of its examples."""
    (line,) = of(begins)
    for example, mine in own.items():
        line, replaced = re.subn(rf"(?<=\b{example}=)[^ ]+", mine, line)
        assert replaced == 1, example
    return line


def test_a_stack_of_workers_and_one_of_spotkeeper(endpoint: Endpoint) -> None:
    path = CHECKOUT / ".venv-sam/bin"
    ec2, sqs = endpoint.aws("ec2"), endpoint.aws("sqs")
    subnets = [one["SubnetId"] for one in ec2.describe_subnets()["Subnets"]][:2]
    group = ec2.create_security_group(GroupName="workers", Description="out")["GroupId"]
    requests = sqs.create_queue(QueueName=QUEUE)["QueueUrl"]

    types(asked("make release"), dict(os.environ), path)
    endpoint.aws("s3").create_bucket(Bucket="my-bucket")
    types(asked("aws s3 cp"), endpoint.environment, path)
    types(asked("aws cloudformation deploy", SecurityGroupIds=group), endpoint.environment, path)
    told = types(asked("aws cloudformation describe-stacks"), endpoint.environment, path)
    made = dict(re.findall(r"\|\s+(LaunchTemplateId|WorkerRole)\s+\|\s+(\S+)\s+\|", told))
    starts_with_its_user_data(endpoint, made["LaunchTemplateId"], group)

    deploy = asked("sam deploy", SubnetIds=",".join(subnets), **made)
    types(deploy, endpoint.environment, path)
    names = {one["name"] for one in endpoint.look("state")["groups"]}
    assert {"spotkeeper-spot", "spotkeeper-on-demand"} <= names
    assert may_complete_hooks(endpoint, made["WorkerRole"])

    # At zero until there is something to do.
    sqs.send_message(QueueUrl=requests, MessageBody="a page")
    until(lambda: serves(endpoint), within_s=240, what="the request has a machine")
    for stack in STACKS:
        endpoint.sam("delete", "--no-prompts", "--stack-name", stack)
    sqs.delete_queue(QueueUrl=requests)
    ec2.delete_security_group(GroupId=group)


def starts_with_its_user_data(endpoint: Endpoint, template: str, group: str) -> None:
    (version,) = endpoint.aws("ec2").describe_launch_template_versions(LaunchTemplateId=template)[
        "LaunchTemplateVersions"
    ]
    data = version["LaunchTemplateData"]
    config = CHECKOUT / "dist/ecs-gpu.cloud-config.yaml"
    assert gzip.decompress(base64.b64decode(data["UserData"])) == config.read_bytes()
    assert data["ImageId"].startswith("ami-")
    assert data["SecurityGroupIds"] == [group]
    assert data["MetadataOptions"]["HttpPutResponseHopLimit"] == 1


def may_complete_hooks(endpoint: Endpoint, role: str) -> bool:
    """Whether Spotkeeper's stack gave the workers' role what the agent does."""
    iam = endpoint.aws("iam")
    found: list[object] = [
        iam.get_role_policy(RoleName=role, PolicyName=name)
        for name in iam.list_role_policies(RoleName=role)["PolicyNames"]
    ]
    for one in iam.list_attached_role_policies(RoleName=role)["AttachedPolicies"]:
        arn = one["PolicyArn"]
        version = iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
        found.append(iam.get_policy_version(PolicyArn=arn, VersionId=version))
    return "autoscaling:CompleteLifecycleAction" in str(found)


def serves(endpoint: Endpoint) -> bool:
    (group,) = (one for one in endpoint.look("state")["groups"] if one["name"] == "spotkeeper-spot")
    return any(one["state"] == "InService" for one in group["instances"])
