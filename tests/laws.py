"""How many examples a property draws: some always, many more in `make laws`; cheap examples."""

from random import Random

from hypothesis import settings
from hypothesis import strategies as st


def some(examples: int, *, of_many: int = 20_000) -> settings:
    """Draw this many examples of a slow property, or `of_many` in the profile `laws`."""
    many = settings.get_current_profile_name() == "laws"
    return settings(max_examples=of_many if many else examples)


shuffles = st.builds(Random, st.integers(0, 2**32))
"""Orders and choices from one number: drawing each costs more than most laws do."""


def rows(width: int, *, min_size: int = 0, max_size: int) -> st.SearchStrategy[list[bytes]]:
    """Draw rows of `width` bytes at once, from which something is made."""
    drawn = st.binary(min_size=width * min_size, max_size=width * max_size)
    return drawn.map(
        lambda many: [many[at : at + width] for at in range(0, len(many) - width + 1, width)]
    )


def series(most: int, *, min_size: int = 0, max_size: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw whole numbers from 0 to `most` (255 at most) at once: a list of them costs much more."""
    return st.binary(min_size=min_size, max_size=max_size).map(
        lambda drawn: tuple(byte % (most + 1) for byte in drawn)
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=4,
)
"""Whatever JSON can say, in little."""
