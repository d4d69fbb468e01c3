"""Parameters of the template in its shapes, and its statements."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spotkeeper_lab.template import Stack, template

__all__ = [
    "ADOPT",
    "CREATE",
    "GROUPS",
    "JOBS",
    "ROOT",
    "Stack",
    "as_list",
    "snake",
    "statements",
    "template",
]

ROOT = Path(__file__).parents[2]
GROUPS = ("ocr-spot", "ocr-on-demand")
ADOPT = {"SpotGroupName": GROUPS[0], "OnDemandGroupName": GROUPS[1]}
CREATE = {"LaunchTemplateId": "lt-0123456789abcdef0", "SubnetIds": "subnet-a,subnet-b"}

JOBS = {
    **ADOPT,
    "Jobs": "true",
    "JobLaunchTemplateId": "lt-0123456789abcdef1",
    "JobSubnetIds": "subnet-0123456789abcdef0,subnet-0123456789abcdef1",
    "JobRole": "trainer",
}


def snake(name: str) -> str:
    """Spell a logical id as its file is called: CheckHealth is check_health."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def as_list(value: Any) -> list[Any]:
    """Wrap what IAM lets one write without a list."""
    return value if isinstance(value, list) else [value]


def statements(stack: Stack) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every statement that the template writes, with the policy or role that has it."""
    for name, policy in stack.resources("AWS::IAM::ManagedPolicy").items():
        yield from ((name, statement) for statement in policy["PolicyDocument"]["Statement"])
    for name, role in stack.resources("AWS::IAM::Role").items():
        for policy in role.get("Policies", ()):
            yield from ((name, statement) for statement in policy["PolicyDocument"]["Statement"])
