"""Pages in a real browser: they draw, and fit a phone of 390 px and a screen of 1,280 px."""

import io
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console

from spotkeeper.domain.decision import (
    OF_FLEETS,
    Action,
    AvailabilityFigures,
    Controller,
    HealthFigures,
)
from spotkeeper_charts.page import page_html
from spotkeeper_lab.backtest.policies import choose
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.run.backtest import Windows, report_html, run_backtest
from spotkeeper_lab.run.demo import DemoSettings, run_demo
from spotkeeper_lab.run.serve import ORDERS
from spotkeeper_lab.traces.market import generate
from spotkeeper_lab.traces.requests import generate_requests
from spotkeeper_operator.explain import explain_page
from spotkeeper_operator.watch import fleet_picture, html
from tests.builders import NOON, backfilled, fleet, group, held, instances

QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
WITHIN_S = 60
FLEET = replace(fleet(), name="main", spot_group="ocr-spot", on_demand_group="ocr-od")
DECISION = held(
    controller=Controller.AVAILABILITY,
    action=Action.BACKFILL,
    rule="backfill",
    reason="spot 1 of 2 serving <b>1 short</b>",
    outcomes=(backfilled(1, group="ocr-od"),),
)
THERE = {"ocr-spot": group("ocr-spot", 2, instances(serving=["i-1"], launching=["i-2"]))}
STATE = json.dumps(
    {
        "at": "2026-11-20T12:00:30+00:00",
        "fleets": [fleet_picture(FLEET, THERE, [DECISION], {})],
        "lab": {
            "market": {"us-east-1a/g5.xlarge": 4},
            "workers": {"erlangs": 2, "queued": 0, "served": 9, "lost": 0, "logging": True},
            "orders": ORDERS,
        },
    }
)
# Waits until the page has drawn, gives the first order, and tells what there is to see.
PROBE = """
<script>
const room = 360;
const probe = setInterval(() => {
  const buttons = document.querySelectorAll("#orders button");
  if (!buttons.length) return;
  clearInterval(probe);
  buttons[0].click();
  setTimeout(() => {
    document.documentElement.style.width = `${room}px`;
    const groups = [...document.querySelectorAll(".group .count")].map(one => one.textContent);
    const seen = {
      buttons: buttons.length,
      groups,
      tiles: [...document.querySelectorAll(".group .one")].map(one => one.className),
      reason: document.querySelector("tr.requested td:last-child").textContent,
      told: document.getElementById("told").textContent,
      overflow: Math.max(0, document.body.scrollWidth - room),
    };
    document.body.textContent = `PROBE ${JSON.stringify(seen)} END`;
  }, 500);
}, 50);
</script>
"""


@contextmanager
def serving(page: Callable[[str], str], orders: list[object]) -> Iterator[str]:
    """Where each path is the page that `page` makes of it; what is sent is an order."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer("text/html; charset=utf-8", page(self.path))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            orders.append(json.loads(body))
            self.answer("application/json", '{"done": "i-2"}')

        def answer(self, kind: str, text: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def dumped(url: str, folder: Path, *options: str) -> str:
    """The page as a browser has it once its scripts have run."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium here")
    command = [browser, *QUIET, f"--user-data-dir={folder / 'profile'}", "--window-size=500,900"]
    return subprocess.run(
        [*command, *options, "--dump-dom", url],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=True,
    ).stdout


def test_the_page_shows_the_fleet_and_gives_orders(tmp_path: Path) -> None:
    orders: list[object] = []
    with serving(lambda path: STATE if "state" in path else html() + PROBE, orders) as url:
        shown = dumped(url, tmp_path, "--virtual-time-budget=4000")
    seen = json.loads(unescape(shown.partition("PROBE ")[2].partition(" END")[0]))
    assert seen["groups"] == [
        "spot: 1 of 2 in service (ocr-spot)",
        "on-demand: is not there (ocr-od)",
    ]
    assert seen["tiles"] == ["one in_service", "one launching"]
    assert seen["reason"] == ("spot 1 of 2 serving <b>1 short</b>; requested: ocr-od: desired 1")
    assert seen["buttons"] == len(ORDERS)
    assert orders == [ORDERS[0]["fault"]]
    assert seen["told"] == "Warn one instance: i-2"
    assert seen["overflow"] == 0


