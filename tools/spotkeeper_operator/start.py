"""Starting: look at an account, ask what it does not say, and write samconfig.toml."""

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from spotkeeper.adapters.errors import aws_errors
from spotkeeper.ports import FleetError
from spotkeeper_operator.aws import Aws, OperatorError

SECTION, KEY = "[default.deploy.parameters]", "parameter_overrides"
# docs/bill.md
ITSELF_USD = 14
# The queues of a stack, as CloudFormation and template.yaml name them.
_OF_A_STACK = re.compile(
    r"-((SearchLog|WakeUp|Health|Job)Queue|SearchLogDeadLetters|FailedInvocations)-\w{12}|-regions$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What an account has: groups on spot and on demand by name, with their maximum and types.

    `templates` maps each launch template to its default version.
    """

    spot: Mapping[str, tuple[int, tuple[str, ...]]]
    on_demand: Mapping[str, tuple[int, tuple[str, ...]]]
    templates: Mapping[str, int]
    subnets: Sequence[str]
    queues: Sequence[str]


type Ask = Callable[[str, str, str], str]
"""Asks for a parameter: its name, what the account has, and the default."""


def look(aws: Aws) -> Found:
    """Read a region's groups, launch templates, subnets of the default VPC, and queues of others.

    A stack's own queues hold no requests.
    """
    groups: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for group in _all(aws.autoscaling, "describe_auto_scaling_groups", "AutoScalingGroups"):
        policy = group.get("MixedInstancesPolicy", {})
        share = policy.get("InstancesDistribution", {}).get("OnDemandPercentageAboveBaseCapacity")
        overrides = policy.get("LaunchTemplate", {}).get("Overrides", [])
        types = tuple(one["InstanceType"] for one in overrides if "InstanceType" in one)
        groups[share != 0][group["AutoScalingGroupName"]] = (group["MaxSize"], types)
    subnets = _all(aws.ec2, "describe_subnets", "Subnets")
    queues = _all(aws.client("sqs"), "list_queues", "QueueUrls")
    return Found(
        spot=groups[0],
        on_demand=groups[1],
        templates={
            one["LaunchTemplateId"]: one["DefaultVersionNumber"]
            for one in _all(aws.ec2, "describe_launch_templates", "LaunchTemplates")
        },
        subnets=[one["SubnetId"] for one in subnets if one.get("DefaultForAz")],
        queues=[url.rpartition("/")[2] for url in queues if not _OF_A_STACK.search(url)],
    )


def _all(client: Any, operation: str, items: str) -> Iterator[Any]:
    with aws_errors(operation):
        for page in client.get_paginator(operation).paginate():
            yield from page.get(items, [])


def parameters(found: Found, before: Mapping[str, str], ask: Ask) -> dict[str, str]:
    """Ask for the parameters of a stack; `before` and the account give the defaults."""
    answers = dict(before)

    def wanted(name: str, has: Sequence[str] | Mapping[str, Any], default: str = "") -> str:
        answer = ask(name, ", ".join(has), before.get(name, default)).strip()
        answers[name] = "" if answer == "-" else re.sub(r",\s+", ",", answer)
        return answers[name]

    there = "SpotGroupName" in before or (found.spot and found.on_demand)
    adopts = there and "LaunchTemplateId" not in before
    spot, back = next(iter(found.spot), ""), next(iter(found.on_demand), "")
    # What the file does not say, it leaves to the template's defaults.
    most = "20"
    if adopts and wanted("SpotGroupName", found.spot, spot):
        most = str(found.spot.get(answers["SpotGroupName"], (most, ()))[0])
        wanted("OnDemandGroupName", found.on_demand, back)
    else:
        answers["OnDemandGroupName"] = ""
        named = wanted("LaunchTemplateId", found.templates, next(iter(found.templates), ""))
        if not named:
            raise OperatorError(
                "name two groups, or a launch template to make them from: this region has neither"
            )
        wanted("LaunchTemplateVersion", (), str(found.templates.get(named, 1)))
        wanted("SubnetIds", found.subnets, ",".join(found.subnets))
        wanted("InstanceTypes", (), "g5.xlarge,g6.xlarge,g5.2xlarge,g6.2xlarge")
    wanted("SpotMax", (), most)
    wanted("OnDemandMax", (), answers["SpotMax"])
    if not (answers["SpotMax"].isdecimal() and answers["OnDemandMax"].isdecimal()):
        raise OperatorError("SpotMax and OnDemandMax must be numbers of instances")
    wanted("RequestQueueName", found.queues)
    wanted("ObjectiveWaitSeconds", (), "10")
    wanted("AlarmEmail", ())
    # Without any, types are chosen by attributes.
    return {name: it for name, it in answers.items() if it or name == "InstanceTypes"}


def cost_text(aws: Aws, found: Found, given: Mapping[str, str], now: datetime) -> str:
    """Say what the stack will cost itself, and what its on-demand instances may cost an hour."""
    _, types = found.on_demand.get(given.get("OnDemandGroupName", ""), (0, ()))
    types = types or tuple(filter(None, given.get("InstanceTypes", "").split(",")))
    text = f"Spotkeeper itself costs about {ITSELF_USD} USD a month"
    try:
        usd = aws.prices(frozenset(), {*types}, now, now).on_demand.values()
    except FleetError as error:
        return f"{text}; the prices of instances are not known: {error}"
    most = int(given["OnDemandMax"])
    dearest = f"{most * max(usd):.2f} USD" if usd else "an unknown price"
    return f"{text}; {most} on-demand instances cost up to {dearest} an hour while they are needed"


def overrides_of(text: str) -> dict[str, str]:
    """Read the parameters out of samconfig.toml; raises `OperatorError`."""
    try:
        deploy = tomllib.loads(text).get("default", {}).get("deploy", {}).get("parameters", {})
        each = deploy.get(KEY, "")
        # `sam deploy --guided` quotes each value.
        each = shlex.split(each) if isinstance(each, str) else each
        return dict(one.split("=", 1) for one in each)
    except (ValueError, AttributeError, TypeError) as error:
        raise OperatorError(f"samconfig.toml cannot be read: {error}") from error


def with_overrides(text: str, given: Mapping[str, str]) -> str:
    """Write parameters into samconfig.toml, and leave all else as it is."""
    if overrides_of(text) == given:
        return text
    quoted = partial(json.dumps, ensure_ascii=False)
    joined = " ".join(
        f"{name}={quoted(value) if re.search(r'[\s"\']', value) else value}"
        for name, value in given.items()
    )
    head, section, rest = text.partition(SECTION)
    own, table, others = rest.partition("\n[")
    kept = re.sub(rf"^{KEY} *= *(\[.*?\]|.*?)$\n?", "", own, flags=re.MULTILINE | re.DOTALL)
    written = f"{KEY} = {quoted(joined)}"
    whole = f"{head}{section or f'\n{SECTION}'}\n{written}\n{kept.lstrip(chr(10))}{table}{others}"
    with suppress(OperatorError):
        if overrides_of(whole) == given:
            return whole
    raise OperatorError(f"samconfig.toml cannot be changed: put this below {SECTION}: {written}")
