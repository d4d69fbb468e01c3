"""The account's and the stack's standing: roles, concurrency, schedules, alarms, logs."""

from collections.abc import Iterator, Mapping, Sequence

from spotkeeper.domain.doctor.facts import AccountFacts, StackFacts, Unseen
from spotkeeper.domain.doctor.finding import Finding, Severity, error
from spotkeeper.domain.fleet import Fleet

# Without the first no group launches, without the second no group launches spot.
ROLES = ("AWSServiceRoleForAutoScaling", "AWSServiceRoleForEC2Spot")
_MAKERS = {
    "AWSServiceRoleForAutoScaling": "autoscaling.amazonaws.com",
    "AWSServiceRoleForEC2Spot": "spot.amazonaws.com",
}
# The 10 of a new account are what one stack needs: other functions need some, too.
LEAST_CONCURRENCY = 20


def check_account(account: AccountFacts) -> Iterator[Finding]:
    """Check what the whole account needs."""
    for role in ROLES:
        if not isinstance(account.roles, Unseen) and role not in account.roles:
            yield Finding(
                id="no-service-linked-role",
                severity=Severity.ERROR,
                about="account",
                evidence=f"{role} does not exist: launches fail with AuthFailure",
                fix=f"aws iam create-service-linked-role --aws-service-name {_MAKERS[role]}",
            )
    free = account.unreserved_concurrency
    if not isinstance(free, Unseen) and free < LEAST_CONCURRENCY:
        yield Finding(
            id="little-concurrency",
            severity=Severity.WARNING,
            about="account",
            evidence=f"Lambda's unreserved concurrency is {free}: turns are throttled as soon as "
            "other functions or a second stack run beside this one (one needs 10)",
            fix=f'ask for more than {LEAST_CONCURRENCY} (Service Quotas, "Concurrent executions")',
        )


def check_documents(wrong: Sequence[str], fleets: Sequence[Fleet]) -> Iterator[Finding]:
    """Report documents that do not validate, and groups that are in two fleets."""
    for each in wrong:
        yield Finding(
            id="wrong-document",
            severity=Severity.ERROR,
            about="documents",
            evidence=each,
            fix="correct the fields named; its fleet is not turned until then",
        )
    for fleet in fleets:
        yield from _check_document(fleet)
    owners: dict[str, list[str]] = {}
    for fleet in fleets:
        for group in (fleet.spot_group, fleet.on_demand_group):
            owners.setdefault(group, []).append(fleet.name)
    for group, names in owners.items():
        if len(names) > 1:
            yield Finding(
                id="group-in-two-fleets",
                severity=Severity.ERROR,
                about=group,
                evidence=f"it is in the documents of {', '.join(names)}: they would fight over it",
                fix="give each fleet groups of its own",
            )


def check_other_stacks(
    other_stacks: Mapping[str, Sequence[str]] | Unseen, fleets: Sequence[Fleet]
) -> Iterator[Finding]:
    """Report groups that a fleet of another stack has, too."""
    if isinstance(other_stacks, Unseen):
        return
    for fleet in fleets:
        for group in (fleet.spot_group, fleet.on_demand_group):
            for parameter in other_stacks.get(group, ()):
                yield error(
                    "group-in-two-stacks",
                    group,
                    f"{parameter} names it too: where both act, each undoes what the other asks",
                    "leave it to one: have the other observe (`spotkeeper mode`), then delete its "
                    "document; a stack that is gone may have left one",
                )


def _check_document(fleet: Fleet) -> Iterator[Finding]:
    if fleet.unused:
        yield Finding(
            id="unused-settings",
            severity=Severity.WARNING,
            about=fleet.name,
            evidence=f"of an earlier release, read and not used: {', '.join(fleet.unused)}",
            fix="take them out of the fleet's document (docs/operations.md)",
        )
    may_sleep = fleet.sizing.enabled and fleet.bounds.spot_min == 0 < fleet.bounds.spot_max
    if may_sleep and fleet.request_queue_url is None:
        yield Finding(
            id="nothing-wakes-it",
            severity=Severity.WARNING,
            about=fleet.name,
            evidence="bounds.spot_min is 0 and no request queue is named: once the group is empty, "
            "only logs of workers on premises start it",
            fix="set bounds.spot_min to 1 or more, or name the request_queue_url",
        )


def check_stack(stack: StackFacts, fleets: Sequence[Fleet]) -> Iterator[Finding]:
    """Check whether a deployed stack turns, is heard, and hears of requests."""
    yield from _check_switches(stack)
    for endpoint in () if isinstance(stack.unconfirmed, Unseen) else stack.unconfirmed:
        yield Finding(
            id="e-mail-unconfirmed",
            severity=Severity.WARNING,
            about="alarms",
            evidence=f"{endpoint} has not confirmed its subscription: it hears of no alarm",
            fix="open the message of AWS Notifications and confirm",
        )
    if stack.nobody_told is True:
        yield Finding(
            id="nobody-told",
            severity=Severity.WARNING,
            about="alarms",
            evidence="the alarm topic has no subscription: alarms ring unheard",
            fix="deploy with AlarmEmail, or subscribe something to the topic",
        )
    for fleet in fleets:
        yield from _check_logs(stack, fleet)


def _check_switches(stack: StackFacts) -> Iterator[Finding]:
    """Report what somebody has switched off, and not on again."""
    for name in () if isinstance(stack.schedules_disabled, Unseen) else stack.schedules_disabled:
        yield error(
            "schedule-disabled",
            name,
            "it is disabled: this controller does not turn",
            "enable it in EventBridge Scheduler; to pause for a while there is `pause`",
        )
    for name in () if isinstance(stack.rules_disabled, Unseen) else stack.rules_disabled:
        yield error(
            "events-disabled",
            name,
            "it is disabled: warnings and what groups do are seen by the next minute's turn only",
            f"aws events enable-rule --name {name}; to pause for a while there is `pause`",
        )
    for uuid in () if isinstance(stack.queues_unread, Unseen) else stack.queues_unread:
        yield error(
            "queue-disabled",
            uuid,
            "this event source mapping is disabled: nobody reads its queue of search logs, or of "
            "wake-ups",
            f"aws lambda update-event-source-mapping --enabled --uuid {uuid}",
        )


def _check_logs(stack: StackFacts, fleet: Fleet) -> Iterator[Finding]:
    ages = stack.search_log_ages
    if isinstance(ages, Unseen) or fleet.name not in ages or not fleet.sizing.enabled:
        return
    age = ages[fleet.name]
    # With a queue, an idle fleet is told from a silent one.
    if age is None or (age > fleet.sizing.stale_after_s and fleet.request_queue_url is None):
        seen = "none ever came" if age is None else f"the newest is {age:.0f} s old"
        yield Finding(
            id="search-logs-stale",
            severity=Severity.WARNING,
            about=f"fleet {fleet.name}",
            evidence=f"search logs: {seen}; sizing holds",
            fix="see that workers send to the output SearchLogQueueUrl, with this fleet's name",
        )
