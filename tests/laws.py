"""How many examples a property draws: some always, many more in `make laws`."""

from hypothesis import settings


def some(examples: int, *, of_many: int = 20_000) -> settings:
    """Draw so many examples of a slow property, and `of_many` where laws are looked for."""
    many = settings.get_current_profile_name() == "laws"
    return settings(max_examples=of_many if many else examples)
