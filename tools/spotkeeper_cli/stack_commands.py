"""The commands on a deployed stack: what it does and why, what it costs, and what it may do.

A command's last parameters are those of every command here: the stack, how to answer, and how to
reach AWS; `on_stack` adds them. What a command needs is imported when it runs.
"""

import inspect
import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, get_type_hints

import typer

from spotkeeper.domain.permission import Mode
from spotkeeper_cli.options import (
    Fleet,
    FleetName,
    PriceRatio,
    Profile,
    Region,
    Report,
    Since,
    Stack,
    check_outputs,
    duration,
    exits_on,
    exits_on_aws_errors,
    option,
    screen,
    tell,
)
from spotkeeper_operator.text import as_json, parse_instant, shown

if TYPE_CHECKING:
    from spotkeeper_operator.aws import Aws
    from spotkeeper_operator.control import FleetControl

# What happens around an instant explains it.
AROUND = timedelta(minutes=10)
RECENT_S = 1200.0
WEEK_S, MONTH_S = 7 * 86_400.0, 30 * 86_400.0

NewRegionName = typer.Argument(help="A region of AWS.", metavar="REGION")
Yes = Annotated[bool, option("Do not ask for confirmation; for scripts.", "--yes")]


@dataclass
class OnStack:
    """The stack that a command is about, and how it answers: the options of every command."""

    stack: Stack = "spotkeeper"
    json: Annotated[bool, option("Answer in JSON.", "--json")] = False
    region: Region = None
    profile: Profile = None

    @cached_property
    def aws(self) -> "Aws":
        """One session."""
        from spotkeeper_operator.aws import Aws

        return Aws(self.region, self.profile)

    @property
    def now(self) -> datetime:
        """The instant."""
        from spotkeeper import wiring

        return wiring.now()

    def say(self, text: Callable[..., str], json: Callable[..., str], *answers: Any) -> None:
        """Answer, in the form that the options name."""
        typer.echo(json(*answers) if self.json else shown(text(*answers)), nl=False)

    def name_left_out(self, fleet: str | None) -> None:
        """Say which documents are wrong, and whether the answer has their fleets; exit code 1."""
        wrong = self.aws.wrong_documents if fleet is None else ()
        for error in wrong:
            typer.echo(shown(f"error: {error}"), err=True)
        if wrong:
            raise typer.Exit(1)

    def control(self, fleet: str) -> "FleetControl":
        """What operators decide for a fleet."""
        from spotkeeper_operator.control import FleetControl

        return FleetControl(self.aws, self.stack, fleet, self.now)


def on_stack[**P](command: Callable[Concatenate[OnStack, P], None]) -> Callable[..., None]:
    """Add the options of every command on a stack; errors of AWS end it with one sentence."""
    shared = inspect.signature(OnStack).parameters

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:
        where = OnStack(**{name: kwargs.pop(name) for name in shared})
        with exits_on_aws_errors():
            command(where, *args, **kwargs)

    own = list(inspect.signature(command).parameters.values())[1:]
    hints = get_type_hints(command, include_extras=True)
    hints |= get_type_hints(OnStack, include_extras=True)
    parameters = [each.replace(annotation=hints[each.name]) for each in (*own, *shared.values())]
    del run.__wrapped__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


@on_stack
def status(
    on: OnStack,
    fleet: FleetName = None,
    watch: Annotated[float | None, duration("Repeat at this interval.", "--watch", least=1)] = None,
    instances: Annotated[
        bool, option("List each instance, why it counts, and its cost.", "--instances")
    ] = False,
    events: Annotated[bool, option("List the last changes and failures.", "--events")] = False,
) -> None:
    """Show the state of each fleet; exit code 1 if one is short or unknown, or an alarm rings.

    With --instances or --events: a list of these instead.
    """
    from spotkeeper_operator.status import known, shown

    if (instances or events) and (watch or (instances and events)):
        raise typer.BadParameter("give one of --instances, --events and --watch")
    if instances or events:
        where = (on.aws, on.stack, fleet, on.now)
        listed = known.read_instances(*where) if instances else known.read_events(*where)
        on.say(shown.details_text, as_json, listed)
        raise typer.Exit(1 if listed.troubles else 0)
    answer = known.read_status(on.aws, on.stack, fleet, on.now)
    while watch:
        screen().clear()
        on.say(shown.status_text, shown.status_json, answer)
        time.sleep(watch)
        answer = patiently(lambda: known.read_status(on.aws, on.stack, fleet, on.now), watch)
    on.say(shown.status_text, shown.status_json, answer)
    raise typer.Exit(shown.exit_code(answer))


