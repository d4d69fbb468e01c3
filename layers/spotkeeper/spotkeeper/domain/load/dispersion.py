"""How bursty arrivals are: the index of dispersion over several time scales."""

from collections.abc import Sequence

# Time scales in seconds.
SCALES_S = (10, 60, 300)


def dispersion(arrivals: Sequence[int], slot_s: float) -> dict[int, float]:
    """Tell the index of dispersion of arrivals by slot, by time scale, where it is known."""
    indices = {scale: index_of_dispersion(arrivals, round(scale / slot_s)) for scale in SCALES_S}
    return {scale: index for scale, index in indices.items() if index is not None}


def index_of_dispersion(arrivals: Sequence[int], slots: int) -> float | None:
    """Variance over mean of the number of arrivals in spans of so many slots; None when unknown.

    Spans are counted back from the newest slot. 1 is Poisson traffic; Cox & Lewis, The Statistical
    Analysis of Series of Events (1966), chapter 4.
    """
    spans = len(arrivals) // slots
    newest_first = arrivals[::-1]
    sums = [sum(newest_first[at * slots : (at + 1) * slots]) for at in range(spans)]
    total = sum(sums)
    if spans < 2 or not total:  # noqa: PLR2004
        return None
    return (spans * sum(value * value for value in sums) - total**2) / ((spans - 1) * total)
