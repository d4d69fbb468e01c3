"""Pages in a real browser: the live page and a backtest's report draw, and fit a phone."""

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from spotkeeper_lab.backtest.backtest import BacktestPlan, Windows, run_backtest
from spotkeeper_lab.backtest.policies import choose
from spotkeeper_lab.backtest.report import report_html
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.endpoint.faults import ORDERS
from spotkeeper_lab.traces.generate import generate
from spotkeeper_operator.status.page import html

QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WITHIN_S = 60
STATE = {
    "at": "2026-11-20T12:00:30+00:00",
    "fleets": [
        {
            "name": "main",
            "groups": [
                {
                    "kind": "spot",
                    "name": "ocr-spot",
                    "desired": 2,
                    "instances": [
                        {"id": "i-1", "pool": "us-east-1a/g5.xlarge", "phase": "in_service"},
                        {"id": "i-2", "pool": "us-east-1b/g5.xlarge", "phase": "launching"},
                    ],
                },
                {"kind": "on-demand", "name": "ocr-od", "desired": None, "instances": []},
            ],
            "decisions": [
                {
                    "at": "2026-11-20T12:00:02+00:00",
                    "controller": "availability",
                    "action": "backfill",
                    "rule": "backfill",
                    "reason": "spot 1 of 2 serving <b>1 short</b>",
                }
            ],
        }
    ],
    "lab": {
        "market": {"us-east-1a/g5.xlarge": 4},
        "workers": {"erlangs": 2, "queued": 0, "served": 9, "lost": 0, "logging": True},
        "orders": ORDERS,
    },
}
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
      reason: document.querySelector("tr.backfill td:last-child").textContent,
      told: document.getElementById("told").textContent,
      overflow: Math.max(0, document.body.scrollWidth - room),
    };
    document.body.textContent = `PROBE ${JSON.stringify(seen)} END`;
  }, 500);
}, 50);
</script>
"""


@dataclass
class Served:
    """Where the page is, and the orders that it gave."""

    url: str = ""
    orders: list[object] = field(default_factory=list)


@pytest.fixture
def served() -> Iterator[Served]:
    found = Served()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/state.json":
                self.answer("application/json", json.dumps(STATE))
            else:
                self.answer("text/html; charset=utf-8", html() + PROBE)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.orders.append(json.loads(body))
            self.answer("application/json", '{"done": "i-2"}')

        def answer(self, kind: str, text: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    found.url = f"http://127.0.0.1:{server.server_port}/"
    yield found
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


def test_the_page_shows_the_fleet_and_gives_orders(served: Served, tmp_path: Path) -> None:
    shown = dumped(served.url, tmp_path, "--virtual-time-budget=4000")
    seen = json.loads(
        shown.partition("PROBE ")[2].partition(" END")[0].replace("&lt;", "<").replace("&gt;", ">")
    )
    assert seen["groups"] == [
        "spot: 1 of 2 in service (ocr-spot)",
        "on-demand: is not there (ocr-od)",
    ]
    assert seen["tiles"] == ["one in_service", "one launching"]
    assert seen["reason"] == "spot 1 of 2 serving <b>1 short</b>"
    assert seen["buttons"] == len(ORDERS)
    assert served.orders == [ORDERS[0]["fault"]]
    assert seen["told"] == "Warn one instance: i-2"
    assert seen["overflow"] == 0


REPORT_PROBE = """
<script>
const room = 360;
document.documentElement.style.width = `${room}px`;
const wide = document.body.scrollWidth;
const marks = [...document.querySelectorAll(".scatter circle")].map(m => m.getBoundingClientRect());
const filled = [...document.querySelectorAll("path.series")].filter(p => p.getAttribute("d"));
const texts = [...document.querySelectorAll(".scatter text.name")].map(
  t => t.getBoundingClientRect()).filter(b => b.left < 0 || b.right > room);
document.body.innerHTML = `probe overflow=${Math.max(0, wide - room)} marks=${marks.length} ` +
  `filled=${filled.length} cut=${texts.length} end`;
</script>
"""


def test_the_report_draws_every_policy_and_fits_a_phone(tmp_path: Path) -> None:
    policies = choose([])
    plan = BacktestPlan(
        markets=[generate(0, hours=6)],
        worlds=[World(target=3)],
        policies=policies,
        windows=Windows(count=2, hours=3.0),
    )
    page = tmp_path / "report.html"
    page.write_text(report_html(run_backtest(plan)).replace("</body>", f"{REPORT_PROBE}</body>"))
    shown = dumped(page.as_uri(), tmp_path)
    # All but the limit are marks; each policy's chart has two areas and a line, the market's one.
    expected = f"overflow=0 marks={len(policies) - 1} filled={3 * len(policies) + 1} cut=0 end"
    assert expected in shown
