"""The live page of a deployed stack: read-only, on this machine alone.

`page.html` reads `state.json` again and again; `picture` is what it contains. The lab serves the
same page with a part `lab`, which has its orders. The stack is read at most every few seconds,
however many browsers look.
"""

import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from spotkeeper.domain.decision import DecisionRecord
from spotkeeper.domain.fleet import Fleet, Group
from spotkeeper.ports import FleetError, GroupReader
from spotkeeper_charts.page import page_html
from spotkeeper_operator.aws import Aws, OperatorError, chosen
from spotkeeper_operator.explain import explain_page
from spotkeeper_operator.status.known import fleet_status, instances_of
from spotkeeper_operator.status.looked import Reading
from spotkeeper_operator.status.shown import named, status_rows, why_of

DECISIONS_SHOWN = 40

type Decisions = Callable[[str], Sequence[DecisionRecord]]
"""The newest decisions of a fleet by its name, newest first."""


def html() -> str:
    """The page itself; it needs nothing from elsewhere."""
    return Path(__file__).with_name("page.html").read_text()


def picture(
    fleets: Sequence[Fleet], groups: GroupReader, decisions: Decisions
) -> dict[str, object]:
    """What the page shows of fleets; raises what the ports raise."""
    names = [name for fleet in fleets for name in (fleet.spot_group, fleet.on_demand_group)]
    described = groups.describe(names) if names else {}
    return {"fleets": [fleet_picture(one, described, decisions(one.name), {}) for one in fleets]}


def fleet_picture(
    fleet: Fleet,
    groups: Mapping[str, Group],
    decisions: Sequence[DecisionRecord],
    why: Mapping[str, str],
) -> dict[str, object]:
    """What the page shows of one fleet; `why` says of instances why they count or not."""
    kinds = {"spot": fleet.spot_group, "on-demand": fleet.on_demand_group}
    return {
        "name": fleet.name,
        "groups": [
            {
                "kind": kind,
                "name": name,
                "desired": groups[name].desired if name in groups else None,
                "instances": [
                    {
                        **({"why": why[each.instance_id]} if each.instance_id in why else {}),
                        "id": each.instance_id,
                        "pool": each.pool,
                        "phase": each.phase if each.healthy else "unhealthy",
                    }
                    for each in (groups[name].instances if name in groups else ())
                ],
            }
            for kind, name in kinds.items()
        ],
        "decisions": [
            {
                "at": record.at.isoformat(timespec="seconds"),
                "controller": record.controller,
                "action": record.action,
                "rule": record.rule,
                "reason": record.reason,
                "requested": [request.text() for request in record.done],
            }
            for record in decisions[:DECISIONS_SHOWN]
        ],
    }


LOOPBACK = "127.0.0.1"
STATE_EVERY_S = 5.0
CHARTS_EVERY_S = 60.0
CHARTS_OF = timedelta(hours=3)
HTML, JSON = "text/html; charset=utf-8", "application/json"
ERRORS = (BotoCoreError, ClientError, FleetError, OperatorError)


class Watch:
    """What the page shows, each part kept for a moment."""

    def __init__(
        self, aws: Aws, stack: str, fleet: str | None, clock: Callable[[], datetime]
    ) -> None:
        """Look the stack up; raises `Gone` and `OperatorError`."""
        self._aws, self._name, self._fleet, self._clock = aws, stack, fleet, clock
        chosen(aws.documents(aws.stack(stack)), fleet)
        self._kept: dict[str, tuple[float, str]] = {}
        self._lock = threading.Lock()

    def answer(self, host: str, path: str) -> tuple[int, str, str]:
        """Answer a browser of this machine: status, content type and body.

        A name of elsewhere that leads here is refused: its page could read this one.
        """
        if host.partition(":")[0] not in (LOOPBACK, "localhost"):
            return 403, HTML, f"<!doctype html><title>403</title><p>Open http://{LOOPBACK}."
        path = path.partition("?")[0]
        match path:
            case "/":
                return 200, HTML, html()
            case "/state.json":
                return 200, JSON, self._fresh(path, STATE_EVERY_S, self._state)
            case "/charts.html":
                return 200, HTML, self._fresh(path, CHARTS_EVERY_S, self._charts)
            case _:
                return 404, HTML, "<!doctype html><title>404</title><p>There is no such page."

    def _fresh(self, path: str, every_s: float, make: Callable[[], str]) -> str:
        with self._lock:
            at, kept = self._kept.get(path, (-every_s, ""))
            if not kept or monotonic() - at >= every_s:
                kept = make()
                self._kept[path] = monotonic(), kept
            return kept

    def _state(self) -> str:
        now = self._clock()
        fleets: list[dict[str, object]] = []
        state: dict[str, object] = {"fleets": fleets}
        try:
            reading = Reading(self._aws, self._name, self._fleet, now)
            for fleet, looked in reading.looked():
                why = {i.instance_id: i.why for i in instances_of(fleet, looked, {}, {}, None, now)}
                picture = fleet_picture(fleet, looked.groups or {}, looked.records or (), why)
                status = fleet_status(fleet, looked, now)
                shown = {"state": status.state, "why": why_of(status), "rows": status_rows(status)}
                fleets.append(picture | {"status": shown})
            ringing = [f"alarm rings: {name}" for name in named(reading.ringing() or {})]
            state["troubles"] = [*ringing, *reading.troubles]
        except ERRORS as error:
            state = {"fleets": [], "why": str(error)}
        return json.dumps({"at": now.isoformat(), "charts": "charts.html", **state})

    def _charts(self) -> str:
        now = self._clock()
        first = now - CHARTS_OF
        try:
            stack = self._aws.stack(self._name)
            records = [
                record
                for fleet in chosen(self._aws.documents(stack), self._fleet)
                for record in self._aws.records(stack).between(fleet.name, first, now).records
            ]
        except ERRORS as error:
            return f"<!doctype html><title>Not known</title><p>{escape(str(error))}"
        return page_html(explain_page(records, first, now))


class Server(ThreadingHTTPServer):
    """Serves a page that may be closed at any moment."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over a browser that went away."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def server(watch: Watch, port: int) -> ThreadingHTTPServer:
    """Listen on this machine's loopback; raises `OperatorError` where the port is taken."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, kind, body = watch.answer(self.headers.get("Host", ""), self.path)
            data = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet: the page asks again and again."""
            del format, args

    try:
        return Server((LOOPBACK, port), Handler)
    except OSError as error:
        raise OperatorError(f"port {port}: {error.strerror}; give another --port") from error
