"""A stack that creates both groups, and a warm pool: deployed, and deleted with its instances."""

from typing import Any

from tests.endpoint.conftest import Endpoint, until

STACK = "created"


def groups(endpoint: Endpoint) -> dict[str, Any]:
    return {one["name"]: one for one in endpoint.look("state")["groups"]}


def test_a_stack_makes_its_groups_and_takes_them_with_it(endpoint: Endpoint) -> None:
    ec2 = endpoint.aws("ec2")
    template = ec2.create_launch_template(
        LaunchTemplateName="worker", LaunchTemplateData={"ImageId": "ami-12345678"}
    )["LaunchTemplate"]["LaunchTemplateId"]
    subnets = [one["SubnetId"] for one in ec2.describe_subnets()["Subnets"]][:2]
    before = groups(endpoint)
    endpoint.deploy(
        f"LaunchTemplateId={template}",
        f"SubnetIds={','.join(subnets)}",
        'InstanceTypes=""',
        "Vcpus=4",
        "GpuMemoryGib=24",
        "Accelerator=a10g,l4",
        "SpotMin=2",
        "WarmPoolSize=1",
        stack=STACK,
    )
    made = groups(endpoint)
    assert set(made) - set(before) == {f"{STACK}-spot", f"{STACK}-on-demand"}
    # The types by attributes: a g5.xlarge of the lab's market has them.
    assert made[f"{STACK}-spot"]["purchase"] == "spot"
    assert made[f"{STACK}-on-demand"]["purchase"] == "on-demand"

    endpoint.aws("autoscaling").set_desired_capacity(
        AutoScalingGroupName=f"{STACK}-spot", DesiredCapacity=2
    )

    def whole() -> bool:
        instances = groups(endpoint)[f"{STACK}-spot"]["instances"]
        return [one["state"] for one in instances] == ["InService"] * 2

    until(whole, within_s=120, what="two spot instances")
    endpoint.sam("delete", "--no-prompts", "--stack-name", STACK)
    assert set(groups(endpoint)) == set(before)