# Opens a page in a frame of a width, and tells what is too wide, hidden or unreadable in it.
FRAME = """<!doctype html><body style="margin:0"><iframe src="PAGE" width="WIDTH" height="2500">
</iframe><script>
const frame = document.querySelector("iframe");
const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
  Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 5;
frame.onload = () => setTimeout(() => {
  const page = frame.contentDocument;
  const boxes = [...page.querySelectorAll("svg")].map(svg => [...svg.querySelectorAll("text")]
    .filter(t => t.textContent && t.getClientRects().length)
    .map(t => [t.textContent, t.getBoundingClientRect()]));
  const overlap = boxes.flatMap(texts => texts.flatMap(([a, x], i) =>
    texts.slice(i + 1).filter(([, y]) => over(x, y)).map(([b]) => `${a}|${b}`)));
  const narrow = [...page.querySelectorAll("td, th, p, dd, h1, h2, figcaption")].filter(e => {
    const words = e.textContent.trim().split(/\\s+/).length;
    const line = parseFloat(getComputedStyle(e).fontSize) * 1.7;
    return words > 5 && !e.querySelector("td, p") && e.offsetHeight / line > words / 1.5;
  }).map(e => e.textContent.slice(0, 40));
  const found = {
    overflow: Math.max(0, page.documentElement.scrollWidth - WIDTH),
    overlap, narrow,
    cut: [...page.querySelectorAll(".scatter text")].filter(t => {
      const [inner, outer] = [t, t.closest("svg")].map(e => e.getBoundingClientRect());
      return inner.left < outer.left - 1 || inner.right > outer.right + 1;
    }).map(t => t.textContent),
    icon: page.querySelector("link[rel=icon]") !== null,
    text: page.body.innerText.length,
    readout: page.querySelector(".readout")?.textContent ?? "",
    wrong: /NaN|undefined|Infinity/.test(page.querySelector(".charts")?.innerHTML || ""),
    filled: page.querySelectorAll("path.series[d]:not([d=''])").length,
    marks: page.querySelectorAll(".scatter circle").length,
  };
  document.body.textContent = `PROBE ${JSON.stringify(found)} END`;
}, 1500);
</script>"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where each page is, and behind /frame/WIDTH/NAME a frame of a width around it."""
    folder = tmp_path_factory.mktemp("pages")
    windows = Windows(count=2, hours=3.0)
    rows = run_backtest([generate(0, hours=6)], [World(target=3)], choose([]), windows)
    hour = DemoSettings(market=generate(0), requests=generate_requests(0), hours=1.0)
    run_demo(hour, folder / "demo", Console(file=io.StringIO()))
    begin = NOON - timedelta(hours=3)
    records = [
        held(
            controller=controller,
            at=begin + timedelta(minutes=minute),
            reason=f"spot {minute % 4} of 4 serving; nothing is missing " * 3,
            availability=AvailabilityFigures(spot_desired=4, spot_serving=minute % 4),
            health=HealthFigures(offered_load=2, wait_p95_s=9),
        )
        for minute in range(180)
        for controller in OF_FLEETS
    ]
    shown = {
        "live": html(),
        "state.json": STATE,
        "explain": page_html(explain_page(records, begin, NOON)),
        "backtest": report_html(rows),
        "demo": (folder / "demo/report.html").read_text(),
    }

    def page(path: str) -> str:
        _, *where, name = path.split("/")
        if not where:
            return shown.get(name, "")
        return FRAME.replace("PAGE", f"/{name}").replace("WIDTH", where[-1])

    with serving(page, []) as url:
        yield url


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize(
    ("name", "filled", "marks"),
    [("live", 0, 0), ("explain", 3, 0), ("demo", 4, 0), ("backtest", 3 * len(choose([])) + 1, 9)],
)
def test_a_page_is_readable(
    name: str, filled: int, marks: int, width: int, pages: str, tmp_path: Path
) -> None:
    shown = dumped(f"{pages}frame/{width}/{name}", tmp_path, "--virtual-time-budget=8000")
    seen = json.loads(unescape(shown.partition("PROBE ")[2].partition(" END")[0]))
    assert seen["overflow"] == 0
    assert [seen[wrong] for wrong in ("overlap", "narrow", "cut")] == [[], [], []]
    assert seen["icon"]
    assert seen["text"] > 200
    assert not seen["wrong"]
    assert seen["readout"] or not filled
    # All but the limit are marks; each policy's chart has two areas and a line, the market's one.
    assert seen["filled"] >= filled
    assert seen["marks"] >= marks