def patiently[T](read: Callable[[], T], every_s: float) -> T:
    """Read; report what AWS does not answer now, and try again later."""
    from spotkeeper.ports import Throttled, Unavailable

    while True:
        try:
            return read()
        except (Throttled, Unavailable) as error:
            typer.echo(f"error: {error}", err=True)
            time.sleep(every_s)


def init(
    file: Annotated[Path, option("The file to write.", "--file", metavar="FILE")] = Path(
        "samconfig.toml"
    ),
    region: Region = None,
    profile: Profile = None,
    yes: Yes = False,
) -> None:
    """Ask for the parameters of a stack, and write samconfig.toml for sam deploy.

    It proposes what the file and the account have.
    """
    from spotkeeper import wiring
    from spotkeeper_operator.aws import Aws, OperatorError
    from spotkeeper_operator.start import cost_text, look, overrides_of, parameters, with_overrides

    def ask(name: str, has: str, default: str) -> str:
        if yes:
            return default
        hint = f" (this account has {has})" if has else ""
        hint += " (- for none)" if default else ""
        return str(typer.prompt(f"{name}{hint}", default=default, err=True))

    with exits_on_aws_errors():
        if not (yes or _asks()):
            raise OperatorError("cannot ask: give --yes for the defaults, or run it in a terminal")
        check_outputs([file])
        aws = Aws(region, profile)
        found, text = look(aws), file.read_text(encoding="utf-8") if file.is_file() else ""
        given = parameters(found, overrides_of(text), ask)
        changed = with_overrides(text, given)
        typer.echo(cost_text(aws, found, given, wiring.now()))
    if changed == text:
        typer.echo(f"{file} stays as it is")
        return
    file.write_text(changed, encoding="utf-8")
    typer.echo(f"{file} is written: make sam-build, then .venv-sam/bin/sam deploy --resolve-s3")


def watch(
    stack: Stack = "spotkeeper",
    fleet: FleetName = None,
    port: Annotated[int, option("The port to listen on.", "--port", min=1, max=65_535)] = 8080,
    region: Region = None,
    profile: Profile = None,
) -> None:
    """Serve a live page of the fleets on this machine, until Ctrl-C.

    The page changes nothing, and only browsers on this machine reach it.
    """
    from spotkeeper import wiring
    from spotkeeper_operator.aws import Aws
    from spotkeeper_operator.watch import LOOPBACK, Watch, server

    with exits_on_aws_errors():
        listening = server(Watch(Aws(region, profile), stack, fleet, wiring.now), port)
    typer.echo(f"http://{LOOPBACK}:{port}/  (Ctrl-C ends it)")
    with listening, suppress(KeyboardInterrupt):
        listening.serve_forever()


@on_stack
def explain(
    on: OnStack,
    fleet: FleetName = None,
    at: Annotated[
        str | None, option("Around 15:10 or 2026-11-20T15:10 (UTC).", "--at", metavar="TIME")
    ] = None,
    since: Since = None,
    rule: Annotated[str | None, option("Only turns that this rule decided.", "--rule")] = None,
    job: Annotated[str | None, option("All steps of a job.", "--job", metavar="NAME")] = None,
    report: Report = None,
) -> None:
    """Show what each turn saw, which rule decided, the requests to AWS and the answers.

    Without --at or --since: the last 20 minutes. Equal turns in a row are one entry.
    """
    from spotkeeper_operator import explain as explained
    from spotkeeper_operator.aws import OperatorError

    if job is not None and (fleet or rule or report):
        raise typer.BadParameter("--job goes with --at, --since and --json alone")
    check_outputs([report])
    now = on.now
    if at is not None and since is not None:
        raise typer.BadParameter("give --at or --since, not both")
    first, last = now - timedelta(seconds=since or RECENT_S), now
    if at is not None:
        try:
            instant = parse_instant(at, now)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--at") from error
        first, last = instant - AROUND, min(instant + AROUND, now)
    if job is not None:
        from spotkeeper_operator.jobs import Jobs

        period = (first, last) if at is not None or since is not None else None
        turns = explained.decisions(Jobs(on.aws, on.stack).records(job, period, now))
        on.say(explained.explain_text, explained.explain_json, turns)
        return
    timeline = explained.read_timeline(on.aws, on.stack, fleet, first, last, rule)
    if rule is not None and timeline.records and not timeline.entries:
        others = ", ".join(sorted({record.rule for record in timeline.records}))
        raise OperatorError(f"no turn in this time has the rule {rule!r}; others: {others}")
    show = explained.explain_json if on.json else explained.explain_text
    tell(show(timeline), explained.explain_page(timeline.records, first, last, rule), report)
    on.name_left_out(fleet)


