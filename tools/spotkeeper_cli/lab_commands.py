"""The commands that need no AWS account: backtest, demo, replay, traces and the local AWS.

What a command needs is imported when it runs, so that help and mistakes answer at once.
"""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotkeeper_cli.options import (
    STANDARD_OUTPUT,
    WIDE,
    JsonFile,
    MeanRate,
    OutputError,
    PriceRatio,
    Profile,
    Region,
    ReportFile,
    Stack,
    check_outputs,
    counted,
    duration,
    exits_on,
    exits_on_aws_errors,
    give,
    option,
    remark,
    screen,
    write,
)
from spotkeeper_operator.text import as_json

if TYPE_CHECKING:
    from spotkeeper_lab.replay.values import MarketRow, Run
    from spotkeeper_lab.traces.market import Market
    from spotkeeper_lab.traces.requests import RequestTrace

GENERATED_H = 14 * 24.0
"""Hours of the market that is made where none is given."""
WINDOW_H = 24.0
# Of a job in a backtest, spread over the market.
JOB_STARTS = 12
# Written out, so that help needs nothing of the lab; tests/unit/test_cli.py compares.
POLICY_NAMES = (
    "on-demand, spot, static-split, even-spread, round-robin, two-group-loop, "
    "spothedge, spotkeeper, optimum, limit"
)
RULE_NAMES = (
    "fixed-peak, load-rate, aws-backlog, keda-queue, hpa, kpa, skyserve, erlang-c, "
    "square-root, spotkeeper, clairvoyant"
)

# Of a group, as a fleet document allows.
MOST_INSTANCES = 10_000
share_of = partial(option, min=0.0, max=1.0, metavar="<float>")
Seed = Annotated[int, option("Seed of the random choices.", min=0)]
OnPrem = Annotated[int, option("Workers of your own, outside AWS.", min=0)]


