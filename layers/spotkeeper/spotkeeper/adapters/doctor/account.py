"""What the account and region allow: quotas, instance types, roles, concurrency, keys."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import batched
from types import MappingProxyType
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from spotkeeper.adapters.doctor.looking import all_or_unseen, look
from spotkeeper.domain.doctor.checks import ROLES
from spotkeeper.domain.doctor.facts import AccountFacts, GroupFacts, Machine, Unseen, known

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import InstanceTypeInfoTypeDef
    from mypy_boto3_iam import IAMClient
    from mypy_boto3_kms import KMSClient
    from mypy_boto3_lambda import LambdaClient
    from mypy_boto3_service_quotas import ServiceQuotasClient

# AWS's own limit of one DescribeInstanceTypes call.
TYPES_A_CALL = 100
_LAUNCHES = "AWSServiceRoleForAutoScaling"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountClients:
    """The services that know an account."""

    quotas: "ServiceQuotasClient"
    ec2: "EC2Client"
    iam: "IAMClient"
    functions: "LambdaClient"
    kms: "KMSClient"


def account_facts(
    clients: AccountClients,
    groups: Sequence[GroupFacts],
    scores: Mapping[str, int] | Unseen | None = None,
    defaults: Mapping[str, str] | Unseen = MappingProxyType({}),
) -> AccountFacts:
    """Look at the account for what these groups need of it."""
    types = sorted({t for group in groups for t in group.types})
    machines = [g.machine for g in groups if isinstance(g.machine, Machine)]
    keys = sorted({key for machine in machines for key in machine.keys})
    found = look("ec2:DescribeInstanceTypes", lambda: _types(clients.ec2, types))
    return AccountFacts(
        quotas=look("servicequotas:ListServiceQuotas", lambda: _quotas(clients.quotas)),
        vcpus=found
        if isinstance(found, Unseen)
        else {name: one["VCpuInfo"]["DefaultVCpus"] for name, one in found.items()},
        architectures={
            name: frozenset(map(str, one["ProcessorInfo"]["SupportedArchitectures"]))
            for name, one in known(found, {}).items()
            if "ProcessorInfo" in one
        },
        metadata_defaults=defaults,
        offered=look("ec2:DescribeInstanceTypeOfferings", lambda: _offers(clients.ec2, types)),
        roles=look("iam:GetRole", lambda: _roles(clients.iam)),
        unreserved_concurrency=look(
            "lambda:GetAccountSettings", lambda: _concurrency(clients.functions)
        ),
        key_grants=_granted(clients.kms, keys),
        placement_scores=scores,
    )


def _quotas(client: "ServiceQuotasClient") -> dict[str, float]:
    pages = client.get_paginator("list_service_quotas").paginate(ServiceCode="ec2")
    return {quota["QuotaName"]: quota["Value"] for page in pages for quota in page["Quotas"]}


def _types(client: "EC2Client", types: Sequence[str]) -> "dict[str, InstanceTypeInfoTypeDef]":
    """Describe types; one that does not exist in the region is left out."""
    found: dict[str, InstanceTypeInfoTypeDef] = {}
    for some in batched(types, TYPES_A_CALL, strict=False):
        # A filter, because the parameter InstanceTypes fails as a whole for one unknown name.
        pages = client.get_paginator("describe_instance_types").paginate(
            Filters=[{"Name": "instance-type", "Values": list(some)}]
        )
        for page in pages:
            for each in page["InstanceTypes"]:
                found[each["InstanceType"]] = each
    return found


def _offers(client: "EC2Client", types: Sequence[str]) -> dict[str, frozenset[str]]:
    zones: dict[str, set[str]] = defaultdict(set)
    for some in batched(types, TYPES_A_CALL, strict=False):
        pages = client.get_paginator("describe_instance_type_offerings").paginate(
            LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": list(some)}],
        )
        for page in pages:
            for offer in page["InstanceTypeOfferings"]:
                zones[offer["InstanceType"]].add(offer["Location"])
    return {instance_type: frozenset(where) for instance_type, where in zones.items()}


def _roles(client: "IAMClient") -> frozenset[str]:
    return frozenset(role for role in ROLES if _exists(client, role))


def _exists(client: "IAMClient", role: str) -> bool:
    try:
        client.get_role(RoleName=role)
    except ClientError as error:
        if error.response["Error"]["Code"] != "NoSuchEntity":
            raise
        return False
    return True


def _concurrency(client: "LambdaClient") -> int:
    return client.get_account_settings()["AccountLimit"]["UnreservedConcurrentExecutions"]


def _granted(client: "KMSClient", keys: Sequence[str]) -> frozenset[str] | Unseen:
    """Find the keys that Auto Scaling may use: by a grant, by the policy, or as AWS's own."""
    looked = all_or_unseen(
        look("kms:DescribeKey, kms:ListGrants, kms:GetKeyPolicy", partial(_may, client, key))
        for key in keys
    )
    if isinstance(looked, Unseen):
        return looked
    return frozenset(key for key, may in zip(keys, looked, strict=True) if may)


def _may(client: "KMSClient", key: str) -> bool:
    known = client.describe_key(KeyId=key)["KeyMetadata"]
    if known.get("KeyManager") == "AWS":
        return True
    # A launch template may name a key by its alias, which only DescribeKey takes.
    arn = known["Arn"]
    pages = client.get_paginator("list_grants").paginate(KeyId=arn)
    if any(_LAUNCHES in g.get("GranteePrincipal", "") for p in pages for g in p["Grants"]):
        return True
    return _LAUNCHES in client.get_key_policy(KeyId=arn, PolicyName="default")["Policy"]
