"""When an instance is replaced because its workers do not work."""

from dataclasses import dataclass
from typing import Annotated

from spotkeeper.domain.settings.setting import Setting, instances, seconds, share


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHealthPolicy:
    """When an instance in service is replaced because its workers do not work."""

    enabled: Annotated[bool, Setting("replace workers that do not work")] = True
    # Silence shorter than this may be one long request; beyond it, chance decides.
    silent_after_s: Annotated[
        int,
        seconds(
            "a worker is silent after this time without a finished request, while its peers "
            "finish some",
            "requests take minutes (longer)",
            least=60,
            most=3600,
        ),
    ] = 300
    failing_share: Annotated[
        float, share("replace a worker if this share of its requests failed")
    ] = 0.9
    failing_requests: Annotated[
        int,
        Setting(
            "judge a worker by its failures only after this many requests",
            unit="requests",
            least=1,
        ),
    ] = 5
    # A throttled GPU serves three times slower than its peers; few requests prove nothing.
    slow_factor: Annotated[
        float,
        Setting(
            "replace a worker that is this many times slower than its peers",
            "instance types differ much in speed (higher)",
            unit="times",
            above=1,
            most=100,
        ),
    ] = 3.0
    slow_requests: Annotated[
        int,
        Setting(
            "judge a worker by its speed only after this many requests",
            unit="requests",
            least=1,
        ),
    ] = 10
    replacements_per_hour: Annotated[
        int,
        instances(
            "most instances that the fleet replaces in an hour",
            "the fleet is large",
        ),
    ] = 2
