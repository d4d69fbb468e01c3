"""One fleet in several regions: what each has, what another would need, and what it would cost."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from spotkeeper.adapters.doctor.account import account_facts, offers
from spotkeeper.adapters.doctor.groups import group_facts, template_of
from spotkeeper.adapters.doctor.looking import look
from spotkeeper.adapters.dynamodb.controls import ControlTable
from spotkeeper.adapters.ec2.prices import spot_prices
from spotkeeper.adapters.stacks import Stack
from spotkeeper.domain.decision import Controller
from spotkeeper.domain.doctor.checks import examine
from spotkeeper.domain.doctor.facts import Facts, GroupFacts, LaunchTemplate, Unseen, known
from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.purchase import PurchaseOption
from spotkeeper.ports import FleetError
from spotkeeper_operator.aws import Aws, OperatorError, chosen
from spotkeeper_operator.cost import read_cost
from spotkeeper_operator.status.known import RegionFigures, region_figures
from spotkeeper_operator.text import age_from, columns, labelled, paragraphs, spoken

# Records in which the newest turn of the home is found, also while turns fail.
RECENT = 20
# What of the doctor's findings is about a region before anything is there.
OF_A_REGION = frozenset({
    "little-concurrency", "no-such-type", "quota-too-small", "quota-not-found", "unseen",
})  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class FleetRegions:
    """The regions of one fleet, as its home's turn `at` knew them.

    `spot_shares` are the shares of what the fleet's spot instances cost an hour, of regions whose
    price is known.
    """

    fleet: str
    at: datetime
    home: str
    regions: tuple[RegionFigures, ...]

    @property
    def spot_shares(self) -> dict[str, float]:
        """The shares of the spot cost by region; empty where one is not known."""
        serving = [one for one in self.regions if one.serving != 0]
        costs = {
            one.region: one.serving * one.price_usd
            for one in serving
            if one.serving is not None and one.price_usd is not None
        }
        whole = sum(costs.values())
        return {r: usd / whole for r, usd in costs.items()} if len(costs) == len(serving) else {}


def read_regions(aws: Aws, stack_name: str, fleet: str | None) -> list[FleetRegions]:
    """Read the fleets whose home this stack is; raises `OperatorError` where there is none."""
    stack = aws.stack(stack_name)
    fleets = chosen(aws.documents(stack), fleet)
    if homes := [one for one in fleets if one.regions]:
        return [_read(aws, stack, one) for one in homes]
    away = [
        f"spotkeeper regions --region {one.home} shows {one.name}" for one in fleets if one.home
    ]
    raise OperatorError(
        "; ".join(away) or "no fleet of this stack has several regions: spotkeeper region add R"
    )


def _read(aws: Aws, stack: Stack, fleet: Fleet) -> FleetRegions:
    newest = aws.records(stack).newest(fleet.name, RECENT).of(Controller.HEALTH)
    last = next((record for record in newest if record.regions), None)
    if last is None:
        raise OperatorError(f"{fleet.name}: no turn has divided the need yet")
    figures = region_figures(last.regions)
    return FleetRegions(fleet=fleet.name, at=last.at, home=aws.region, regions=figures)


def leaving_text(aws: Aws, stack_name: str, fleet: Fleet, region: str) -> str:
    """Say what a region that is removed still has to give away."""
    covers = [c for c in _read(aws, aws.stack(stack_name), fleet).regions if c.region == region]
    text = f"{region} covers nothing: deploy without it"
    if any(one.cover for one in covers):
        cover = f"{region} gives its cover of {covers[0].cover} away"
        text = f"{cover}; deploy without it once `regions` shows 0"
    return paragraphs([labelled(f"{fleet.name}:", text, 0, len(fleet.name) + 2)])


def regions_text(fleets: Sequence[FleetRegions], now: datetime) -> str:
    """Show each fleet's regions in a table, with when each was known."""
    return paragraphs(_table(one, now) for one in fleets)


def _table(fleet: FleetRegions, now: datetime) -> Iterator[str]:
    yield f"{fleet.fleet}: home {fleet.home}, {spoken(age_from(fleet.at, now))} ago"
    shares, rows, notes = fleet.spot_shares, [], list[str]()
    for one in fleet.regions:
        refused = one.refused_since
        if refused:
            why, since = ", ".join(one.refused), spoken(age_from(refused, now))
            notes.append(f"{one.region} has refused for {since}: {why}")
        if one.state:
            notes.append(f"{one.region} is {one.state}")
        rows.append({
            "region": one.region,
            "cover": str(one.cover),
            "ask": str(one.ask),
            "spot": "unknown" if one.serving is None else str(one.serving),
            "on-demand": "unknown" if one.on_demand is None else str(one.on_demand),
            "USD/h": "unknown" if one.price_usd is None else f"{one.price_usd:.4f}",
            "of cost": f"{shares[one.region]:.0%}" if one.region in shares else "-",
            "known": f"{spoken(age_from(one.known_at, now))} ago" if one.known_at else "never",
        })  # fmt: skip
    yield from columns(rows, frozenset({"cover", "ask", "spot", "on-demand", "USD/h", "of cost"}))
    for note in notes:
        yield from labelled("", note, 0, 2)