def backtest(
    market: Annotated[
        list[Path] | None, option("Market trace; may be given again. Default: 14 generated days.")
    ] = None,
    region: Annotated[
        str | None, option("Use only the pools of this region; a group spans one region.")
    ] = None,
    regions: Annotated[
        bool, option("Compare one fleet over all regions with fleets of one region.", "--regions")
    ] = False,
    target: Annotated[
        int, option("Instances that should serve.", min=1, max=MOST_INSTANCES, metavar="<int>")
    ] = 3,
    policy: Annotated[
        list[str] | None, option(f"Policy; may be given again. Default: all of {POLICY_NAMES}.")
    ] = None,
    price_ratio: Annotated[
        float | None,
        option(
            "Spot price over on-demand price. Default: as in the trace, else 0.30.",
            min=0.0,
            max=10.0,
            metavar="<float>",
        ),
    ] = None,
    tick: Annotated[
        float, duration("Length of a time step; at most 10m.", least=1, most=600, shown="30s")
    ] = 30.0,
    cold_start: Annotated[float, duration("Time from launch to serving.", shown="2m")] = 120.0,
    warm_start: Annotated[
        float | None, duration("Time from launch to serving, from the warm pool.")
    ] = None,
    warm_pool: Annotated[
        int, option("Instances in the warm pool.", min=0, max=MOST_INSTANCES, metavar="<int>")
    ] = 0,
    notice: Annotated[
        float, duration("Time from warning to loss; 0: no warnings.", shown="0s")
    ] = 0.0,
    notice_lost: Annotated[float, share_of("Share of warnings that are lost.")] = 0.0,
    event_delay: Annotated[float, duration("The longest delay of an event.", shown="0s")] = 0.0,
    turn_jitter: Annotated[
        float, duration("A turn begins up to this late; on AWS 59s.", most=59, shown="0s")
    ] = 0.0,
    on_demand_failure: Annotated[float, share_of("Share of on-demand launches refused.")] = 0.0,
    windows: Annotated[
        int | None,
        option("How many windows to draw. Default: the whole trace.", min=1, metavar="<int>"),
    ] = None,
    window_hours: Annotated[
        float | None, option("Length of a window. Default: 24.", min=0.01, metavar="<float>")
    ] = None,
    seed: Seed = 0,
    json: JsonFile = None,
    report: ReportFile = None,
    set: Annotated[
        list[str] | None, option("A setting of the policy.", metavar="NAME=VALUE")
    ] = None,
    job: Annotated[
        bool, option("Run a job instead of a fleet: --window-hours long, --windows times.", "--job")
    ] = False,
    deadline: Annotated[
        float, option("With --job: hours from its start to its deadline; 0: none.", min=0.0)
    ] = 0.0,
) -> None:
    """Try policies on recorded spot markets: what each would have served and cost."""
    if job:
        _backtest_job(
            market or (),
            seed,
            windows or JOB_STARTS,
            window_hours or WINDOW_H,
            price_ratio,
            deadline,
        )
        return
    from spotkeeper_lab.backtest.policies import (
        REGIONAL,
        SettingError,
        UnknownNameError,
        choose,
        configure,
    )
    from spotkeeper_lab.backtest.world import World
    from spotkeeper_lab.run import backtest as runs
    from spotkeeper_lab.traces.market import MarketError, generate, read_markets

    if window_hours is not None and windows is None:
        raise typer.BadParameter("give --windows, too: without it the whole trace is one window")
    if warm_pool and warm_start is None:
        raise typer.BadParameter("give --warm-start, too: the time a stopped instance takes")
    with exits_on(MarketError, OutputError, SettingError, UnknownNameError):
        check_outputs((json, report), market or ())
        world = World(
            target=target,
            tick_s=tick,
            cold_start_s=cold_start,
            warm_start_s=warm_start,
            warm_pool=warm_pool,
            notice_s=notice,
            notice_lost=notice_lost,
            event_delay_s=event_delay,
            turn_jitter_s=turn_jitter,
            on_demand_failure=on_demand_failure,
            price_ratio=price_ratio,
            seed=seed,
        )
        markets = read_markets(market) if market else [generate(seed, hours=GENERATED_H)]
        if region:
            markets = [each.within(region) for each in markets]
        # No Auto Scaling group can have all of these.
        if regions and (policy or region):
            raise typer.BadParameter("--regions has policies of its own, and uses all regions")
        remark(
            f"{each.name}: its pools are in {len(each.regions)} regions "
            f"({', '.join(each.regions)}), and an Auto Scaling group has one. "
            "Use --region NAME for what one group can reach."
            for each in markets
            if each.regions[1:] and not regions
        )
        hours = WINDOW_H if window_hours is None else window_hours
        cut = runs.Windows(count=windows, hours=hours, seed=seed)
        policies = configure((*REGIONAL.values(),) if regions else choose(policy or ()), set or ())
        own = {k: v for one in policies if "home" in one.settings for k, v in one.settings.items()}
        own = {name: value for name, value in own.items() if name != "home" or value}
        cores = os.cpu_count() or 1
        with counted("backtest") as show:
            if regions:
                rows = [
                    row
                    for each in markets
                    for row in runs.run_regions(
                        each, world.priced(each), cut, own, progress=show, workers=cores
                    )
                ]
            else:
                rows = runs.run_backtest(
                    markets, [world], policies, cut, progress=show, workers=cores
                )
        command = f"spotkeeper {shlex.join(sys.argv[1:])}"
        shown = runs.tables(rows, wide=screen().width >= WIDE)
        page = partial(runs.report_html, rows, command)
        answers = as_json(rows=[row.as_json() for row in rows])
        give(shown, answers, json, page, report)


