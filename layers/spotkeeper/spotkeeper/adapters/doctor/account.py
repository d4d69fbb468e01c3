"""What the account and region allow: quotas, instance types, roles, concurrency, keys, scores."""

import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from botocore.exceptions import ClientError

from spotkeeper.adapters.doctor.looking import Clients, look
from spotkeeper.adapters.ec2.auto_scaling import filtered, pages
from spotkeeper.adapters.fleet_documents import OVERRIDES
from spotkeeper.adapters.stacks import DOCUMENTS_ROOT
from spotkeeper.adapters.table import Items, epoch
from spotkeeper.domain.doctor.checks import ROLES
from spotkeeper.domain.doctor.facts import AccountFacts, GroupFacts, LaunchTemplate, Unseen, known
from spotkeeper.domain.fleet import Fleet
from spotkeeper.ports import Refused

_AUTO_SCALING = "AWSServiceRoleForAutoScaling"
_DOCUMENT = re.compile(rf"{DOCUMENTS_ROOT}/[^/]+/fleets/[^/]+")
# AWS scores a few new configurations a day only.
SCORE_KEPT = timedelta(days=1)


def account_facts(
    client: Clients,
    groups: Sequence[GroupFacts],
    scores: Mapping[str, int] | Unseen | None = None,
    defaults: Mapping[str, str] | Unseen = MappingProxyType({}),
) -> AccountFacts:
    """Look at the account for what these groups need of it."""
    ec2, kms = client("ec2"), client("kms")
    templates = [each for g in groups for each in (g.launch_template, *g.further_templates)]
    keys = sorted({key for t in templates if isinstance(t, LaunchTemplate) for key in t.keys})
    types = {t for group in groups for t in group.types}
    arguments = ("describe_instance_types", "InstanceTypes", {"instance-type": types})
    listed = look("ec2:DescribeInstanceTypes", lambda: list(filtered(ec2, *arguments)))
    quotas = ("list_service_quotas", "Quotas")
    limits = look("lambda:GetAccountSettings", lambda: client("lambda").get_account_settings())
    return AccountFacts(
        quotas=look(
            "servicequotas:ListServiceQuotas",
            lambda: {
                quota["QuotaName"]: quota["Value"]
                for quota in pages(client("service-quotas"), *quotas, ServiceCode="ec2")
            },
        ),
        vcpus=listed
        if isinstance(listed, Unseen)
        else {each["InstanceType"]: each["VCpuInfo"]["DefaultVCpus"] for each in listed},
        architectures={
            each["InstanceType"]: frozenset(each["ProcessorInfo"]["SupportedArchitectures"])
            for each in known(listed, [])
            if "ProcessorInfo" in each
        },
        metadata_defaults=defaults,
        offered=look("ec2:DescribeInstanceTypeOfferings", lambda: offers(ec2, types)),
        roles=look(
            "iam:GetRole", lambda: frozenset(role for role in ROLES if _exists(client("iam"), role))
        ),
        unreserved_concurrency=limits
        if isinstance(limits, Unseen)
        else limits["AccountLimit"]["UnreservedConcurrentExecutions"],
        key_grants=look(
            "kms:DescribeKey, kms:ListGrants, kms:GetKeyPolicy",
            lambda: frozenset(key for key in keys if _may_use(kms, key)),
        ),
        placement_scores=scores,
    )


def offers(ec2: Any, types: Iterable[str]) -> dict[str, frozenset[str]]:
    """Read in which zones of a client's region each instance type is offered."""
    zones: dict[str, set[str]] = defaultdict(set)
    operation, key = "describe_instance_type_offerings", "InstanceTypeOfferings"
    arguments = {"LocationType": "availability-zone"}
    for offer in filtered(ec2, operation, key, {"instance-type": types}, **arguments):
        zones[offer["InstanceType"]].add(offer["Location"])
    return {instance_type: frozenset(where) for instance_type, where in zones.items()}


def _exists(iam: Any, role: str) -> bool:
    try:
        iam.get_role(RoleName=role)
    except ClientError as error:
        if error.response["Error"]["Code"] != "NoSuchEntity":
            raise
        return False
    return True


