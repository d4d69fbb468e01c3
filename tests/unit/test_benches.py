"""The benches: the bill counts what the template has; few files are behind a warning."""

from bench import path
from bench.cost import alarms_and_metrics
from tests.template.stack import ADOPT, ROOT, Stack


def test_alarms_are_paid_for_each_metric_that_they_look_at() -> None:
    alarms, metrics = alarms_and_metrics()
    stack = Stack.with_parameters(ADOPT)
    made = stack.resources("AWS::CloudWatch::Alarm")
    # Throttles and errors of all but two functions, and messages that failed; two checkers' turns,
    # seldom functions and counts of dead letters; else one each.
    functions = len(stack.functions())
    assert (alarms, metrics) == (len(made), 2 * functions - 3 + 6 + len(made) - 5)
    page = (ROOT / "docs/bill.md").read_text(encoding="utf-8")
    assert f"once a stack: {alarms} alarms on {metrics} metrics" in page


def test_from_a_warning_to_the_request_there_is_little_to_read() -> None:
    found = path.measured()
    assert len(found) <= path.MOST_FILES
    assert sum(map(len, found.values())) <= path.MOST_FUNCTIONS
