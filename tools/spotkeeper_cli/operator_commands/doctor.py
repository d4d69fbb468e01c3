"""`spotkeeper doctor`: what is wrong with the account, the stack and its groups."""

from typing import Annotated

import typer

from spotkeeper_cli.errors import asked_of_aws
from spotkeeper_cli.options import DEFAULT_STACK, AsJson, FleetName, Profile, Region, Stack

SpotGroup = Annotated[
    str | None, typer.Option("--spot-group", help="Before there is a stack: a group to adopt.")
]
OnDemandGroup = Annotated[
    str | None, typer.Option("--on-demand-group", help="And the one that is to fill its gaps.")
]
SpotMax = Annotated[int, typer.Option("--spot-max", min=0, help="Of the stack to be.")]
OnDemandMax = Annotated[int, typer.Option("--on-demand-max", min=0, help="Of the stack to be.")]


def doctor(
    stack: Stack = DEFAULT_STACK,
    fleet: FleetName = None,
    spot_group: SpotGroup = None,
    on_demand_group: OnDemandGroup = None,
    spot_max: SpotMax = 20,
    on_demand_max: OnDemandMax = 20,
    json: AsJson = False,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Find what is wrong: exit code 0 for nothing, 1 for warnings and unknowns, 2 for errors."""
    from spotkeeper import wiring
    from spotkeeper.domain.doctor.finding import exit_code
    from spotkeeper_operator.aws import Aws
    from spotkeeper_operator.doctor.doctor_text import doctor_json, doctor_text
    from spotkeeper_operator.doctor.examine_account import examine_groups, examine_stack

    if (spot_group is None) != (on_demand_group is None):
        raise typer.BadParameter("give --spot-group and --on-demand-group together")
    if spot_group is not None and spot_group == on_demand_group:
        raise typer.BadParameter(f"{spot_group} is given as both groups; a fleet needs two")
    with asked_of_aws():
        aws, now = Aws(region, profile), wiring.now()
        if spot_group and on_demand_group:
            found = examine_groups(aws, spot_group, on_demand_group, spot_max, on_demand_max, now)
        else:
            found = examine_stack(aws, stack, fleet, now)
        typer.echo(doctor_json(found) if json else doctor_text(found), nl=False)
        raise typer.Exit(exit_code(found))
