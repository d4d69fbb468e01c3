"""What the account and region allow: quotas, instance types, roles, concurrency, keys."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from botocore.exceptions import ClientError

from spotkeeper.adapters.doctor.looking import Clients, filtered, look, pages
from spotkeeper.adapters.fleet_documents import OVERRIDES
from spotkeeper.adapters.stacks import DOCUMENTS_ROOT
from spotkeeper.domain.doctor.checks import ROLES
from spotkeeper.domain.doctor.facts import AccountFacts, GroupFacts, LaunchTemplate, Unseen, known

_AUTO_SCALING = "AWSServiceRoleForAutoScaling"
_DOCUMENT = re.compile(rf"{DOCUMENTS_ROOT}/[^/]+/fleets/[^/]+")


def account_facts(
    client: Clients,
    groups: Sequence[GroupFacts],
    defaults: Mapping[str, str] | Unseen = MappingProxyType({}),
) -> AccountFacts:
    """Look at the account for what these groups need of it."""
    ec2, kms = client("ec2"), client("kms")
    launched = [g.launch_template for g in groups if isinstance(g.launch_template, LaunchTemplate)]
    keys = sorted({key for template in launched for key in template.keys})
    types = {t for group in groups for t in group.types}
    arguments = ("describe_instance_types", "InstanceTypes", "instance-type", types)
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
    )


def offers(ec2: Any, types: Iterable[str]) -> dict[str, frozenset[str]]:
    """Read in which zones of a client's region each instance type is offered."""
    zones: dict[str, set[str]] = defaultdict(set)
    operation, key = "describe_instance_type_offerings", "InstanceTypeOfferings"
    arguments = {"LocationType": "availability-zone"}
    for offer in filtered(ec2, operation, key, "instance-type", types, **arguments):
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
    """Say whether Auto Scaling may use a key: by a grant, by its policy, or as a key of AWS's."""
    described = kms.describe_key(KeyId=key)["KeyMetadata"]
    if described.get("KeyManager") == "AWS":
        return True
    # A launch template may name a key by its alias, which only DescribeKey takes.
    arn = described["Arn"]
    grants = pages(kms, "list_grants", "Grants", KeyId=arn)
    if any(_AUTO_SCALING in grant.get("GranteePrincipal", "") for grant in grants):
        return True
    return _AUTO_SCALING in kms.get_key_policy(KeyId=arn, PolicyName="default")["Policy"]


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
