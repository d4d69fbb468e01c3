"""Counts the search logs of a queue's messages; messages that cannot be counted fail alone."""

from typing import Any

from spotkeeper import wiring
from spotkeeper.border.events import read_messages
from spotkeeper.observability import emit, logger
from spotkeeper.ports import FleetError
from spotkeeper.turns.collect_search_logs import collect, receive


@logger.inject_lambda_context
def handler(event: dict[str, Any], context: Any) -> dict[str, list[dict[str, str]]]:
    """Handle a batch; returns the messages to deliver again. Raises `EventError`, `FleetError`."""
    settings = wiring.collect_settings()
    default_fleet = settings.default_fleet
    # A fleet keeps its search logs while its document is wrong.
    known_fleets = wiring.fleet_documents().names
    messages, looks = read_messages(event), wiring.queue_looks()
    table, home = wiring.load_table(), wiring.to_home()
    if messages and messages[0].forwarded:
        done = receive(messages, table, wiring.unpacked)
    else:
        done = collect(messages, table, known_fleets, default_fleet, looks, home)
    for message_id, why in done.failed.items():
        logger.error("search logs not counted", message_id=message_id, why=why)
    for message_id, left_out in done.left_out.items():
        logger.warning("search logs left out", message_id=message_id, why="; ".join(left_out[:20]))
    if done.looks_unkept:
        logger.warning("looks at request queues were not kept", why=done.looks_unkept)
    bus = wiring.announcements(settings)
    if done.troubles and bus:
        try:
            bus.send(done.troubles)
        except FleetError as error:
            logger.error("events not sent", why=str(error))
    for fleet, counts in done.counts.items():
        logger.info("counted", extra={"fleet": fleet, **counts})
        emit(fleet, {"SearchLogsLost": 0, **counts})
    failed = [each.message_id for each in messages if each.message_id in done.failed]
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}
