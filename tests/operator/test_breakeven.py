"""When a machine pays for itself: by hand, by its laws, and on the command line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotkeeper_operator.money.breakeven import HOURS_A_MONTH, CloudPrice, OwnMachine, breakeven
from tests.operator.command import answered, refused

MACHINE = OwnMachine(price=10_000, watts=1500, kwh_price=0.10, hosting_month=100)
money = st.floats(1, 1e5)


def test_by_hand() -> None:
    """730 h at 1.4943: 1090.84; 1.5 kW at 0.10: 109.50; 10,000 / (1090.84 - 109.50 - 100)."""
    found = breakeven(MACHINE, CloudPrice(hour=1.4943))
    assert found.cloud_month == pytest.approx(1090.839)
    assert found.power_month == pytest.approx(109.5)
    assert found.months == pytest.approx(11.346, abs=1e-3)
    assert found.needed_utilisation == pytest.approx((10_000 / 36 + 100) / (1.3443 * 730))


# What the three published months come to, each for a machine of 10,000 USD: USD a month. The prices
# behind them are not known; the first two are apart by the power of 1.5 kW over 720 h at 0.058.
CLOUD_MONTH, MONTH_H, KWH = 676.378, 720.0, 0.058


@pytest.mark.parametrize(
    ("watts", "cloud_month", "months"),
    [(1500, CLOUD_MONTH, "16.2936"), (0, CLOUD_MONTH, "14.7846"), (0, 600.0, "16.6667")],
)
def test_the_published_months_follow_from_the_formula(
    watts: float, cloud_month: float, months: str
) -> None:
    machine = OwnMachine(price=10_000, watts=watts, kwh_price=KWH)
    found = breakeven(machine, CloudPrice(hour=cloud_month / MONTH_H), MONTH_H)
    assert found.months is not None
    assert f"{found.months:.4f}" == months


def test_a_cloud_that_costs_less_than_power_never_loses() -> None:
    found = breakeven(MACHINE, CloudPrice(hour=0.15))
    assert found.months is None
    assert found.needed_utilisation == float("inf")


def test_a_thousand_requests() -> None:
    machine = OwnMachine(price=7300 * 36, watts=0, life_months=36, requests_per_hour=500)
    found = breakeven(machine, CloudPrice(hour=3.0, instances=2, requests_per_hour=1000))
    assert found.own_hour == pytest.approx(10.0)
    assert found.own_thousand == pytest.approx(20.0)
    assert found.cloud_thousand == pytest.approx(6.0)


@given(price=money, hour=st.floats(0.01, 50), hosting=st.floats(0, 1000), use=st.floats(0.05, 1))
def test_after_those_months_both_have_cost_the_same(
    price: float, hour: float, hosting: float, use: float
) -> None:
    machine = OwnMachine(price=price, watts=500, kwh_price=0.2, hosting_month=hosting)
    found = breakeven(machine, CloudPrice(hour=hour, utilisation=use))
    if found.months is not None:
        own = price + found.months * (found.power_month + hosting)
        assert own == pytest.approx(found.months * found.cloud_month)


@given(price=money, hour=st.floats(0.2, 50))
def test_at_the_needed_use_it_pays_for_itself_when_its_life_ends(price: float, hour: float) -> None:
    machine = OwnMachine(price=price, watts=500, kwh_price=0.2)
    use = breakeven(machine, CloudPrice(hour=hour)).needed_utilisation
    if use <= 1:
        found = breakeven(machine, CloudPrice(hour=hour, utilisation=use))
        assert found.months == pytest.approx(machine.life_months)


def test_the_command() -> None:
    told = ("breakeven", "--machine", "10000", "--watts", "1500", "--price", "1.4943")
    out = answered(*told, "--kwh", "0.1", "--hosting", "100")
    assert "pays for itself  after 11.35 months" in out
    found = json.loads(answered(*told, "--kwh", "9", "--json"))
    assert (found["months"], found["needed_utilisation"]) == (None, None)
    assert HOURS_A_MONTH * 12 == 8760


@pytest.mark.parametrize("wrong", ["--life 0", "--utilisation 1.5", "--price -1", "--kwh much"])
def test_what_is_refused(wrong: str) -> None:
    told = refused("breakeven", "--machine", "1", "--watts", "1", "--price", "1", *wrong.split())
    assert "Invalid value" in told