def _backtest_job(
    paths: Sequence[Path],
    seed: int,
    starts: int,
    hours: float,
    price_ratio: float | None,
    deadline_h: float,
) -> None:
    """Run a job on each market, in each way that it may keep its state, or to a deadline."""
    from rich.table import Table

    from spotkeeper_lab.backtest.world import DEFAULT_PRICE_RATIO
    from spotkeeper_lab.jobs import on_market
    from spotkeeper_lab.traces.market import MarketError, generate, read_markets

    ratio = DEFAULT_PRICE_RATIO if price_ratio is None else price_ratio
    with exits_on(MarketError):
        for each in read_markets(paths) if paths else [generate(seed, hours=GENERATED_H)]:
            title = f"a job of {hours:g} h on {each.name}, {starts} starts; its pools as zones"
            title += f", due in {deadline_h:g} h" if deadline_h else ""
            columns = ("state", "median", "90th percentile", "late", "cost", "promises")
            shown = Table(*columns, title=title)
            for row in on_market(
                each, starts=starts, hours=hours, price_ratio=ratio, deadline_h=deadline_h
            ):
                wrong = ", ".join(sorted(row.broken)) or "kept"
                times = f"{row.median_h:.1f} h", f"{row.p90_h:.1f} h"
                late = f"{row.late:.1%}" if deadline_h else ""
                shown.add_row(row.name, *times, late, f"{row.cost:.1%}", wrong)
            screen().print(shown)


def demo(
    market: Annotated[Path | None, option("Market trace. Default: a generated one.")] = None,
    requests: Annotated[
        Path | None, option("Request trace; a short one is repeated. Default: a generated one.")
    ] = None,
    mean_rate: MeanRate = None,
    hours: Annotated[float, option("How many virtual hours.", min=0.1)] = 24.0,
    start: Annotated[float, option("Hour of the traces at which the run starts.", min=0.0)] = 0.0,
    seed: Seed = 0,
    out: Annotated[Path, option("Folder of the results.")] = Path("demo-out"),
    onprem: OnPrem = 0,
    warm_pool: Annotated[
        int | None, option("Instances in the warm pool. Default: as many as the peak needs.", min=0)
    ] = None,
    price_ratio: PriceRatio = 0.30,
    incidents: Annotated[
        bool, option("Let a worker hang, launches fail and search logs stop.")
    ] = True,
    regions: Annotated[
        int, option("Regions of the fleet. With several, no requests are simulated.", min=1, max=4)
    ] = 1,
) -> None:
    """Run a virtual day of spot capacity and requests through the deployed functions."""
    if regions > 1:
        _demo_of_regions(regions, market, hours, seed, price_ratio, out)
        return
    from spotkeeper_lab.checkout import NotACheckout
    from spotkeeper_lab.run.demo import DemoSettings, run_demo
    from spotkeeper_lab.traces.market import MarketError, generate, read_market
    from spotkeeper_lab.traces.requests import (
        RequestTraceError,
        generate_requests,
        read_request_traces,
    )

    with exits_on(MarketError, NotACheckout, OutputError, RequestTraceError):
        end_h = start + hours
        traces = [requests] if requests else []
        read = read_request_traces(traces, seed=seed, mean_rate_per_s=mean_rate)
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
        with counted("demo") as show:
            try:
                run_demo(settings, out, screen(), show)
            except OSError as error:
                raise OutputError(f"{out}: {error.strerror}; give another --out") from error


def _demo_of_regions(
    count: int, market: Path | None, hours: float, seed: int, price_ratio: float, out: Path
) -> None:
    """Run a day of a fleet in several regions."""
    from spotkeeper_lab.run.region_demo import market_of_regions, run_regions_demo
    from spotkeeper_lab.traces.market import MarketError, read_market

    with exits_on(MarketError, OutputError), counted("demo") as show:
        whole = read_market(market).window(0.0, 3600.0 * hours) if market else None
        window = whole or market_of_regions(count, hours, seed)
        try:
            run_regions_demo(window, price_ratio, out, screen(), show)
        except OSError as error:
            raise OutputError(f"{out}: {error.strerror}; give another --out") from error


