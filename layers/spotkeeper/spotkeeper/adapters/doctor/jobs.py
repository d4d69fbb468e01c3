"""How a stack launches the machines of its jobs: launch template, role, subnets and bucket."""

from spotkeeper.adapters.doctor.groups import Defaults, Machines, template_of
from spotkeeper.adapters.doctor.looking import Clients, look
from spotkeeper.adapters.stacks import Stack
from spotkeeper.domain.doctor.facts import JobFacts, Unseen, known


def job_facts(client: Clients, stack: Stack, defaults: Defaults) -> JobFacts | None:
    """Look at what the jobs of a stack need; None for a stack without jobs."""
    bucket, given = stack.outputs.get("JobBucket"), stack.parameters
    if bucket is None:
        return None
    version = given.get("JobLaunchTemplateVersion", "$Default")
    template = template_of(client, given.get("JobLaunchTemplateId", ""), version)
    seen = known(template, {})
    machine = Machines(client, [seen]).of(seen, known(defaults, {}), mixed=False)
    asked = {"SubnetIds": given.get("JobSubnetIds", "").split(",")}
    subnets = look("ec2:DescribeSubnets", lambda: client("ec2").describe_subnets(**asked))
    return JobFacts(
        machine=template if isinstance(template, Unseen) else machine,
        on_shutdown=seen.get("InstanceInitiatedShutdownBehavior", "stop"),
        policy=stack.outputs.get("JobMachinesPolicy", ""),
        zones=subnets
        if isinstance(subnets, Unseen)
        else frozenset(subnet["AvailabilityZone"] for subnet in subnets["Subnets"]),
        bucket=look(
            "s3:ListBucket", lambda: bool(client("s3").list_objects_v2(Bucket=bucket, MaxKeys=1))
        ),
    )