# --- another region -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NewRegion:
    """What a region lacks for a fleet, and the commands that add it, in their order."""

    fleet: str
    region: str
    lacks: tuple[str, ...]
    commands: tuple[str, ...]


def only(aws: Aws, stack_name: str, name: str | None) -> Fleet:
    """Return the fleet of a name, or the stack's only one; raises `OperatorError` otherwise."""
    fleets = chosen(aws.documents(aws.stack(stack_name)), name)
    if len(fleets) != 1:
        raise OperatorError(f"give --fleet: {', '.join(one.name for one in fleets) or 'none'}")
    return fleets[0]


def plan_region(aws: Aws, stack_name: str, fleet: Fleet, region: str) -> NewRegion:
    """Look at what a region offers to a fleet; raises `OperatorError` where it is added already."""
    stack, name = aws.stack(stack_name), fleet.name
    if fleet.home:
        raise OperatorError(f"{name} has its home in {fleet.home}: add regions there")
    if region in {aws.region, *fleet.elsewhere}:
        raise OperatorError(f"{name} has {region} already")
    other, at = aws.there(region), "reading the stack there"
    arn = look(at, lambda: other.stack(stack_name).outputs["TableArn"])
    there = arn if isinstance(arn, str) else "ARN-OF-ITS-OUTPUT-TableArn"
    bounds, deploy = fleet.bounds, ".venv-sam/bin/sam deploy --resolve-s3 --region"
    mode = ControlTable(aws.dynamodb, stack.table).of(name).mode or fleet.mode
    groups = "SpotGroupName=THE-SPOT-GROUP-THERE OnDemandGroupName=THE-ON-DEMAND-GROUP-THERE"
    if stack.parameters.get("LaunchTemplateId"):
        groups = "LaunchTemplateId=THE-TEMPLATE-THERE SubnetIds=THE-SUBNETS-THERE"
    own = (
        f"{deploy} {region} --stack-name {stack_name} --parameter-overrides Home={aws.region} "
        f"FleetName={name} Mode={mode} SpotMin=0 SpotMax={bounds.spot_max} "
        f"OnDemandMax={bounds.on_demand_max} {groups}"
    )
    tables = ",".join([*[one for one in fleet.regions.split(",") if one], there])
    home = f"{deploy} {aws.region} --stack-name {stack_name} --parameter-overrides Regions={tables}"
    lacks = tuple(_lacking(aws, fleet, region))
    return NewRegion(
        fleet=name,
        region=region,
        lacks=lacks,
        commands=(*_copies(aws, stack, region), *(() if isinstance(arn, str) else (own,)), home),
    )


def _spot_group(aws: Aws, fleet: Fleet) -> GroupFacts:
    """Look at a fleet's spot group; raises `OperatorError` where its types are not known."""
    groups = group_facts(aws.client, [fleet.spot_group])
    group = None if isinstance(groups, Unseen) else groups.get(fleet.spot_group)
    if group is None or not group.types:
        why = f": {groups.why}" if isinstance(groups, Unseen) else ""
        raise OperatorError(f"the instance types of {fleet.spot_group} are not known{why}")
    return group


def _lacking(aws: Aws, fleet: Fleet, region: str) -> Iterator[str]:
    """Examine a region for the types of the spot group here, as the doctor does there later."""
    there = partial(aws.client, region=region)
    group = replace(_spot_group(aws, fleet), launch_template=LaunchTemplate())
    groups = {name: group for name in fleet.groups}
    account = account_facts(there, [group])
    facts = Facts(fleets=(fleet,), wrong_documents=(), groups=groups, account=account)
    for finding in examine(facts):
        if finding.id in OF_A_REGION:
            yield f"{finding.evidence}: {finding.fix}"


