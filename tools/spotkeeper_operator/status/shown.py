"""How a status is shown: as text, and as JSON for programs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from spotkeeper.domain.decision import OF_FLEETS, Awaiting, Controller, Verdict
from spotkeeper.domain.failure import FailureClass, needs_operator
from spotkeeper.domain.permission import Permission
from spotkeeper.domain.spread import EXPIRES, Standing
from spotkeeper_operator.rollout import ADVICE
from spotkeeper_operator.status.known import (
    EVENTS_OF,
    LIVE_S,
    LOAD_WINDOW_S,
    NAMED,
    Cause,
    Details,
    Event,
    FleetEvents,
    FleetInstances,
    FleetStatus,
    InstanceStatus,
    StackStatus,
    State,
)
from spotkeeper_operator.text import (
    STALE_TURN_S,
    as_json,
    columns,
    extended,
    labelled,
    paragraphs,
    spoken,
    width,
)


def why_of(status: FleetStatus) -> str:
    """Say what is wrong, since when, what is tried next, and what a person can do.

    Of a fleet with nothing wrong: what its state was judged by. Nothing here quotes a turn's
    reason; the rows below do.
    """
    return "; ".join([_why(status), *_launches(status), *_next(status), *_also(status)])


def _why(status: FleetStatus) -> str:
    there, warned = status.in_service or 0, status.warned
    served = f"{status.wanted} wanted, {there} in service"
    since = f" since {status.since:%H:%M}" if status.since else ""
    health_ago = _ago(status.turn_age_s[Controller.HEALTH])
    match status.cause:
        case Cause.GROUPS_MISSING:
            verb = "does" if len(status.missing_groups) == 1 else "do"
            named = " and ".join(status.missing_groups)
            return f"{named} {verb} not exist: make the group, or correct the fleet document"
        case Cause.TOO_FEW:
            launching = sum(group.launching for group in status.groups)
            text = f"{there - warned} of {status.wanted} wanted are in service"
            more = "1 more is" if warned == 1 else f"{warned} more are"
            text += f", {more} warned" if warned else ""
            text += f", {launching} launching" if launching else ""
            return f"{text}; too few known to serve{since}" if since else text
        case Cause.RECORDS_UNREAD:
            return "the decision records could not be read"
        case Cause.NO_TURN:
            return _no_turn(status, Controller.AVAILABILITY)
        case Cause.GROUPS_UNREAD:
            return "the groups could not be read"
        case Cause.NOT_KNOWN_TO_SERVE:
            at_risk = status.availability.spot_at_risk if status.availability else 0
            count = status.unfilled - at_risk
            unknown = f"{count} of them {'was' if count == 1 else 'were'} not known to serve"
            turn = f" at the last turn ({_ago(status.turn_age_s[Controller.AVAILABILITY])})"
            return f"{status.wanted} wanted are in service, and {unknown}{since or turn}"
        case Cause.LOGS_UNREAD:
            return f"{served}; the search logs could not be read"
        case Cause.LOGS_UNCOUNTED:
            age_s, waits = status.log_age_s, "their queue does not exist"
            if status.uncounted is not None:
                waits = _waits(status.uncounted, "message")
            counted = "was ever counted" if age_s is None else f"was counted for {spoken(age_s)}"
            text = f"{served}; no search log {counted}, while {waits}"
            text += f", {status.dead} are dead letters" * bool(status.dead)
            return f"{text}: see `spotkeeper doctor`, and the log of CollectSearchLogs"
        case Cause.NOBODY_SERVES:
            served = f"{served}, {status.known_to_serve} served in the last minute"
            return f"{served}; {health_ago}: {status.nobody_serves or 'nobody serves'}"
        case Cause.SUSPECTS:
            named = "; ".join(one.text for one in status.suspects if not one.on_premises)
            text = f"{status.known_to_serve} of {there} served in the last minute; "
            text += f"{_suspect(status)} suspected{since} ({health_ago})"
            return f"{text}: {named}" if named else text
        case Cause.SERVES:
            return f"{served}, {status.known_to_serve} served in the last minute"


def _waits(count: int, what: str = "request") -> str:
    return f"1 {what} waits" if count == 1 else f"{count} {what}s wait"


def _silent(status: FleetStatus) -> list[Controller]:
    """The controllers of which no turn has succeeded lately: warnings bring turns of one alone."""
    ages = ((each, status.turn_age_s[each]) for each in OF_FLEETS)
    return [each for each, age_s in ages if age_s is None or age_s > STALE_TURN_S]


def _no_turn(status: FleetStatus, controller: Controller) -> str:
    errors = [each.error for each in status.failing if each.controller is controller]
    age_s = status.turn_age_s[controller]
    how_long = "yet" if age_s is None else f"for {spoken(age_s)}"
    # The advice follows the last of them.
    last = controller is _silent(status)[-1]
    see = "see the log of the stack's functions, and whether its schedules are enabled"
    see = f"two minutes after a deployment, {see}" if age_s is None else see
    advice = [see] * last
    return ": ".join([f"no {controller} turn has succeeded {how_long}", *(errors[:1] or advice)])


_LACKS = {
    FailureClass.CAPACITY: "capacity",
    FailureClass.PRICE: "capacity at its maximum price",
}


def _launches(status: FleetStatus) -> Iterator[str]:
    """Say why launches fail, since when, and what a person can do."""
    throttled = [f for f in status.launches if f.failure_class is FailureClass.THROTTLE]
    failures = [f for f in status.launches if f not in throttled]
    # What a group has not launched, or what is given up while it starts.
    starts = any(one.failure_class is FailureClass.BOOTSTRAP for one in failures)
    short = [g for g in status.groups if g.in_service + g.launching * (not starts) < g.desired]
    if throttled and short and not failures:
        yield f"AWS throttles launches since {throttled[0].since:%H:%M}"
    unread = status.unread or status.failing
    if short and unread and not status.launches and not any(group.suspended for group in short):
        lack = f"{' and '.join(group.name for group in short)} lack{'s' * (len(short) == 1)}"
        yield f"why {lack} instances is not known"
    if not (failures and short):
        return
    by_person = [f for f in failures if needs_operator(f.failure_class)]
    failure = max(by_person or failures, key=lambda one: one.at)
    since = f"since {failure.since:%H:%M}"
    advice = ADVICE[failure.failure_class]
    if by_person:
        which = "SPOT" if short[0] is status.groups[0] else "ON-DEMAND"
        who = "NEITHER GROUP CAN" if len(short) > 1 else f"{which} CANNOT"
        yield f"{who} LAUNCH {since}: {failure.why}: {advice}"
        for other in failures:
            if other not in by_person:
                yield f"no {_LACKS[other.failure_class]} either since {other.since:%H:%M}"
    else:
        who = "neither group has" if len(short) > 1 else f"{short[0].name} has no"
        pools = {pool for group in short for pool in group.offers}
        types = sorted({pool.partition("/")[2] for pool in pools})
        zones = len({pool.partition("/")[0] for pool in pools})
        named = ", ".join(types[:NAMED]) + ", …" * (len(types) > NAMED)
        where = f" ({named} in {zones} zone{'s' * (zones > 1)})" if types else ""
        what = _LACKS[failure.failure_class]
        yield f"{who} {what}{where} {since}{f': {advice}' if status.unfilled else ''}"


_AWAITED = {
    Awaiting.NEXT_ATTEMPT: "the next attempt is",
    Awaiting.BACKFILL_DUE: "backfill begins",
    Awaiting.SEARCH_LOGS: "on-demand is kept until the load is known,",
    Awaiting.REPLACEMENT: "the next suspect is replaced",
    Awaiting.REQUESTS_DONE: "on-demand is released",
}


def _next(status: FleetStatus) -> Iterator[str]:
    """Say what is tried next, and when."""
    for one in status.awaited:
        if one.what in _AWAITED and one.until is not None:
            latest = " at the latest" if one.what is Awaiting.REQUESTS_DONE else ""
            yield f"{_AWAITED[one.what]} at {one.until:%H:%M}{latest}"
        elif one.what is Awaiting.SEARCH_LOGS:
            what = "the size" if status.stale else "on-demand"
            yield f"{what} is kept until search logs arrive"
        elif one.what is Awaiting.NEXT_ATTEMPT:
            yield "AWS repeats the launches"


def _suspect(status: FleetStatus) -> int:
    return status.health.workers_suspect if status.health else 0


def _also(status: FleetStatus) -> Iterator[str]:
    if "turns" not in status.unknown:
        yield from map(partial(_no_turn, status), _silent(status)[status.cause is Cause.NO_TURN :])
    for group in status.groups:
        if group.suspended and group.in_service + group.launching < group.desired:
            by = " by AWS, after a day without a launch" if group.suspended_by_aws else ""
            yield f"launches of {group.name} are SUSPENDED{by}: resume its process Launch"
        # Of a group with a gap, turns read the failures.
        if group.refresh and group.refresh.stuck and not status.launches:
            yield f"instance refresh of {group.name}: {group.refresh.stuck}"
    pause = status.control.pause if status.control else None
    if pause and status.permission is Permission.PAUSED:
        yield f"PAUSED until {pause.until:%H:%M}: Spotkeeper changes nothing"
    elif status.permission is Permission.OBSERVE:
        yield "OBSERVING: Spotkeeper changes nothing"
    if status.maintenance_until:
        yield f"in MAINTENANCE until {status.maintenance_until:%H:%M}: nothing is replaced"
    spot = status.groups[0] if status.groups else None
    if spot and spot.maximum < status.spot_max:
        yield f"{spot.name} may have {spot.maximum} at most, its document says {status.spot_max}"
    if spot and not spot.in_service and status.in_service:
        yield "on on-demand only" + f", {spot.launching} spot launching" * bool(spot.launching)
    # All may have served since the turn that suspects some.
    there, known = status.in_service or 0, status.known_to_serve or 0
    if known < there and _suspect(status) and status.cause is not Cause.SUSPECTS:
        yield f"{_suspect(status)} may not work"
    kept = any(group.in_service for group in status.groups[1:])
    if status.unproven and kept and not _suspect(status):
        yield f"on-demand is kept: {status.unproven} of spot not known to serve"
    if status.nobody_serves and status.cause not in (Cause.NOBODY_SERVES, Cause.LOGS_UNCOUNTED):
        yield status.nobody_serves
    if gone := [one.region for one in status.regions if one.state == Standing.GONE]:
        what = f"nothing arrives from {', '.join(gone)}, whose cover has moved"
        yield f"{what}: see `spotkeeper doctor`"
    if status.home_silent:
        late = f"no share from its home {status.home_silent} for over {EXPIRES.seconds // 60} min"
        yield f"{late}: it keeps cover and ask for an hour, then its cover; see the home's status"
    if status.waiting and status.waiting.requests:
        yield _waits(status.waiting.requests)
    if (new := status.new_version) and new.verdict is not Verdict.NO_WORSE:
        worse = new.verdict is Verdict.WORSE
        yield new.text.replace(" is worse", " is WORSE") if worse else new.text
    if status.health and (silent := status.health.on_prem_workers_silent):
        workers = "1 worker" if silent == 1 else f"{silent} workers"
        yield f"{workers} on premises missing: no log of the last minutes names them"
    if status.promise_missed:
        yield "its promise is NOT KEPT"
    if status.health and (more := status.health.workers_missing):
        yield f"its promise needs {more} more worker{'s' * (more > 1)} than spot_max allows"
    if status.failing:
        yield f"turns are FAILING: {', '.join(each.controller for each in status.failing)}"


def named(ringing: Mapping[str, Sequence[str]]) -> list[str]:
    """Name alarms, each with the fleets for which it rings."""
    return [f"{name} ({', '.join(of)})" if of else name for name, of in ringing.items()]


def status_text(status: StackStatus) -> str:
    blocks = [[f"{status.stack}  {status.region}  {status.at:%Y-%m-%d %H:%M:%S} UTC"]]
    for fleet in status.fleets:
        lines = labelled(fleet.name, f"{fleet.state}: {why_of(fleet)}", indent=0)
        blocks.append([*lines, *(line for row in status_rows(fleet) for line in labelled(*row))])
    blocks += [] if status.fleets else [["no fleet"]]
    rings = status.ringing_fleets
    ringing = "unknown" if status.ringing is None else ", ".join(named(rings)) or "none ring"
    tail = [("alarms", ringing)]
    tail += (("trouble", trouble) for trouble in status.troubles)
    return paragraphs([*blocks, [line for row in tail for line in labelled(*row, indent=0)]])


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAnswer(FleetStatus):
    """A fleet for programs: times in RFC 3339, ages and waits in seconds."""

    why: str


def status_json(status: StackStatus) -> str:
    fleets = [extended(FleetAnswer, fleet, why=why_of(fleet)) for fleet in status.fleets]
    return as_json(status, fleets=fleets)


def exit_code(status: StackStatus) -> int:
    """Return 0 when as many as wanted are in service and nothing fails or rings, else 1."""
    good = (State.WHOLE, State.IN_SERVICE)
    well = all(fleet.state in good and not fleet.failing for fleet in status.fleets)
    return 0 if status.fleets and well and not status.ringing and not status.troubles else 1


def status_rows(fleet: FleetStatus) -> list[tuple[str, str]]:
    """Say in labelled sentences how a fleet is, beside whether it is whole."""
    rows: list[tuple[str, str]] = []
    control = fleet.control
    if control is None:
        rows.append(("mode", "unknown: it could not be read"))
    elif fleet.permission is Permission.PAUSED and (pause := control.pause):
        until = f"{pause.until:%Y-%m-%d %H:%M} UTC"
        rows.append(("mode", f"PAUSED until {until}: {pause.why} ({pause.by})"))
    elif fleet.permission is Permission.OBSERVE:
        at, by = control.mode_at, control.mode_by
        since = f"since {at:%Y-%m-%d %H:%M} UTC ({by})" if at else "as its document says"
        rows.append(("mode", f"OBSERVING {since}"))
    for each in (*fleet.failing, *fleet.failed):
        turns = "1 turn has" if each.turns == 1 else f"{each.turns} turns have"
        text = f"{each.controller}: {turns} failed since {each.since:%H:%M:%S}"
        worked = "" if each in fleet.failing else ", not the newest"
        rows.append(("failed" if worked else "FAILING", f"{text}{worked}: {each.error}"))
    for label, group in zip(("spot", "on-demand"), fleet.groups, strict=False):
        launching = f", {group.launching} launching" if group.launching else ""
        text = f"{group.in_service} of {group.desired} in service{launching}  ({group.name})"
        text += f"; {group.refresh.text}" if group.refresh else ""
        rows.append((label, text))
    load, needed = fleet.load, fleet.health.workers_needed if fleet.health else None
    if load is None:
        text = f"unknown: {fleet.unknown['load']}"
    else:
        text = "" if load.busy is None else f"{100 * load.busy:.0f} % busy; "
        text += f"{load.workers_live} of {load.workers_expected} workers served in the last minute"
        if load.workers_leaving:
            are = "is" if load.workers_leaving == 1 else "are"
            text += f"; {load.workers_leaving} more {are} draining"
    # Without search logs nothing is known to be needed: the size is held.
    silent = fleet.log_age_s is None or fleet.stale
    if needed is not None and (load is not None or not silent):
        text += f"; {needed} needed ({_ago(fleet.turn_age_s[Controller.HEALTH])})"
    rows += (("load", text), ("wait", _wait_words(fleet)))
    for one in fleet.regions:
        serves = f"{one.serving} on spot, {one.on_demand} on demand"
        text = f"cover {one.cover}, ask {one.ask}; {serves if one.known_at else 'serving unknown'}"
        known = f"known at {one.known_at:%H:%M:%S}" if one.known_at else "never known"
        rows.append((one.region, "; ".join(filter(None, (text, one.state, known)))))
    change, outside = fleet.last_change, fleet.outside
    if outside and (change is None or outside.at >= change.at):
        text = f"desired {outside.before} -> {outside.after}"
        rows.append(("last change", f"{outside.at:%m-%d %H:%M} changed outside Spotkeeper: {text}"))
    elif change:
        text = f"{change.at:%m-%d %H:%M} {change.action} [{change.rule}] {change.reason}"
        rows.append(("last change", text))
    age_s = fleet.turn_age_s[Controller.AVAILABILITY]
    above = (why_of(fleet), change.reason if change else "")
    last = fleet.last_turn
    if last and not any(last.reason in one for one in above):
        rows.append(("last turn", f"{_ago(age_s)}: {last.reason}"))
    rows += (("not read", each) for each in fleet.unread)
    ages = ", ".join(f"{each} {_ago(age_s)}" for each, age_s in fleet.turn_age_s.items())
    ages = f"unknown: {fleet.unknown['turns']}" if "turns" in fleet.unknown else ages
    newest = fleet.unknown.get("newest search log") or _ago(fleet.log_age_s)
    return [*rows, ("turns", f"{ages}; newest search log {newest}")]


def _wait_words(fleet: FleetStatus) -> str:
    load, waiting = fleet.load, fleet.waiting
    parts: list[str] = []
    if waiting is not None and waiting.requests:
        longest = ""
        if waiting.oldest_at_least_s is not None and waiting.oldest_at is not None:
            # Not rounded up, in the units of `spoken`.
            least = waiting.oldest_at_least_s
            least -= least % (1 if least < 120 else 60 if least < 7200 else 360)  # noqa: PLR2004
            longest = f", the oldest for at least {spoken(least)} at {waiting.oldest_at:%H:%M}"
        parts.append(f"{_waits(waiting.requests)} now{longest}")
    elif waiting is not None:
        parts.append("no request waits now")
    if load is not None:
        when = f"last {LOAD_WINDOW_S // 60} min"
        if load.newest_log_age_s > LIVE_S:
            when += f", none for {spoken(load.newest_log_age_s)}"
        percent = f"{100 * (fleet.promised_share or 0.95):.4g} %"
        started = f"{load.requests} requests started within {load.wait_promised_s:.1f} s"
        parts.append(f"{percent} of {started} ({when})")
    elif waiting is None or waiting.requests:
        parts.append(f"of those served: unknown, {fleet.unknown['load']}")
    if fleet.promised_wait_s is None or fleet.promised_share is None:
        return "; ".join([*parts, "nothing is promised"])
    share = f"{100 * fleet.promised_share:.4g} %"
    kept = ", NOT KEPT" if fleet.promise_missed else ""
    return "; ".join([*parts, f"promised: {share} within {fleet.promised_wait_s:g} s{kept}"])


def _ago(age_s: float | None) -> str:
    return "never" if age_s is None else f"{spoken(age_s)} ago"


def details_text(details: Details[FleetInstances] | Details[FleetEvents]) -> str:
    blocks = [[f"{details.stack}  {details.at:%Y-%m-%d %H:%M:%S} UTC"]]
    known = "known " if details.troubles else ""
    for fleet in details.fleets:
        if isinstance(fleet, FleetEvents):
            lines = [line for each in fleet.events for line in _event_lines(each)]
            count = len(fleet.events) + fleet.left_out
            what = f"{count or 'no'} {known}event{'s' * (count > 1)}"
            text = f"{what} in {spoken(EVENTS_OF.total_seconds())}"
            text += f"; the last {len(fleet.events)} of them" if fleet.left_out else ""
        else:
            lines, rows = _instance_lines(fleet.instances), fleet.instances
            counted = sum(row.counted for row in rows)
            text = f"no {known}instance"
            text = f"{counted} of {len(rows)} instances count" if rows else text
        blocks.append([f"{fleet.name}: {text}", *lines])
    blocks += [] if details.fleets else [["no fleet"]]
    troubles = [line for each in details.troubles for line in labelled("trouble", each, indent=0)]
    return paragraphs([*blocks, *([troubles] if troubles else [])])


def _event_lines(event: Event) -> list[str]:
    many = f" ({event.times} times until {event.last:%H:%M:%S})" if event.times > 1 else ""
    return labelled(f"{event.at:%H:%M:%S}", f"{'FAILED ' * event.failed}{event.what}{many}")


def _instance_lines(rows: Sequence[InstanceStatus]) -> list[str]:
    """Set each instance's facts in columns, and why it counts beside them where there is room."""
    facts = [
        {
            "instance": row.instance_id,
            "market": row.market,
            "zone": row.zone,
            "type": row.instance_type,
            "state": row.state.replace("_", " "),
            "age": "unknown" if row.age_s is None else spoken(row.age_s),
        }
        for row in rows
    ]
    head, *table = columns(facts) or [""]
    lines = [f"  {head}"] if rows else []
    longest = max(map(len, table), default=0)
    for row, line in zip(rows, table, strict=True):
        live = "?" if row.workers_live is None else row.workers_live
        cost = "cost unknown" if row.cost_usd is None else f"{row.cost_usd:.2f} USD so far"
        why = f"{'counts' if row.counted else 'does not count'}: {row.why}; "
        why += f"{live} of {row.workers_expected} workers live; {cost}"
        beside = f"  {line:{longest}}  {why}"
        short = len(beside) <= width()
        lines += [beside] if short else [f"  {line}", *labelled("", why, hang=23)]
    return lines
