"""A virtual day of a fleet in several regions, by the deployed turns of each, as a page."""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from spotkeeper_charts.page import Chart, Page, Series, Text, Timeline, changed, page_html
from spotkeeper_lab.backtest.bounds import limit
from spotkeeper_lab.backtest.regions import ends, played, replays_of
from spotkeeper_lab.backtest.world import World, account
from spotkeeper_lab.cloud.values import Purchase
from spotkeeper_lab.files import write_whole
from spotkeeper_lab.traces.market import Market, generate

REGIONS = ("us-west-2", "us-east-1", "eu-west-1", "ap-south-1")
NEED, MINUTE_S = 4, 60.0
CURVES = {"capacity": "line", "cover": "target", "spot": "spot", "on demand": "on-demand"}
type Progress = Callable[[int, int, str], None]


def market_of_regions(count: int, hours: float, seed: int) -> Market:
    """A generated market with two zones in each region."""
    pools = [f"{region}{zone}/g5.xlarge" for region in REGIONS[:count] for zone in "ab"]
    return generate(seed, pools, hours)


def run_regions_demo(
    window: Market, price_ratio: float, out: Path, console: Console, progress: Progress
) -> Path:
    """Run a fleet of four over all regions of a market; returns the page that it wrote."""
    world = World(target=NEED, price_ratio=price_ratio, notice_s=120.0)
    replays = replays_of(window, world, {})
    curves = {region: {name: list[float]() for name in CURVES} for region in replays}
    times, end_s = list[float](), window.end_s
    for at_s in played(replays, end_s):
        if times and at_s < times[-1] + MINUTE_S:
            continue
        times.append(at_s)
        progress(int(at_s), int(end_s), "regions")
        for region, one in replays.items():
            views = [v for v in one.replay.cloud.instances() if v.ended_s is None]
            own, share = window.within(region), one.port.tables.get((region, "share"))
            held = sum(own.capacity(pool, at_s) for pool in own.pools)
            for name, value in (
                ("capacity", min(held, 2 * NEED)),
                ("cover", share.cover if share else 0),
                ("spot", sum(v.purchase is Purchase.SPOT for v in views)),
                ("on demand", sum(v.purchase is Purchase.ON_DEMAND for v in views)),
            ):
                curves[region][name].append(value)
    done, least = account(ends(replays, window), window, world), limit(window, world)
    told = (
        f"{NEED} instances in {', '.join(replays)}: served {done.served_share:.2%} of the time at "
        f"{done.cost:.1%} of on-demand; the limit is {least.cost:.1%}. {done.losses} losses"
    )
    charts = [_chart(region, times, each) for region, each in curves.items()]
    page = Page(
        title="A day of a fleet in several regions",
        footer="The home is the first region. Cover is what a region must serve by its own means.",
        blocks=[Text("The day", told), Timeline(length_s=end_s, one_scale=True, charts=charts)],
    )
    out.mkdir(parents=True, exist_ok=True)
    path = out / "report.html"
    write_whole(path, page_html(page))
    console.print(told)
    console.print(str(path))
    return path


def _chart(region: str, times: list[float], curves: dict[str, list[float]]) -> Chart:
    series = []
    for name, colour in CURVES.items():
        t, values = changed(times, curves[name])
        series.append(Series(label=name, colour=colour, t=t, values=values))  # type: ignore[arg-type]
    return Chart(title=region, unit="instances", height=110, whole=True, series=series)