@on_stack
def sizing(
    on: OnStack,
    what_if: Annotated[
        str, option("Another promise, like wait_s=30,share=0.9.", "--what-if", metavar="PROMISE")
    ],
    fleet: FleetName = None,
) -> None:
    """Show what another promise about waiting would have cost over the last day."""
    from spotkeeper_operator.what_if import read_what_if, what_if_text

    answer = read_what_if(on.aws, on.stack, fleet, what_if)
    on.say(what_if_text, lambda fleets: as_json(fleets=fleets), answer)
    on.name_left_out(fleet)


@on_stack
def doctor(
    on: OnStack,
    fleet: FleetName = None,
    spot_group: Annotated[
        str | None, option("Before there is a stack: a group to adopt.", "--spot-group")
    ] = None,
    on_demand_group: Annotated[
        str | None, option("The on-demand group to adopt with it.", "--on-demand-group")
    ] = None,
    spot_max: Annotated[
        int, option("SpotMax of the stack that you plan.", "--spot-max", min=0)
    ] = 20,
    on_demand_max: Annotated[
        int, option("OnDemandMax of the stack that you plan.", "--on-demand-max", min=0)
    ] = 20,
) -> None:
    """Find problems; exit code 0 for none, 1 for warnings and unknowns, 2 for errors."""
    from spotkeeper.domain.doctor.finding import exit_code
    from spotkeeper_operator.doctor import doctor_text, examine_groups, examine_stack

    if (spot_group is None) != (on_demand_group is None):
        raise typer.BadParameter("give --spot-group and --on-demand-group together")
    if spot_group is not None and spot_group == on_demand_group:
        raise typer.BadParameter(f"{spot_group} is given as both groups; a fleet needs two")
    if spot_group and on_demand_group:
        groups = (spot_group, on_demand_group)
        examined = examine_groups(on.aws, *groups, spot_max, on_demand_max, on.now)
    else:
        examined = examine_stack(on.aws, on.stack, fleet, on.now)
    on.say(doctor_text, lambda findings: as_json(findings=findings), examined)
    raise typer.Exit(exit_code(examined))


@on_stack
def cost(
    on: OnStack,
    fleet: FleetName = None,
    since: Annotated[
        float,
        duration(
            "Start this long ago; at most 90d.", "--since", least=60, most=90 * 86_400, shown="30d"
        ),
    ] = MONTH_S,
    by: Annotated[str | None, option("Group the costs.", "--by", metavar="[day|zone|type]")] = None,
    actual: Annotated[
        bool, option("Also ask Cost Explorer for the bill (0.01 USD a request).", "--actual")
    ] = False,
    prices: Annotated[
        list[str] | None,
        option(
            "Your own on-demand price in USD an hour, such as g5.xlarge=0.62.",
            "--price",
            metavar="TYPE=USD",
        ),
    ] = None,
    report: Report = None,
) -> None:
    """Show what the fleets cost in USD, and would cost on demand.

    Exit code 1 if a part is not known.
    """
    from spotkeeper_operator import cost as costs

    if by is not None and by not in set(costs.By):
        raise typer.BadParameter("day, zone or type", param_hint="--by")
    kind = costs.By(by) if by else None
    try:
        own = {name: positive(usd) for name, usd in (one.split("=") for one in prices or ())}
    except ValueError as error:
        raise typer.BadParameter(
            "TYPE=USD, such as g5.xlarge=0.62", param_hint="--price"
        ) from error
    check_outputs([report])
    now = on.now
    first = now - timedelta(seconds=since)
    answer = costs.read_cost(on.aws, on.stack, fleet, first, now, billed=actual, own=own)
    show = costs.cost_json if on.json else costs.cost_text
    tell(show(answer, kind), costs.cost_page(answer, kind), report)
    raise typer.Exit(1 if answer.unknown else 0)


