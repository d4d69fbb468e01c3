"""`spotkeeper demo`: a virtual day through the deployed functions."""

from pathlib import Path
from typing import Annotated

import typer

from spotkeeper_cli.errors import told
from spotkeeper_cli.options import MeanRate
from spotkeeper_cli.output import remark, screen

Market = Annotated[Path | None, typer.Option(help="Market trace; without it one is generated.")]
Requests = Annotated[
    Path | None, typer.Option(help="Request trace, begun again when it is shorter.")
]
Hours = Annotated[float, typer.Option(min=0.1, help="How many virtual hours.")]
Start = Annotated[float, typer.Option(min=0.0, help="First hour of the traces.")]
Seed = Annotated[int, typer.Option(min=0, help="Of what is generated and of chance.")]
Out = Annotated[Path, typer.Option(help="Folder of the results.")]
Dashboard = Annotated[Path | None, typer.Option(hidden=True, help="Ignored.")]
OnPrem = Annotated[int, typer.Option(min=0, help="Workers of your own, outside AWS.")]
WarmPool = Annotated[
    int | None,
    typer.Option(min=0, help="Stopped on-demand instances. Default: the peak's need."),
]
PriceRatio = Annotated[
    float, typer.Option(min=0.01, max=1.0, help="Spot price over on-demand price.")
]
Incidents = Annotated[
    bool, typer.Option(help="Make a worker hang, launches fail, search logs stop.")
]


def demo(
    market: Market = None,
    requests: Requests = None,
    mean_rate: MeanRate = None,
    hours: Hours = 24.0,
    start: Start = 0.0,
    seed: Seed = 0,
    out: Out = Path("demo-out"),
    dashboard: Dashboard = None,
    onprem: OnPrem = 0,
    warm_pool: WarmPool = None,
    price_ratio: PriceRatio = 0.30,
    incidents: Incidents = True,
) -> None:
    """Run a virtual day of spot capacity and requests through the deployed functions."""
    from spotkeeper_lab.checkout import NotACheckout
    from spotkeeper_lab.run.day import DemoSettings
    from spotkeeper_lab.run.demo import DemoError, run_demo
    from spotkeeper_lab.traces.generate import generate
    from spotkeeper_lab.traces.market import MarketError
    from spotkeeper_lab.traces.market_file import read_market
    from spotkeeper_lab.traces.requests import (
        RequestTraceError,
        generate_requests,
        read_request_traces,
    )

    if dashboard:
        remark(["--dashboard is ignored: the stack's dashboard is no longer drawn by the demo"])
    with told(DemoError, MarketError, NotACheckout, RequestTraceError):
        end_h = start + hours
        asked = [requests] if requests else []
        read = read_request_traces(asked, seed=seed, mean_rate_per_s=mean_rate)
        remark(trace.note for trace in read)
        settings = DemoSettings(
            market=read_market(market) if market else generate(seed, hours=end_h),
            requests=read[0] if read else generate_requests(seed, hours=max(24.0, end_h)),
            hours=hours,
            start_h=start,
            seed=seed,
            incidents=incidents,
            onprem_workers=onprem,
            warm_pool=warm_pool,
            price_ratio=price_ratio,
        )
        run_demo(settings, out, screen())
