"""What the doctor examines, as values; each part may be `Unseen` instead of known.

A part that could not be read never counts as good: it becomes a finding of its own, with the AWS
action and its answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spotkeeper.domain.fleet import Fleet
from spotkeeper.domain.spread import Place

GONE = "Gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """A fact that could not be read: the AWS action, and why.

    `kind` is the kind of error, such as "Refused"; empty where the call itself did not fail.
    """

    action: str
    why: str
    kind: str = ""


def known[T](value: T | Unseen, unknown: T) -> T:
    """Return a value, or `unknown` where it is unseen."""
    return unknown if isinstance(value, Unseen) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchTemplate:
    """How a group's launch template starts an instance, with the account's and image's defaults.

    `profile_policies` are the ARNs of its role's policies; None without an instance profile. `keys`
    encrypt its disks. `tag_keys` are the keys of the tags that the template itself sets.
    `max_price` is the highest spot price that it pays. `types` are those that it launches, of a
    template of some overrides alone. `missing` is what it names and does not exist, such as its key
    pair. `small_disks` are smaller than those of the image, and `kept_disks` outlive an instance.
    Spot launches do nothing of `not_for_spot`, nor take `reservations_only`, those of capacity
    reservations.
    """

    market_options: bool = False
    max_price: str = ""
    metadata_enabled: bool = True
    tokens_required: bool = True
    hop_limit: int = 2
    tags_in_metadata: bool = True
    architecture: str = ""
    profile_policies: frozenset[str] | Unseen | None = frozenset()
    keys: tuple[str, ...] = ()
    tag_keys: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    small_disks: tuple[str, ...] = ()
    kept_disks: tuple[str, ...] = ()
    not_for_spot: tuple[str, ...] = ()
    reservations_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """An Auto Scaling group; `aws` is the answer of DescribeAutoScalingGroups.

    `spot_share` is 1 for a group wholly on spot, and None where its launch template could not be
    read. A group may name attributes in place of types: `selected` are then the types that AWS
    selects, else None. `hooks` are as DescribeLifecycleHooks answers. `further_templates` are those
    of single overrides. `missing` are subnets and target groups that do not exist; subnets that are
    `full` have no free address.
    """

    aws: Mapping[str, Any]
    spot_share: float | None
    types: tuple[str, ...]
    selected: tuple[str, ...] | Unseen | None = None
    hooks: tuple[Mapping[str, Any], ...] | Unseen = ()
    policies: tuple[str, ...] | Unseen = ()
    scheduled_actions: tuple[str, ...] | Unseen = ()
    launch_template: LaunchTemplate | Unseen = field(default_factory=LaunchTemplate)
    further_templates: tuple[LaunchTemplate | Unseen, ...] = ()
    missing: tuple[str, ...] = ()
    full: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.aws["AutoScalingGroupName"])


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountFacts:
    """What the account and region allow.

    `quotas` are vCPUs, by the name that Service Quotas gives the quota. `vcpus` and `architectures`
    have the instance types that exist, `offered` the zones that offer a type. The service-linked
    role of Auto Scaling may use the keys of `key_grants`. `placement_scores` are of 10, by fleet.
    """

    quotas: Mapping[str, float] | Unseen
    vcpus: Mapping[str, int] | Unseen
    offered: Mapping[str, frozenset[str]] | Unseen
    roles: frozenset[str] | Unseen
    unreserved_concurrency: int | Unseen
    architectures: Mapping[str, frozenset[str]] = field(default_factory=dict)
    metadata_defaults: Mapping[str, str] | Unseen = field(default_factory=dict)
    key_grants: frozenset[str] | Unseen = frozenset()
    placement_scores: Mapping[str, int] | Unseen | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFacts:
    """The deployed stack.

    `queues_unread` are event source mappings that are disabled, `queues_gone` queues that somebody
    deleted. `stopped_functions` have a reserved concurrency of 0; `silenced_alarms` have their
    actions disabled. `unconfirmed` are e-mail addresses. `search_log_ages` are seconds by fleet;
    None if no log ever arrived. `failed_turns` are fleets, each with what failed in the last hour
    of its records, `unread` what their newest turns could not read. `set_by_hand` is the first
    fleet's document with what it says otherwise than the stack's parameters, as a merge patch.
    """

    schedules_disabled: tuple[str, ...] | Unseen = ()
    rules_disabled: tuple[str, ...] | Unseen = ()
    rules_without_target: tuple[str, ...] | Unseen = ()
    queues_unread: tuple[str, ...] | Unseen = ()
    queues_gone: tuple[str, ...] | Unseen = ()
    stopped_functions: tuple[str, ...] | Unseen = ()
    silenced_alarms: tuple[str, ...] | Unseen = ()
    unconfirmed: tuple[str, ...] | Unseen = ()
    nobody_told: bool | Unseen = False
    sends_search_logs: str = "SendSearchLogs"
    search_log_ages: Mapping[str, float | None] | Unseen = field(default_factory=dict)
    failed_turns: tuple[tuple[str, str], ...] | Unseen = ()
    unread: tuple[tuple[str, str], ...] | Unseen = ()
    set_by_hand: tuple[tuple[str, str], ...] | Unseen = ()
    regions: tuple[tuple[str, Place], ...] | Unseen = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What the jobs of a stack need. `policy` is the one that their machines' role must have.

    `on_shutdown` says what a shutdown does to a machine; `zones` are those of the subnets.
    """

    launch_template: LaunchTemplate | Unseen = field(default_factory=LaunchTemplate)
    on_shutdown: str = "terminate"
    policy: str = ""
    zones: frozenset[str] | Unseen = frozenset()
    bucket: bool | Unseen = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that the doctor examines; before a stack is deployed, the account and the groups.

    `other_stacks` has the groups that other stacks name, each with the parameters that name it.
    """

    fleets: tuple[Fleet, ...]
    wrong_documents: tuple[str, ...]
    groups: Mapping[str, GroupFacts] | Unseen
    account: AccountFacts
    other_stacks: Mapping[str, tuple[str, ...]] | Unseen = field(default_factory=dict)
    stack: StackFacts | None = None
    jobs: JobFacts | None = None