@on_stack
def types(
    on: OnStack,
    fleet: FleetName = None,
    since: Annotated[
        float,
        duration(
            "Start this long ago; search logs are kept for 2h.",
            "--since",
            least=60,
            most=7200,
            shown="1h",
        ),
    ] = 3600.0,
) -> None:
    """Compare the fleets' instance types by speed, price and cost of 1,000 requests."""
    from spotkeeper_operator.types import read_types, types_text

    answer = read_types(on.aws, on.stack, fleet, on.now, timedelta(seconds=since))
    on.say(types_text, lambda fleets: as_json(fleets=fleets), answer)
    on.name_left_out(fleet)


regions = typer.Typer(
    name="regions", invoke_without_command=True, help="The regions of a fleet, and other ones."
)


@regions.callback(invoke_without_command=True)
@on_stack
def show_regions(on: OnStack, context: typer.Context, fleet: FleetName = None) -> None:
    """Show cover, ask, serving, price and refusals of each region, and when that was known."""
    from spotkeeper_operator.regions import read_regions, regions_text

    if context.invoked_subcommand is not None:
        return
    answer = read_regions(on.aws, on.stack, fleet)
    on.say(partial(regions_text, now=on.now), lambda fleets: as_json(fleets=fleets), answer)
    on.name_left_out(fleet)


@regions.command("what-if")
@on_stack
def regions_what_if(
    on: OnStack,
    fleet: FleetName = None,
    other: Annotated[
        list[str] | None,
        option("A region to compare. Default: all of this part of the world.", "--with"),
    ] = None,
    since: Annotated[
        float, duration("Start this long ago.", "--since", least=3600, shown="7d")
    ] = WEEK_S,
) -> None:
    """Compare what a fleet paid with the public spot prices of its types in other regions."""
    from spotkeeper_operator.regions import read_regions_what_if, what_if_text

    first = on.now - timedelta(seconds=since)
    answer = read_regions_what_if(on.aws, on.stack, fleet, first, on.now, other or ())
    on.say(what_if_text, as_json, answer)


region = typer.Typer(name="region", no_args_is_help=True, help="Add or remove a region.")


@region.command("add")
@on_stack
def add_region(on: OnStack, name: Annotated[str, NewRegionName], fleet: FleetName = None) -> None:
    """Check what a region lacks for a fleet, and print the commands that add it."""
    from spotkeeper_operator.regions import new_region_text, only, plan_region

    chosen = only(on.aws, on.stack, fleet)
    if on.control(chosen.name).stay(name):
        typer.echo(f"{chosen.name}: {name} stays")
        return
    on.say(new_region_text, as_json, plan_region(on.aws, on.stack, chosen, name))


@region.command("remove")
@on_stack
def remove_region(
    on: OnStack, name: Annotated[str, NewRegionName], fleet: FleetName = None
) -> None:
    """Move a region's share of a fleet to the other regions; `regions` shows what is left."""
    from spotkeeper_operator.control import control_json
    from spotkeeper_operator.regions import leaving_text, only

    chosen = only(on.aws, on.stack, fleet)
    control = on.control(chosen.name).leave(name)
    text = partial(leaving_text, on.aws, on.stack, chosen, name)
    on.say(lambda *_: text(), control_json, chosen.name, control)


observe = typer.Typer(
    name="observe", no_args_is_help=True, help="What a fleet that only observes would do."
)


@observe.callback()
def _observe() -> None:
    """What a fleet that only observes would do."""


@observe.command("report")
@on_stack
def observed(
    on: OnStack,
    fleet: FleetName = None,
    since: Annotated[
        float, duration("Start this long ago.", "--since", least=60, shown="7d")
    ] = WEEK_S,
    price_ratio: PriceRatio = 0.30,
) -> None:
    """Show what observing fleets would have requested, and compare their hours."""
    from spotkeeper_operator.observed import read_observed, report_json, report_text

    now = on.now
    answer = read_observed(on.aws, on.stack, fleet, now - timedelta(seconds=since), now)
    on.say(report_text, report_json, answer, price_ratio)
    on.name_left_out(fleet)


Files = Annotated[
    list[Path],
    typer.Argument(
        help="Fleet documents: NAME.json, and NAME.overrides.json for overrides.", metavar="FILE..."
    ),
]
fleet = typer.Typer(
    name="fleet", no_args_is_help=True, help="Fleet documents in files: check, compare, apply."
)


