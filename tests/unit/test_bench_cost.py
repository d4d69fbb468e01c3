"""What the control plane costs: the bill counts what the template has, and the page says so."""

from bench.cost import alarms_and_metrics
from tests.template.stack import ADOPT, ROOT, Stack


def test_alarms_are_paid_for_each_metric_that_they_look_at() -> None:
    alarms, metrics = alarms_and_metrics()
    stack = Stack.with_parameters(ADOPT)
    made = stack.resources("AWS::CloudWatch::Alarm")
    # Throttles of each function, errors of all but two; two checkers' turns; else one each.
    functions = len(stack.functions())
    assert (alarms, metrics) == (len(made), functions + functions - 2 + 2 + len(made) - 3)
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    assert f"once a stack: {alarms} alarms on {metrics} metrics" in page
