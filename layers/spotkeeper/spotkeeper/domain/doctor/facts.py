"""What the doctor examines, as values; each part may be `Unseen` instead of known.

A part that could not be read never counts as good: it becomes a finding of its own, with the AWS
action and its answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from spotkeeper.domain.fleet import Fleet

GONE = "Gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """A fact that could not be read: the AWS action, and why.

    `why` begins with the kind of error: "Refused: AccessDenied: ...".
    """

    action: str
    why: str

    @property
    def kind(self) -> str:
        """The kind of error; empty where the call itself did not fail."""
        kind, colon, _ = self.why.partition(":")
        return kind if colon else ""


def known[T](value: T | Unseen, unknown: T) -> T:
    """Return a value, or `unknown` where it is unseen."""
    return unknown if isinstance(value, Unseen) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A lifecycle hook of a group."""

    name: str
    launching: bool
    heartbeat_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """How a group's launch template starts an instance, with the account's and image's defaults.

    `profile_policies` are the names or ARNs of the policies of its role; None without an instance
    profile. `keys` encrypt its disks; `tag_keys` are of the tags that the template itself sets;
    `max_price` is the highest spot price that it pays.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """An Auto Scaling group's configuration; `spot_share` is 1 for a group wholly on spot.

    Where the group selects `types` by attributes, `selected` are those that AWS answers, else it is
    None. `spot_share` is None where its launch template could not be read. A `weighted` group
    counts its capacity in units, not in instances.
    `allocation` is the strategy for spot, empty without a mixed instances policy.
    """

    name: str
    spot_share: float | None
    minimum: int
    maximum: int
    zones: frozenset[str]
    types: tuple[str, ...]
    selected: tuple[str, ...] | Unseen | None = None
    desired: int = 0
    allocation: str = ""
    max_price: str = ""
    capacity_rebalance: bool = False
    protected_from_scale_in: bool = False
    protected_instances: tuple[str, ...] = ()
    retains_abandoned: bool = False
    deletion_protection: str = "none"
    weighted: bool = False
    # Suspended processes, each with the reason that AWS reports.
    suspended: Mapping[str, str] = field(default_factory=dict)
    hooks: tuple[Hook, ...] | Unseen = ()
    policies: tuple[str, ...] | Unseen = ()
    scheduled_actions: tuple[str, ...] | Unseen = ()
    warm_pool: bool | Unseen = False
    tag_keys: tuple[str, ...] = ()
    machine: Machine | Unseen = field(default_factory=Machine)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountFacts:
    """What the account and region allow.

    `quotas` are vCPUs by the quota's name in Service Quotas, `vcpus` and `architectures` are of the
    instance types that exist, `offered` the zones that offer a type, `key_grants` the customer keys
    that the Auto Scaling service-linked role may use. `placement_scores`, of 10, are by fleet.
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
    """The deployed stack; `search_log_ages` are seconds, by fleet.

    `queues_unread` are the event source mappings that do not read their queue, `stopped_functions`
    those with a reserved concurrency of 0, `silenced_alarms` those whose actions are disabled.
    `failed_turns` are fleets with what failed in the last hour of their records.
    """

    schedules_disabled: tuple[str, ...] | Unseen = ()
    rules_disabled: tuple[str, ...] | Unseen = ()
    rules_without_target: tuple[str, ...] | Unseen = ()
    queues_unread: tuple[str, ...] | Unseen = ()
    stopped_functions: tuple[str, ...] | Unseen = ()
    silenced_alarms: tuple[str, ...] | Unseen = ()
    unconfirmed: tuple[str, ...] | Unseen = ()
    nobody_told: bool | Unseen = False
    sends_search_logs: str = "SendSearchLogs"
    search_log_ages: Mapping[str, float | None] | Unseen = field(default_factory=dict)
    failed_turns: tuple[tuple[str, str], ...] | Unseen = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What the jobs of a stack need. `policy` is the one that their machines' role must have.

    `on_shutdown` says what a shutdown does to a machine; `zones` are those of the subnets.
    """

    machine: Machine | Unseen = field(default_factory=Machine)
    on_shutdown: str = "terminate"
    policy: str = ""
    zones: frozenset[str] | Unseen = frozenset()
    bucket: bool | Unseen = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that the doctor examines; without a stack, what one would be deployed to.

    `other_stacks` are their fleet documents, as parameters, by the groups that they name.
    """

    fleets: tuple[Fleet, ...]
    wrong_documents: tuple[str, ...]
    groups: Mapping[str, GroupFacts] | Unseen
    account: AccountFacts
    other_stacks: Mapping[str, tuple[str, ...]] | Unseen = field(default_factory=dict)
    stack: StackFacts | None = None
    jobs: JobFacts | None = None
