"""When an instance is replaced because its workers do not work."""

from dataclasses import dataclass

from spotkeeper.domain.settings.setting import instances, seconds, setting, share


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHealthPolicy:
    """When an instance in service is replaced because its workers do not work."""

    enabled: bool = setting("replace workers that do not work", default=True)
    # Silence shorter than this may be one long request; beyond it, chance decides.
    silent_after_s: int = seconds(
        "a worker is silent if it finishes no request for this time while its peers finish some",
        "requests take minutes (longer)",
        least=60,
        most=3600,
        default=300,
    )
    failing_share: float = share(
        "replace a worker if this share of its requests failed", default=0.9
    )
    failing_requests: int = setting(
        "judge a worker by its failures only after this many requests",
        unit="requests",
        least=1,
        default=5,
    )
    # A throttled GPU serves three times slower than its peers; few requests prove nothing.
    slow_factor: float = setting(
        "replace a worker if its requests take this many times as long as its peers'",
        "instance types differ much in speed (higher)",
        unit="times",
        above=1,
        most=100,
        default=3.0,
    )
    slow_requests: int = setting(
        "judge a worker by its speed only after this many requests",
        unit="requests",
        least=1,
        default=10,
    )
    replacements_per_hour: int = instances(
        "most instances that the fleet replaces in an hour", "the fleet is large", default=2
    )
