"""The rule for a promise stands on few numbers: each that is added is a fit, and is seen here."""

import ast
from pathlib import Path

SIZING = Path(__file__).parents[3] / "layers/spotkeeper/spotkeeper/domain/sizing"
RULE = ("objective", "level", "forecast", "values")
NO_CHOICE = {
    "DAY_S": "a day",
    "NODES": "how finely a distribution is summed up",
    "PRIOR": "worked out of PRIOR_SPREAD and PRIOR_MINUTES",
    "NORMAL": "a function",
    "SHORTEST_SERVICE_S": "what a log can tell",
    "STALE_S": "a setting's default",
    "QUIET_AFTER_S": "a setting's default",
}


def constants(module: str) -> list[str]:
    body = ast.parse((SIZING / f"{module}.py").read_text()).body
    targets = (target for node in body if isinstance(node, ast.Assign) for target in node.targets)
    return [name.id for name in targets if isinstance(name, ast.Name) and name.id.isupper()]


def test_the_rule_has_at_most_twelve_numbers() -> None:
    chosen = [name for module in RULE for name in constants(module) if name not in NO_CHOICE]
    assert len(chosen) <= 12, chosen


def test_each_of_them_is_explained_in_the_documentation() -> None:
    page = (SIZING.parents[4] / "docs/sizing.md").read_text()
    chosen = [name for module in RULE for name in constants(module) if name not in NO_CHOICE]
    assert [name for name in chosen if f"`{name}`" not in page] == []
