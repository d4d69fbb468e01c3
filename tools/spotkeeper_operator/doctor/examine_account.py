"""The doctor of a stack, or of two groups before there is a stack."""

from spotkeeper.adapters.doctor.account import AccountClients
from spotkeeper.adapters.doctor.gather import DoctorClients, gather
from spotkeeper.adapters.doctor.groups import GroupClients
from spotkeeper.adapters.doctor.stack import StackClients
from spotkeeper.adapters.stacks import StackReader
from spotkeeper.domain.doctor.examine import examine
from spotkeeper.domain.doctor.finding import Finding
from spotkeeper.domain.fleet import Bounds, Fleet
from spotkeeper_operator.aws import CONFIG, Aws, chosen


def examine_stack(aws: Aws, stack_name: str, fleet: str | None) -> tuple[Finding, ...]:
    """Examine a deployed stack; raises `Gone` for an unknown one."""
    stack = StackReader(aws.cloudformation).whole(stack_name)
    documents = aws.documents(stack)
    clients = _clients(
        aws,
        StackClients(
            scheduler=aws.session.client("scheduler", config=CONFIG),
            sns=aws.session.client("sns", config=CONFIG),
            records=aws.records(stack),
        ),
    )
    return examine(gather(clients, chosen(documents.fleets, fleet), documents, stack))


def examine_groups(
    aws: Aws, spot_group: str, on_demand_group: str, spot_max: int, on_demand_max: int
) -> tuple[Finding, ...]:
    """Examine two groups that are to be adopted, and the account, before anything is deployed."""
    fleet = Fleet(
        name="main",
        spot_group=spot_group,
        on_demand_group=on_demand_group,
        bounds=Bounds(spot_min=0, spot_max=spot_max, on_demand_max=on_demand_max),
    )
    return examine(gather(_clients(aws), [fleet]))


def _clients(aws: Aws, stack: StackClients | None = None) -> DoctorClients:
    iam = aws.session.client("iam", config=CONFIG)
    return DoctorClients(
        groups=GroupClients(autoscaling=aws.autoscaling, ec2=aws.ec2, iam=iam),
        account=AccountClients(
            quotas=aws.session.client("service-quotas", config=CONFIG),
            ec2=aws.ec2,
            iam=iam,
            functions=aws.session.client("lambda", config=CONFIG),
            kms=aws.session.client("kms", config=CONFIG),
        ),
        stack=stack,
    )
