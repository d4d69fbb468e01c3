"""Each stack has its own place for what sam uploads: `sam delete` of one deletes what is there.

The code of another stack with the same content would go with it (aws-sam-cli, `delete_context.py`).
"""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.template.stack import Stack, template

ROOT = Path(__file__).parents[2]
CONFIG = tomllib.loads((ROOT / "samconfig.toml").read_text(encoding="utf-8"))
CASES: dict[str, Any] = {name: of for name, of in CONFIG.items() if isinstance(of, dict)}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_each_stack_of_samconfig_uploads_under_its_own_name() -> None:
    for of in CASES.values():
        stack = of["global"]["parameters"]["stack_name"]
        assert of["deploy"]["parameters"]["s3_prefix"] == stack


@pytest.mark.parametrize("case", CASES)
def test_each_case_of_samconfig_has_parameters_that_the_template_takes(case: str) -> None:
    given = CASES[case]["deploy"]["parameters"].get("parameter_overrides", [])
    values = dict(one.split("=", 1) for one in given)
    parameters = template()["Parameters"]
    assert values.keys() <= parameters.keys()
    for name, value in values.items():
        assert re.fullmatch(parameters[name].get("AllowedPattern", ".*"), value), name
    assert not values or Stack.with_parameters(values).refusals() == []


def test_a_page_that_deploys_another_stack_gives_it_a_prefix_and_its_own_table() -> None:
    """The option alone would leave the next `sam deploy` with the prefix of the first stack."""
    found = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for command in re.findall(r"sam deploy[^\n]*(?:\\\n[^\n]*)*", text):
            assert ("--stack-name" in command) == ("--s3-prefix" in command), (page.name, command)
        for table in re.findall(r"\[(\w+)\.deploy\.parameters\](.*?)\n\n", text, re.DOTALL):
            found += 1
            assert (
                f'[{table[0]}.global.parameters]\n    stack_name = "spotkeeper-{table[0]}"' in text
            )
            assert f's3_prefix = "spotkeeper-{table[0]}"' in table[1]
    assert found