@fleet.command()
def validate(files: Files) -> None:
    """Find every mistake in fleet documents, without AWS; exit code 1 if there is one."""
    from spotkeeper_operator.aws import OperatorError
    from spotkeeper_operator.fleets import mistakes_in, read_files

    with exits_on(OperatorError):
        found = mistakes_in(read_files(files))
    for mistake in found:
        typer.echo(mistake)
    raise typer.Exit(1 if found else 0)


@fleet.command()
@on_stack
def diff(on: OnStack, files: Files) -> None:
    """Show which settings files would change; exit code 1 if one is different."""
    from spotkeeper_operator.fleets import Deployed, difference_text, read_files

    found = Deployed(on.aws, on.stack, on.now).difference(read_files(files))
    on.say(difference_text, lambda fleets: as_json(fleets=fleets), found)
    raise typer.Exit(1 if any(each.parameters for each in found) else 0)


@fleet.command("apply")
@on_stack
def apply_files(on: OnStack, files: Files, yes: Yes = False) -> None:
    """Show what files change and what the next turns would do, ask, and write the documents."""
    from spotkeeper_operator.fleets import Deployed, difference_text, read_files

    deployed, texts = Deployed(on.aws, on.stack, on.now), read_files(files)
    found = deployed.difference(texts)
    changed = [each for each in found if each.parameters]
    if changed:
        lines = [*difference_text(changed).splitlines(), *deployed.next_turns()]
        confirm(lines, "Write these documents?", yes)
        deployed.apply(texts, changed)
    on.say(difference_text, lambda fleets: as_json(fleets=fleets), found)


@fleet.command()
@on_stack
def show(on: OnStack, fleet: Fleet) -> None:
    """Show every setting of a fleet as it is in force, overrides included, in JSON."""
    from spotkeeper_operator.fleets import Deployed

    settings = Deployed(on.aws, on.stack, on.now).show(fleet)
    typer.echo(as_json(fleet=fleet, settings=settings), nl=False)


@on_stack
def drill(
    on: OnStack,
    fleet: Fleet,
    count: Annotated[
        int, option("Spot instances to interrupt; at most 5.", "--count", min=1, max=5)
    ] = 1,
    timeout: Annotated[
        float, duration("Wait at most this long.", "--timeout", least=60, shown="30m")
    ] = 1800.0,
    report: Report = None,
) -> None:
    """Have AWS interrupt spot instances, and show when the fleet has recovered.

    AWS Fault Injection Service warns and interrupts as AWS does; deploy the stack with
    Drills=true first. Exit code 1 if the fleet has not recovered after --timeout.
    """
    from spotkeeper import wiring
    from spotkeeper_operator import drill as drills

    check_outputs([report])
    longest = timedelta(seconds=timeout)
    drilled = drills.drill(
        on.aws, on.stack, fleet, count, longest, wiring.now, time.sleep,
        partial(typer.echo, err=True),
    )  # fmt: skip
    show = drills.drill_json if on.json else drills.drill_text
    tell(show(drilled), drills.drill_page(drilled), report)
    raise typer.Exit(0 if drilled.story.over else 1)


@on_stack
def rollout(
    on: OnStack,
    fleet: Fleet,
    template_version: Annotated[
        int | None,
        option("The launch template's version to roll out.", "--template-version", min=1),
    ] = None,
    canary: Annotated[
        int, option("Compare this many instances first; 0: none.", "--canary", min=0)
    ] = 1,
    bake: Annotated[
        float,
        duration("Compare for at least this long.", "--bake", least=60, most=172_800, shown="10m"),
    ] = 600.0,
    cancel: Annotated[
        bool, option("Cancel the instance refreshes that run; new instances stay.", "--cancel")
    ] = False,
    roll_back: Annotated[
        bool, option("Roll back the instance refreshes that run.", "--roll-back")
    ] = False,
    yes: Yes = False,
) -> None:
    """Replace both groups' instances by a version of their launch template, a canary first.

    The command follows the roll-out; run it again to go on after it was ended. Exit code 1 if the
    version is worse or AWS gave up: then what was replaced is rolled back.
    """
    from spotkeeper import wiring
    from spotkeeper_operator.rollout import LOOK_EVERY_S, Rollout, Step, rollout_json, rollout_text

    if (template_version is not None) + cancel + roll_back != 1:
        raise typer.BadParameter("give one of --template-version, --cancel and --roll-back")
    rolled = Rollout(on.aws, on.stack, fleet, wiring.now)
    if cancel:
        on.say(rollout_text, rollout_json, fleet, rolled.cancel())
        return
    if template_version is None:
        wish = rolled.undo()
    else:
        wish = rolled.wish(template_version, canary, timedelta(seconds=bake))
    said, asked = None, yes or roll_back
    while True:
        plan = patiently(lambda: rolled.look(wish), LOOK_EVERY_S)
        if not asked and plan.step not in (Step.WAIT, Step.DONE, Step.FAILED):
            confirm([f"{plan.step} of {plan.group or fleet}: {plan.why}"], "Begin?", yes)
            asked = True
            continue
        if plan != said:
            step = f"{plan.step}: {plan.why}" if plan.why else plan.step
            typer.echo(f"{on.now:%H:%M:%S}  {plan.group or fleet}: {step}", err=True)
        said = plan
        rolled.take(plan, wish)
        if plan.step in (Step.DONE, Step.FAILED, Step.ROLL_BACK):
            break
        time.sleep(plan.again_s)
    on.say(rollout_text, rollout_json, fleet, said)
    raise typer.Exit(0 if said.step is Step.DONE or (roll_back and not said.why) else 1)


