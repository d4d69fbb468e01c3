"""Which quota an instance type counts against, by the names that Service Quotas uses."""

import pytest

from spotkeeper.domain.doctor.checks import quota_for
from spotkeeper.domain.purchase import PurchaseOption

NAMES = (
    "All F Spot Instance Requests",
    "All G and VT Spot Instance Requests",
    "All Inf Spot Instance Requests",
    "All P4, P3 and P2 Spot Instance Requests",
    "All P5 Spot Instance Requests",
    "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests",
    "All Trn Spot Instance Requests",
    "Running Dedicated p3 Hosts",
    "Running On-Demand G and VT instances",
    "Running On-Demand High Memory instances",
    "Running On-Demand Inf instances",
    "Running On-Demand P instances",
    "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances",
)
STANDARD = "Standard (A, C, D, H, I, M, R, T, Z)"


@pytest.mark.parametrize(
    ("instance_type", "spot", "on_demand"),
    [
        ("g5.xlarge", "G and VT", "G and VT"),
        ("g4dn.xlarge", "G and VT", "G and VT"),
        ("vt1.3xlarge", "G and VT", "G and VT"),
        ("p3.2xlarge", "P4, P3 and P2", "P"),
        ("p4d.24xlarge", "P4, P3 and P2", "P"),
        ("p5.48xlarge", "P5", "P"),
        ("inf2.xlarge", "Inf", "Inf"),
        ("m7i.large", STANDARD, STANDARD),
        ("im4gn.large", STANDARD, STANDARD),
        ("trn1.2xlarge", "Trn", None),
        ("u-6tb1.metal", None, None),
        ("", None, None),
    ],
)
def test_a_type_counts_against_its_family(
    instance_type: str, spot: str | None, on_demand: str | None
) -> None:
    found = quota_for(instance_type, PurchaseOption.SPOT, NAMES)
    assert found == (spot and f"All {spot} Spot Instance Requests")
    found = quota_for(instance_type, PurchaseOption.ON_DEMAND, NAMES)
    assert found == (on_demand and f"Running On-Demand {on_demand} instances")