def _copies(aws: Aws, stack: Stack, region: str) -> Iterator[str]:
    """Return the commands that copy what the launch template names: its image and key pair.

    A public parameter in the place of an image is in every region.
    """
    if not (template := stack.parameters.get("LaunchTemplateId")):
        return
    version = stack.parameters.get("LaunchTemplateVersion", "$Default")
    data = known(template_of(aws.client, template, version), {})
    image, key = data.get("ImageId", ""), data.get("KeyName")
    if image.startswith("ami-"):
        yield (
            f"aws ec2 copy-image --region {region} --source-region {aws.region} "
            f"--source-image-id {image} --name spotkeeper-worker"
        )
    if key:
        named = shlex.quote(key)
        yield (
            f"aws ec2 describe-key-pairs --region {aws.region} --key-names {named} "
            "--include-public-key --query KeyPairs[0].PublicKey --output text > key.pub"
        )
        yield (
            f"aws ec2 import-key-pair --region {region} --key-name {named} "
            "--public-key-material fileb://key.pub"
        )


def new_region_text(plan: NewRegion) -> str:
    """Show what is missing, and the commands."""
    lines = [*labelled("region", f"{plan.region} for {plan.fleet}", 0)]
    for one in plan.lacks or ("nothing: it offers the types, and has quotas",):
        lines += labelled("lacks", one, 0)
    return "\n".join([*lines, "", *plan.commands]) + "\n"


# --- before anything is deployed ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class RegionPrice:
    """The mean price of a region's cheapest spot pool, and of a fleet's hours there, in USD.

    None where the region has no price of these types, or the hours are not known.
    """

    region: str
    price_usd: float | None
    whole_usd: float | None


@dataclass(frozen=True, kw_only=True)
class RegionsWhatIf:
    """What a fleet paid in a time, and what its hours would have cost on spot elsewhere.

    Prices say nothing of capacity: `on_demand_hours` are those in which this region had none.
    None where nothing that it ran is known.
    """

    fleet: str
    since: datetime
    hours: float | None
    on_demand_hours: float | None
    paid_usd: float | None
    prices: tuple[RegionPrice, ...]


def read_regions_what_if(
    aws: Aws,
    stack_name: str,
    name: str | None,
    since: datetime,
    now: datetime,
    others: Sequence[str],
) -> RegionsWhatIf:
    """Read what a fleet ran, and the public spot prices of its types in some regions.

    Those are by default all whose names begin like this one's.
    """
    fleet = only(aws, stack_name, name)
    name, here = fleet.name, aws.region
    others = others or [r for r in aws.session.get_available_regions("ec2") if r[:3] == here[:3]]
    lives = read_cost(aws, stack_name, name, since, now).lives
    types = _spot_group(aws, fleet).types
    on_demand = [one.hours for one in lives if one.item.option is PurchaseOption.ON_DEMAND]
    hours = sum(one.hours for one in lives) if lives else None
    prices = [
        RegionPrice(region=r, price_usd=usd, whole_usd=usd * hours if usd and hours else None)
        for r in dict.fromkeys((here, *others))
        for usd in [_mean_price(aws, r, types, since, now)]
    ]
    known = sorted(prices, key=lambda one: (one.price_usd is None, one.price_usd or 0.0))
    return RegionsWhatIf(
        fleet=name,
        since=since,
        hours=hours,
        on_demand_hours=sum(on_demand) if lives else None,
        paid_usd=sum(one.paid for one in lives) if lives else None,
        prices=tuple(known),
    )


def _mean_price(
    aws: Aws, region: str, types: Sequence[str], since: datetime, now: datetime
) -> float | None:
    """Return the mean price of the cheapest pool of some types, USD an hour."""
    ec2 = aws.client("ec2", region)
    try:
        zones = offers(ec2, types)
        pools = {f"{zone}/{kind}" for kind, each in zones.items() for zone in each}
        series = spot_prices(ec2, pools, since, now)
    except FleetError as error:
        raise OperatorError(f"{region}: {error}") from error
    costs = [one.cost(since, now) for one in series.values()]
    whole = (now - since) / timedelta(hours=1)
    return min((usd / (whole - lacks) for usd, lacks in costs if whole > lacks), default=None)


def what_if_text(answer: RegionsWhatIf) -> str:
    """Show what was paid, and each region's price."""
    paid = "what it ran is not known yet: spot prices alone are compared"
    if answer.hours is not None:
        paid = f"{answer.paid_usd:.2f} USD for {answer.hours:.0f} instance-hours"
    if answer.on_demand_hours:
        paid += f", {answer.on_demand_hours:.0f} h on demand: this region had no spot then"
    rows = list[Mapping[str, str]]()
    for one in answer.prices:
        price = "unknown" if one.price_usd is None else f"{one.price_usd:.4f}"
        whole = "unknown" if one.whole_usd is None else f"{one.whole_usd:.2f} USD"
        rows.append({"region": one.region, "USD/h": price, "all on its spot": whole})
    head = [*labelled(answer.fleet, paid, 0)]
    return paragraphs([head, columns(rows, frozenset({"USD/h", "all on its spot"}))])
