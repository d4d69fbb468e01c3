"""Each alarm rings in the situation that it is for, in its time, goes back, and no other rings."""

import io
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace

import pytest

from spotkeeper import observability
from spotkeeper.domain.decision import AvailabilityFigures, HealthFigures
from spotkeeper_lab.alarms import Alarm, Metric, Metrics, State, evaluate_all
from tests.builders import held
from tests.template.stack import JOBS, ROOT, Stack

QUIET, TROUBLE, AFTER = 30, 40, 60
"""Minutes without trouble, with it, and without it again."""
CHECKERS = ("CheckHealth", "CheckAvailability")
FUNCTIONS = Stack.with_parameters(JOBS).functions().keys()
# One that runs every five minutes or daily cannot fail in two of three minutes.
EACH_MINUTE = sorted(FUNCTIONS - {"KeepLedger", "ExamineAccount"})
IN_ORDER: Mapping[str, float] = {"PausedHours": 4.0, "OnDemandHours": 6.0}
"""Values that do not ring yet; of the others it is 0."""

type Feed = Callable[[Metrics, int], None]


def put(metrics: Metrics, minute: int, of: str, value: float) -> None:
    """Put a value of AWS's own metric, written as SERVICE/METRIC/NAME."""
    service, name, whose = of.split("/")
    dimension = {"Lambda": "FunctionName", "SQS": "QueueName"}[service]
    metric = Metric(f"AWS/{service}", name, frozenset({(dimension, whose)}))
    metrics.put(metric, 60.0 * minute, value)


def aws(*several: str, value: float = 1.0, every: int = 1) -> Feed:
    def feed(metrics: Metrics, minute: int) -> None:
        for of in several if (minute - QUIET) % every == 0 else ():
            put(metrics, minute, of, value)

    return feed


def fleet(name: str, value: float = 1.0, of: str = "ocr") -> Feed:
    """Send a figure of a fleet as the code sends it."""
    return log(lambda: observability.emit(of, {name: value}))


def log(write: Callable[[], None]) -> Feed:
    def feed(metrics: Metrics, minute: int) -> None:
        with redirect_stdout(io.StringIO()) as written:
            write()
        for line in written.getvalue().splitlines():
            metrics.put_log(line, 60.0 * minute)

    return feed


def nothing(metrics: Metrics, minute: int) -> None:
    """Send nothing."""


@dataclass(frozen=True, slots=True)
class Story:
    """A trouble of an alarm: in which minute of it the alarm rings, and when after its end not.

    `silent` is its state once all metrics have stopped for an hour.
    """

    alarm: str
    trouble: Feed
    rings: int
    back: int
    quiet: Feed = nothing
    after: Feed | None = None
    skipped: tuple[str, ...] = ()
    silent: State = State.OK


def of_fleet(alarm: str, name: str, rings: int, back: int, value: float = 1.0) -> Story:
    quiet = fleet(name, IN_ORDER.get(name, 0.0))
    # A query without any fleet has no data.
    return Story(alarm, fleet(name, value), rings, back, quiet, TURN, silent=State.NO_DATA)


ERRORS = [f"Lambda/Errors/{name}" for name in EACH_MINUTE]
THROTTLES = [f"Lambda/Throttles/{name}" for name in EACH_MINUTE]
LETTERS = "SQS/ApproximateNumberOfMessages{}/SearchLogDeadLetters.QueueName"
AGE = "SQS/ApproximateAgeOfOldestMessage/SearchLogQueue.QueueName"
DAILY, LEDGER = (f"Lambda/AsyncEventsDropped/{name}" for name in ("ExamineAccount", "KeepLedger"))
# A turn of a fleet in which nothing is to be reported.
PLAIN = held(availability=AvailabilityFigures(), health=HealthFigures())
TURN = log(lambda: observability.emit("ocr", observability.metrics_of(PLAIN)))
MESSAGES = log(lambda: observability._count("MessagesFailed", 1))
FINE = log(lambda: observability._count("Misconfigurations", 0))
WRONG = log(lambda: observability._count("Misconfigurations", 1))
STUCK = log(lambda: observability._count("JobsStuck", 1))