def replay(
    requests: Annotated[list[Path], option("Request trace; may be given again.")],
    rule: Annotated[
        list[str] | None, option(f"Rule; may be given again. Default: all of {RULE_NAMES}.")
    ] = None,
    wait: Annotated[float, duration("The promised wait.", shown="10s")] = 10.0,
    share: Annotated[
        float,
        option(
            "Share of requests that should start within it.",
            min=1e-5,
            max=1 - 1e-5,
            metavar="<float>",
        ),
    ] = 0.95,
    cold_start: Annotated[float, duration("Time from launch to serving.", shown="4m")] = 240.0,
    workers_per_instance: Annotated[
        int | None,
        option(
            "Workers per instance. Default: 1; with --market, as many as fit the market.",
            min=1,
            metavar="<int>",
        ),
    ] = None,
    slots: Annotated[int, option("Requests that a worker serves at once.", min=1)] = 1,
    onprem: OnPrem = 0,
    queue_known: Annotated[
        bool, option("Spotkeeper sees the length of the request queue.", "--queue-known")
    ] = False,
    min_workers: Annotated[
        int,
        option("Fewest workers of Spotkeeper; 0: it may scale to zero.", min=0, metavar="<int>"),
    ] = 1,
    max_workers: Annotated[
        int, option("Most workers that a rule may use; with --market, the fleet's bound.", min=1)
    ] = 1_000,
    mean_rate: MeanRate = None,
    seed: Seed = 0,
    json: JsonFile = None,
    report: ReportFile = None,
    market: Annotated[Path | None, option("Market trace: run both controllers on it.")] = None,
) -> None:
    """Replay requests with every sizing rule, and show waits and worker-hours of each."""
    from spotkeeper_lab.backtest.policies import UnknownNameError
    from spotkeeper_lab.checkout import NotACheckout
    from spotkeeper_lab.replay.report import choices_table, report_html, table
    from spotkeeper_lab.replay.values import ReplayError, ReplaySettings
    from spotkeeper_lab.run import replay as replays
    from spotkeeper_lab.run.on_market import market_table, on_market
    from spotkeeper_lab.traces.market import MarketError, read_market
    from spotkeeper_lab.traces.requests import RequestTraceError, read_request_traces

    if min_workers > max_workers:
        raise typer.BadParameter(f"--min-workers is more than the {max_workers:,} of --max-workers")
    if max(workers_per_instance or 1, onprem) > max_workers:
        raise typer.BadParameter(f"a replay has at most {max_workers:,} workers (--max-workers)")
    if market and slots > 1:
        raise typer.BadParameter("workers have one slot with --market; leave out --slots")
    mendable = (MarketError, NotACheckout, OutputError, ReplayError, RequestTraceError)
    with exits_on(*mendable, UnknownNameError):
        check_outputs((json, report), (*requests, market))
        if wrong := [name for name in rule or () if name not in replays.RULE_NAMES]:
            raise UnknownNameError("rule", wrong[0], replays.RULE_NAMES)
        rules = tuple(dict.fromkeys(rule or ())) or replays.RULE_NAMES
        settings = ReplaySettings(
            wait_s=wait,
            share=share,
            cold_start_s=cold_start,
            workers_per_instance=1 if workers_per_instance is None else workers_per_instance,
            slots=slots,
            onprem=onprem,
            queue_known=queue_known,
            min_workers=min_workers,
            max_workers=max_workers,
            seed=seed,
        )
        traces = read_request_traces(requests, seed=seed, mean_rate_per_s=mean_rate)
        remark(trace.note for trace in traces)
        for trace in traces:
            replays.check_room(trace, settings)
        spot = read_market(market) if market else None
        runs: list[tuple[RequestTrace, Run]] = []
        with counted("replay") as show:
            for trace, run in replays.iter_runs(traces, rules, settings):
                runs.append((trace, run))
                show(len(runs), len(traces) * len(rules), f"{trace.name} {run.row.rule}")
        both: list[MarketRow] = []
        if spot:
            with counted("both checkers") as show:
                size = workers_per_instance
                both += (on_market(each, spot, settings, show, size=size) for each in traces)
        names = dict.fromkeys(trace.name for trace, _ in runs)
        tables = [
            table(each, [run.row for trace, run in runs if trace.name == each]) for each in names
        ]
        tables += [choices_table(run) for _, run in runs if run.choices]
        tables += [market_table(both)] if both else []
        rows = as_json(rows=[*(run.row for _, run in runs), *both])
        give(tables, rows, json, lambda: report_html(runs), report)