def _may_use(kms: Any, key: str) -> bool:
    """Say whether Auto Scaling may use a key: by a grant, by its policy, or as a key of AWS's.

    Nobody may use one that is disabled, or waits for its deletion.
    """
    described = kms.describe_key(KeyId=key)["KeyMetadata"]
    if described.get("KeyState", "Enabled") != "Enabled":
        return False
    if described.get("KeyManager") == "AWS":
        return True
    # A launch template may name a key by its alias, which only DescribeKey takes.
    arn = described["Arn"]
    grants = pages(kms, "list_grants", "Grants", KeyId=arn)
    if any(_AUTO_SCALING in grant.get("GranteePrincipal", "") for grant in grants):
        return True
    return _AUTO_SCALING in kms.get_key_policy(KeyId=arn, PolicyName="default")["Policy"]


# --- spot placement scores, kept for a day: pk score#FLEET  sk score ------------------------------


def placement_scores(
    client: Clients,
    table: str,
    fleets: Iterable[Fleet],
    groups: Mapping[str, GroupFacts],
    now: datetime,
) -> Mapping[str, int] | Unseen:
    """Score each fleet's `spot_max`, of 10; fleets whose types are not named are left out."""
    kept = _Scores(client("dynamodb"), table)

    def read() -> Mapping[str, int]:
        scores = {}
        for fleet in fleets:
            group = groups.get(fleet.spot_group)
            if group and group.types and fleet.bounds.spot_max:
                wanted = (fleet.bounds.spot_max, sorted(group.types))
                scores[fleet.name] = kept.score(client("ec2"), fleet.name, *wanted, now)
        return {name: score for name, score in scores.items() if score is not None}

    return look("ec2:GetSpotPlacementScores", read)


class _Scores(Items):
    def score(
        self, ec2: Any, fleet: str, capacity: int, types: list[str], now: datetime
    ) -> int | None:
        """Read a score of the last day for the same, else ask for it."""
        doing, at = "ec2:GetSpotPlacementScores", f"score#{fleet}"
        configuration = f"{capacity} of {', '.join(types)}"
        kept = self._get(doing, at, "score") or {}
        fresh = kept.get("configuration", {}).get("S") == configuration
        if fresh and now - datetime.fromisoformat(kept["at"]["S"]) < SCORE_KEPT:
            return int(kept["score"]["N"])
        answer = ec2.get_spot_placement_scores(
            InstanceTypes=types,
            TargetCapacity=capacity,
            SingleAvailabilityZone=False,
            RegionNames=[ec2.meta.region_name],
        )
        for entry in answer["SpotPlacementScores"]:
            if entry["Region"] == ec2.meta.region_name:
                score: int = entry["Score"]
                expires_at = epoch(now + SCORE_KEPT)
                about = {"configuration": configuration, "at": now.isoformat()}
                # A role that only looks remembers none.
                with contextlib.suppress(Refused):
                    self._put(doing, at, "score", score=score, expires_at=expires_at, **about)
                return score
        return None


# --- which groups other stacks name ---------------------------------------------------------------


def groups_elsewhere(ssm: Any, own_path: str | None) -> Mapping[str, tuple[str, ...]]:
    """Return for each group the parameters that name it, except those below `own_path`."""
    arguments = {"Path": DOCUMENTS_ROOT, "Recursive": True}
    parameters = pages(ssm, "get_parameters_by_path", "Parameters", **arguments)
    documents: defaultdict[str, dict[str, object]] = defaultdict(dict)
    # Sorted, a document precedes its overrides.
    for name, text in sorted((each["Name"], each["Value"]) for each in parameters):
        if _DOCUMENT.fullmatch(name) and name.rpartition("/")[0] != own_path:
            documents[name.removesuffix(OVERRIDES)] |= _object(text)
    named: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    for name, document in documents.items():
        for group in (document.get("spot_group"), document.get("on_demand_group")):
            if isinstance(group, str):
                named[group] += (name,)
    return named


def _object(text: str) -> dict[str, object]:
    """Read a document without validating it: another stack may be of another release."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