@on_stack
def mode(
    on: OnStack,
    fleet: Fleet,
    mode: Annotated[Mode, typer.Argument(help="What its turns may do.")],
    yes: Yes = False,
) -> None:
    """Let a fleet's turns act, or only observe and record what they would request.

    Before turns act, the command shows what they would request now, and waits for your yes.
    """
    from spotkeeper_operator.control import control_json, mode_text

    control = on.control(fleet)
    if mode is Mode.ACT and control.only_observes():
        confirm(control.preview(), "Let the turns act?", yes)
    on.say(mode_text, control_json, fleet, control.set_mode(mode))


@on_stack
def pause(
    on: OnStack,
    fleet: Fleet,
    lasting: Annotated[float, duration("End after this time; at most 24h.", "--for")],
    why: Annotated[str, option("The reason; status shows it.", "--why")],
) -> None:
    """Leave a fleet as it is for a time; turns record what they would request.

    In a further region, other regions serve the fleet's share meanwhile.
    """
    from spotkeeper_operator.control import control_json, pause_text

    paused = on.control(fleet).pause(timedelta(seconds=lasting), why)
    on.say(pause_text, control_json, fleet, paused)


@on_stack
def resume(on: OnStack, fleet: Fleet, yes: Yes = False) -> None:
    """End a pause now.

    The command shows what the turns would request now, and waits for your yes.
    """
    from spotkeeper_operator.control import control_json, pause_text

    control = on.control(fleet)
    control.require_paused()
    if not control.only_observes():
        confirm(control.preview(), "Let the turns act?", yes)
    on.say(pause_text, control_json, fleet, control.resume())


@on_stack
def stop(
    on: OnStack,
    fleet: Fleet,
    anyway: Annotated[
        bool, option("Stop while on-demand replaces spot: the fleet shrinks.", "--anyway")
    ] = False,
    keep_hooks: Annotated[
        bool, option("Keep the hooks spotkeeper-* of adopted groups.", "--keep-hooks")
    ] = False,
    yes: Yes = False,
) -> None:
    """Leave a fleet: end its backfill, undo what turns set, and let turns only observe.

    Then its stack can be deleted. The command shows what it will do, and waits for your yes.
    """
    from spotkeeper_operator.control import Leaving, stopped_text

    leaving = Leaving(on.aws, on.stack, fleet, on.now, anyway=anyway, keep_hooks=keep_hooks)
    confirm(leaving.preview(), f"Stop {fleet}?", yes)
    on.say(stopped_text, lambda parts: as_json(**parts), leaving.stop())


def positive(text: str) -> float:
    """Read a positive number; raises ValueError."""
    if not 0 < (value := float(text)) < math.inf:
        raise ValueError(text)
    return value


def confirm(preview: Sequence[str], question: str, yes: bool) -> None:
    """Show what will happen, on standard error, and go on only with a yes."""
    from spotkeeper_operator.aws import OperatorError

    if yes:
        return
    for line in preview:
        typer.echo(f"would  {line}", err=True)
    if not _asks():
        raise OperatorError("cannot ask for confirmation: give --yes, or run it in a terminal")
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def _asks() -> bool:
    """Say whether there is a terminal to ask on."""
    return sys.stdin.isatty()
