"""How a stack launches the machines of its jobs: launch template, role, subnets and bucket."""

from spotkeeper.adapters.doctor.groups import Defaults, LaunchTemplates, template_of
from spotkeeper.adapters.doctor.looking import Clients, look
from spotkeeper.adapters.stacks import Stack
from spotkeeper.domain.doctor.facts import JobFacts, Unseen, known


def job_facts(client: Clients, stack: Stack, defaults: Defaults) -> JobFacts | None:
    """Look at what the jobs of a stack need; None for a stack without jobs."""
    bucket = stack.outputs.get("JobBucket")
    if bucket is None:
        return None
    parameters = stack.parameters
    template = template_of(
        client,
        parameters.get("JobLaunchTemplateId", ""),
        parameters.get("JobLaunchTemplateVersion", "$Default"),
    )
    data = {} if isinstance(template, Unseen) else template
    launch = LaunchTemplates(client, [data]).of(data, known(defaults, {}), mixed=False)
    return JobFacts(
        launch_template=template if isinstance(template, Unseen) else launch,
        on_shutdown=data.get("InstanceInitiatedShutdownBehavior", "stop"),
        policy=stack.outputs.get("JobMachinesPolicy", ""),
        zones=look(
            "ec2:DescribeSubnets",
            lambda: frozenset(
                subnet["AvailabilityZone"]
                for subnet in client("ec2").describe_subnets(
                    SubnetIds=parameters.get("JobSubnetIds", "").split(",")
                )["Subnets"]
            ),
        ),
        bucket=look(
            "s3:ListBucket", lambda: bool(client("s3").list_objects_v2(Bucket=bucket, MaxKeys=1))
        ),
    )