STORIES = [
    *(Story("errors", aws(one), 2, 2, aws(one, value=0)) for one in ERRORS),
    Story("errors", MESSAGES, 2, 4),
    *(Story("throttles", aws(one), 3, 3, aws(one, value=0)) for one in THROTTLES),
    *(
        Story("checker-not-running", nothing, 3, 1, skipped=(name,), silent=State.NO_DATA)
        for name in CHECKERS
    ),
    Story("oldest-message", aws(AGE, value=121), 10, 1, aws(AGE, value=120)),
    *(
        Story("search-log-dead-letters", aws(LETTERS.format(of)), 1, 1,
              aws(LETTERS.format(of), value=0), silent=State.OK)
        for of in ("Visible", "NotVisible")
    ),
    Story("failed-invocations", aws(DAILY, every=TROUBLE), 1, 6, aws(DAILY, value=0, every=1440)),
    Story("failed-invocations", aws(LEDGER, every=5), 6, 6, aws(LEDGER, value=0, every=5)),
    of_fleet("shortfall-unfilled", "ShortfallUnfilled", 15, 2),
    of_fleet("both-short", "BothShort", 2, 2),
    of_fleet("configuration-failure", "ConfigurationFailure", 1, 10),
    of_fleet("stale-search-logs", "StaleSearchLogs", 6, 3),
    of_fleet("new-version-worse", "NewVersionWorse", 1, 1),
    of_fleet("nobody-serves", "NobodyServes", 2, 9),
    replace(of_fleet("search-logs-lost", "SearchLogsLost", 1, 10), after=None),
    of_fleet("request-queue-unread", "RequestQueueUnread", 5, 2),
    of_fleet("events-unsent", "EventsUnsent", 5, 2),
    of_fleet("onprem-workers", "OnPremWorkersSuspect", 2, 2),
    of_fleet("paused-too-long", "PausedHours", 1, 1, 4.02),
    of_fleet("on-demand-too-long", "OnDemandHours", 1, 5, 6.02),
    Story("doctor", WRONG, 1, 60, FINE, silent=State.OK),
    Story("job-stuck", STUCK, 1, 15),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _deployed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", "ocr")
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", "Spotkeeper")
    observability._zeros.cache_clear()
    yield
    observability._zeros.cache_clear()


def alarms() -> list[Alarm]:
    found = Stack.with_parameters(JOBS).resources("AWS::CloudWatch::Alarm")
    return [Alarm(one) for one in found.values()]


def minutes(story: Story) -> Iterator[tuple[int, Feed, bool]]:
    """Yield each minute, what is fed in it, and whether the checkers run."""
    for minute in range(QUIET + TROUBLE + AFTER):
        troubled = QUIET <= minute < QUIET + TROUBLE
        over = minute >= QUIET + TROUBLE
        quiet = story.after if over and story.after else story.quiet
        yield minute, story.trouble if troubled else quiet, troubled


@pytest.mark.parametrize("story", STORIES, ids=lambda it: it.alarm)
def test_an_alarm_rings_in_its_own_time_and_no_other_rings(story: Story) -> None:
    metrics, known = Metrics(), alarms()
    rung: list[tuple[str, int]] = []
    back: list[int] = []
    for minute, feed, troubled in minutes(story):
        feed(metrics, minute)
        for name in CHECKERS:
            if not (troubled and name in story.skipped):
                put(metrics, minute, f"Lambda/Invocations/{name}", 1.0)
        for change in evaluate_all(known, metrics, minute):
            if change.contributor or change.state is State.NO_DATA:
                assert change.contributor in ("", "ocr")
            elif change.state is State.ALARM:
                rung.append((change.alarm.removeprefix("ocr-"), minute - QUIET + 1))
            elif rung:
                back.append(minute - QUIET - TROUBLE + 1)
    assert rung == [(story.alarm, story.rings)]
    assert back == [story.back]
    # No metric arrives any more.
    for minute in range(QUIET + TROUBLE + AFTER, QUIET + TROUBLE + AFTER + 60):
        evaluate_all(known, metrics, minute)
    [alarm] = [one for one in known if one.name == f"ocr-{story.alarm}"]
    assert alarm.state is story.silent


def test_every_alarm_has_a_story() -> None:
    assert {f"ocr-{story.alarm}" for story in STORIES} == {one.name for one in alarms()}


def test_each_fleet_rings_by_itself_and_goes_back_by_itself() -> None:
    """A fleet that is removed is fine, and an alarm without any fleet has no data."""
    metrics, known, said = Metrics(), alarms(), list[tuple[int, str, str]]()
    for minute in range(30):
        for name, long in (("ocr", minute < 15), ("search", minute >= 10)) * (minute < 20):
            fleet("PausedHours", 4.0 + long, name)(metrics, minute)
        said += [
            (minute, one.contributor, one.state)
            for one in evaluate_all(known, metrics, minute) if one.alarm == "ocr-paused-too-long"
        ]  # fmt: skip
    ring, fine, none = State.ALARM, State.OK, State.NO_DATA
    assert said == [
        (0, "ocr", ring), (0, "", ring), (10, "search", ring), (15, "ocr", fine),
        (22, "search", fine), (22, "", none),
    ]  # fmt: skip


def test_troubles_of_fleets_that_lie_apart_are_no_long_shortfall() -> None:
    """Three fleets, each short for five of fifteen minutes: none is for fifteen."""
    metrics, known = Metrics(), alarms()
    for minute in range(120):
        for number, name in enumerate(("a", "b", "c")):
            short = minute // 5 % 3 == number
            fleet("ShortfallUnfilled", float(short), name)(metrics, minute)
        said = evaluate_all(known, metrics, minute)
        assert not [one for one in said if one.state is State.ALARM]


def test_the_page_has_the_times_of_each_alarm() -> None:
    page = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
    row = re.compile(r"^\| \[([a-z-]+)\]\(.*?\) \| (\d+) \| (\d+) \|", re.MULTILINE)
    times = {name: (int(rings), int(back)) for name, rings, back in row.findall(page)}
    assert times == {one.alarm: (one.rings, one.back) for one in reversed(STORIES)}