TraceOut = Annotated[
    Path, option("The market trace; gzip when it ends in .gz, - is standard output.", "--out")
]
trace = typer.Typer(
    name="trace", no_args_is_help=True, help="Make market traces from recordings or a fleet."
)


@trace.command()
def convert(
    files: Annotated[
        list[Path],
        typer.Argument(help="One JSON (SkyPilot) or CSV (SkyNomad) per zone, or Bamboo events."),
    ],
    out: TraceOut,
    pool: Annotated[
        str | None, option("Pool of a single file, ZONE/TYPE. Default: from its name.")
    ] = None,
    gap: Annotated[
        float | None, duration("Time step of a JSON file that states a wrong one.")
    ] = None,
    inverted: Annotated[
        bool | None, option("In the files, 1 means not available. Default: detected.")
    ] = None,
) -> None:
    """Convert public recordings of one market's zones to a market trace."""
    from spotkeeper_lab.files import name_of
    from spotkeeper_lab.traces.export import read_public_traces
    from spotkeeper_lab.traces.market import MarketError

    with exits_on(MarketError, OutputError):
        check_outputs([out], files)
        market = read_public_traces(files, name_of(out), gap_s=gap, inverted=inverted, pool=pool)
        _give_market(market, out)


@trace.command()
def export(
    out: TraceOut,
    records: Annotated[
        Path | None, option("A file of decision records, one per line, as the demo writes it.")
    ] = None,
    fleet: Annotated[
        str | None, option("A fleet of a deployed stack, instead of --records.")
    ] = None,
    table: Annotated[str | None, option("The name of the table, instead of the stack's.")] = None,
    activities: Annotated[
        Path | None, option("Output of `aws autoscaling describe-scaling-activities`, for zones.")
    ] = None,
    group: Annotated[str | None, option("Read the activities of this spot group instead.")] = None,
    instance_type: Annotated[str, option("Type in the names of the pools, ZONE/TYPE.")] = "any",
    stack: Stack = "spotkeeper",
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Make a market trace from the decision records of a running fleet."""
    from spotkeeper_lab.files import name_of
    from spotkeeper_lab.traces import export as seen
    from spotkeeper_lab.traces.market import MarketError
    from spotkeeper_operator.aws import Aws

    if (records is None) == (fleet is None) or (records and table):
        raise typer.BadParameter("give --records, or --fleet (with --stack or --table)")
    if activities and group:
        raise typer.BadParameter("give --activities or --group, not both")
    with exits_on_aws_errors(), exits_on(MarketError):
        check_outputs([out], [records, activities])
        # What is read from files needs no AWS.
        aws = cache(partial(Aws, region, profile))
        if records:
            turns = seen.read_records(records)
        else:
            name = table or aws().stack(stack).table
            turns = seen.table_records(aws().dynamodb, name, fleet or "")
        changes = seen.read_activities(activities) if activities else []
        changes += seen.group_activities(aws().autoscaling, group) if group else []
        _give_market(seen.export_market(name_of(out), turns, changes, instance_type), out)


def _give_market(market: "Market", out: Path) -> None:
    """Write the market and say what is in it, beside it where it goes to standard output."""
    from spotkeeper_lab.traces.market import market_text, write_market

    if out == STANDARD_OUTPUT:
        write(market_text(market), out)
    else:
        write_market(market, out)
    pools = ", ".join(market.pools)
    regions = f"{len(market.regions)} regions" if market.regions[1:] else market.regions[0]
    summary = f"{out}: pools {pools}; {regions}; {market.end_s / 3600:.1f} h"
    typer.echo(summary, err=out == STANDARD_OUTPUT)


lab = typer.Typer(
    name="lab", no_args_is_help=True, help="Run a local AWS, and scenarios of faults."
)


@lab.command()
def up(
    port: Annotated[int, option("Port of the endpoint.", min=1024, max=65535)] = 4566,
    auth: Annotated[bool, option("Enforce roles and policies.")] = True,
    desired: Annotated[int, option("Spot instances to begin with.", min=0)] = 3,
    capacity: Annotated[int, option("Spot instances that each of three zones holds.", min=0)] = 4,
    cold_start: Annotated[float, option("Seconds that an instance boots.", min=0)] = 20,
    notice: Annotated[float, option("Seconds between warning and loss.", min=0)] = 120,
) -> None:
    """Serve a local AWS on this machine until Ctrl-C."""
    from spotkeeper_lab.run.up import BUILT, LabError, LabSettings, environment, running

    with exits_on(LabError):
        usual = LabSettings()
        settings = LabSettings(
            port=port,
            auth=auth,
            desired=desired,
            pools=dict.fromkeys(usual.pools, capacity),
            physics=replace(usual.physics, cold_start_s=cold_start, notice_s=notice),
        )
        with running(settings, Path.cwd()) as ready:
            took = f"({ready.took_s:.1f} s)"
            typer.echo(f"The local AWS is up {took}. Ctrl-C ends it and everything in it.\n")
            typer.echo(f"  endpoint  {ready.url}\n  page      {ready.url}/_lab/\n")
            typer.echo("Paste into another shell, then build and deploy as to AWS:\n")
            for name, value in environment(port, Path.cwd()).items():
                typer.echo(f"  export {name}={value}")
            if not BUILT.exists():
                typer.echo("\nNothing is built for this machine yet: make local-build")
            code = ready.process.wait()
        raise LabError(f"the endpoint ended by itself ({code}); see build/local-aws/endpoint.log")


@lab.command()
def run(
    scenario: Annotated[str, typer.Argument(help="Name of a scenario, or a YAML file.")],
) -> None:
    """Run a scenario of faults in virtual time and check every promise.

    The deployed handlers run against the simulated AWS of `make chaos`. Exit code 1 means that a
    promise was broken.
    """
    from spotkeeper_lab.jobs import PROMISES, STORIES
    from spotkeeper_lab.promises import Promise
    from spotkeeper_lab.run.chaos import run as run_scenario
    from spotkeeper_lab.run.chaos import story_of
    from spotkeeper_lab.scenario import ScenarioError, find, read

    if scenario in STORIES:
        world = STORIES[scenario].live()
        typer.echo("\n".join(f"minute {line}" for line in world.story))
        wrong = {name: ", ".join(how & world.broken) for name, how in PROMISES.items()}
        _show_promises(STORIES[scenario].about, wrong)
        return
    with exits_on(ScenarioError):
        result = run_scenario(read(find(scenario)))
    typer.echo("\n".join(story_of(result)))
    broken = {one.promise: one.how for one in reversed(result.violations)}
    _show_promises(
        result.scenario.about, {str(promise): broken.get(promise, "") for promise in Promise}
    )


def _show_promises(about: str, broken: Mapping[str, str]) -> None:
    """Print which promises were kept; exit code 1 if one was not."""
    from rich.table import Table

    promises = Table("promise", "kept", title=about)
    for promise, how in broken.items():
        promises.add_row(promise, f"NO: {how}" if how else "yes")
    screen().print(promises)
    if any(broken.values()):
        raise typer.Exit(1)


@lab.command()
def scenarios() -> None:
    """List the scenarios of the lab."""
    from rich.table import Table

    from spotkeeper_lab.jobs import STORIES
    from spotkeeper_lab.scenario import read, shipped

    listed = Table.grid(padding=(0, 2))
    for name, story in STORIES.items():
        listed.add_row(name, story.about)
    for name, path in shipped().items():
        listed.add_row(name, read(path).about)
    screen().print(listed, highlight=False)
