"""How an instance is paid for."""

from enum import StrEnum


class PurchaseOption(StrEnum):
    """Spot, or on demand."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"
