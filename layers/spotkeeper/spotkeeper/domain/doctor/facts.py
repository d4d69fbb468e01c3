"""What the doctor looks at, as values; every part may be `Unseen` instead of known.

A part that could not be read is never taken for a good one: `examine` makes a finding of it that
names the AWS action and what came of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from spotkeeper.domain.fleet import Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """A fact that could not be read: the AWS action and what came instead of an answer.

    `why` begins with the kind of error, one of the ports': "Refused: AccessDenied: ...".
    """

    action: str
    why: str

    @property
    def kind(self) -> str:
        """What kind of error it was; empty where nothing went wrong with the call."""
        kind, colon, _ = self.why.partition(":")
        return kind if colon else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A lifecycle hook of a group."""

    name: str
    launching: bool
    heartbeat_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """How a group's launch template starts an instance.

    `profile_policies` are the names or ARNs of the policies of its instance profile's role; None
    when it has no profile. `keys` are the customer keys that encrypt its disks; `tag_keys` are
    those of the tags that the template itself gives its instances.
    """

    market_options: bool = False
    tokens_required: bool = True
    hop_limit: int = 2
    tags_in_metadata: bool = True
    profile_policies: frozenset[str] | Unseen | None = frozenset()
    keys: tuple[str, ...] = ()
    tag_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """One Auto Scaling group as it is set up; `spot_share` is 1 for a group wholly on spot.

    `types` is empty where the group chooses them by attributes, `spot_share` None where its launch
    template could not be read. A `weighted` group counts its capacity in units, not in instances.
    """

    name: str
    spot_share: float | None
    minimum: int
    maximum: int
    zones: frozenset[str]
    types: tuple[str, ...]
    desired: int = 0
    capacity_rebalance: bool = False
    protected_from_scale_in: bool = False
    weighted: bool = False
    # Suspended processes, each with the reason that AWS gives.
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

    `quotas` are vCPUs by the quota's name in Service Quotas, `vcpus` those of an instance type,
    `offered` the zones in which a type can be had, `key_grants` the customer keys that the Auto
    Scaling service-linked role may use.
    """

    quotas: Mapping[str, float] | Unseen
    vcpus: Mapping[str, int] | Unseen
    offered: Mapping[str, frozenset[str]] | Unseen
    roles: frozenset[str] | Unseen
    unreserved_concurrency: int | Unseen
    key_grants: frozenset[str] | Unseen = frozenset()
    # Of 10, for each fleet's spot group, by the fleet's name; None where it was not asked.
    placement_scores: Mapping[str, int] | Unseen | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFacts:
    """What the deployed stack looks like; `search_log_ages` are seconds, by fleet.

    `rules_disabled` hand events to nobody, `queues_unread` are the event source mappings that do
    not read their queue.
    """

    schedules_disabled: tuple[str, ...] | Unseen = ()
    rules_disabled: tuple[str, ...] | Unseen = ()
    queues_unread: tuple[str, ...] | Unseen = ()
    unconfirmed: tuple[str, ...] | Unseen = ()
    nobody_told: bool | Unseen = False
    sends_search_logs: str = "SendSearchLogs"
    search_log_ages: Mapping[str, float | None] | Unseen = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that the doctor looks at; without a stack it looks at what one would be given.

    `other_stacks` are their fleet documents, as parameters, by the groups that they name.
    """

    fleets: tuple[Fleet, ...]
    wrong_documents: tuple[str, ...]
    groups: Mapping[str, GroupFacts] | Unseen
    account: AccountFacts
    other_stacks: Mapping[str, tuple[str, ...]] | Unseen = field(default_factory=dict)
    stack: StackFacts | None = None
