"""When a machine of one's own is cheaper than the cloud: months, utilisation, cost of a request.

    months = machine / (cloud - power - hosting)

each of the three in USD a month, the cloud's for the hours in which it would have run.
"""

from dataclasses import dataclass

# Of an average year: 8760 / 12.
HOURS_A_MONTH = 730.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMachine:
    """A machine that is bought: USD, watts at work, USD a kWh and a month, months that it lasts.

    `requests_per_hour` is what it serves when it is busy; None where that is not known.
    """

    price: float
    watts: float
    kwh_price: float = 0.15
    hosting_month: float = 0.0
    life_months: float = 36.0
    requests_per_hour: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudPrice:
    """What does the same work in the cloud: instances at USD an hour, for a share of the time."""

    hour: float
    instances: float = 1.0
    utilisation: float = 1.0
    requests_per_hour: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakeven:
    """The answer; `months` is None when it never pays, costs of 1,000 requests where known."""

    cloud_month: float
    power_month: float
    hosting_month: float
    months: float | None
    needed_utilisation: float
    own_hour: float
    own_thousand: float | None
    cloud_thousand: float | None


def breakeven(
    machine: OwnMachine, cloud: CloudPrice, hours_a_month: float = HOURS_A_MONTH
) -> Breakeven:
    """Compare a machine with the cloud instances that do its work.

    Power is counted for the time at work. `needed_utilisation` is the share of the time from which
    on the machine is cheaper over its life; above 1 it never is. `own_hour` is USD an hour at work.
    """
    busy_h = hours_a_month * cloud.utilisation
    cloud_month = cloud.hour * cloud.instances * busy_h
    power_month = machine.watts / 1000 * machine.kwh_price * busy_h
    gain = cloud_month - power_month - machine.hosting_month
    own_month = machine.price / machine.life_months + machine.hosting_month
    gain_hour = cloud.hour * cloud.instances - machine.watts / 1000 * machine.kwh_price
    own_hour = (own_month + power_month) / busy_h
    return Breakeven(
        cloud_month=cloud_month,
        power_month=power_month,
        hosting_month=machine.hosting_month,
        months=machine.price / gain if gain > 0 else None,
        needed_utilisation=own_month / (gain_hour * hours_a_month)
        if gain_hour > 0
        else float("inf"),
        own_hour=own_hour,
        own_thousand=_thousand(own_hour, machine.requests_per_hour),
        cloud_thousand=_thousand(cloud.hour * cloud.instances, cloud.requests_per_hour),
    )


def _thousand(hour: float, requests_per_hour: float | None) -> float | None:
    return None if requests_per_hour is None else 1000 * hour / requests_per_hour
