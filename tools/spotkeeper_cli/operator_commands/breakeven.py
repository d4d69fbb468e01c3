"""`spotkeeper breakeven`: when a machine of one's own is cheaper."""

from typing import Annotated

import typer

from spotkeeper_cli.options import AsJson

Machine = Annotated[float, typer.Option(min=0.0, help="Its price, USD.")]
Watts = Annotated[float, typer.Option(min=0.0, help="What it draws at work.")]
Price = Annotated[
    float, typer.Option("--price", min=0.0, help="Of a cloud instance an hour, USD (spot's, say).")
]
Instances = Annotated[float, typer.Option(min=0.01, help="Cloud instances that do its work.")]
Utilisation = Annotated[
    float, typer.Option(min=0.0001, max=1.0, help="Share of the time that there is work.")
]
KwhPrice = Annotated[float, typer.Option("--kwh", min=0.0, help="Price of a kWh, USD.")]
Hosting = Annotated[float, typer.Option(min=0.0, help="Rack, line and hands, USD a month.")]
Life = Annotated[float, typer.Option(min=1.0, help="Months that the machine lasts.")]
MonthHours = Annotated[
    float, typer.Option("--month-hours", min=1.0, max=744.0, help="How many hours a month has.")
]
OwnRequests = Annotated[
    float | None, typer.Option(min=0.001, help="Requests that it serves in an hour of work.")
]
CloudRequests = Annotated[
    float | None, typer.Option(min=0.001, help="Those of the cloud instances together.")
]


def breakeven(
    machine: Machine,
    watts: Watts,
    price: Price,
    instances: Instances = 1.0,
    utilisation: Utilisation = 1.0,
    kwh: KwhPrice = 0.15,
    hosting: Hosting = 0.0,
    life: Life = 36.0,
    own_requests: OwnRequests = None,
    cloud_requests: CloudRequests = None,
    month_hours: MonthHours = 730.0,
    json: AsJson = False,
) -> None:
    """Say after how many months a machine of your own is cheaper than the cloud."""
    from spotkeeper_operator.money import breakeven as pure
    from spotkeeper_operator.money.breakeven_text import breakeven_json, breakeven_text

    found = pure.breakeven(
        pure.OwnMachine(
            price=machine,
            watts=watts,
            kwh_price=kwh,
            hosting_month=hosting,
            life_months=life,
            requests_per_hour=own_requests,
        ),
        pure.CloudPrice(
            hour=price,
            instances=instances,
            utilisation=utilisation,
            requests_per_hour=cloud_requests,
        ),
        month_hours,
    )
    typer.echo(breakeven_json(found) if json else breakeven_text(found), nl=False)
