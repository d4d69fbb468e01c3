"""The backtest's report in a real browser: it draws, and it fits a phone (360 pixels wide)."""

import shutil
import subprocess
from pathlib import Path

import pytest

from spotkeeper_lab.backtest.backtest import BacktestPlan, Windows, run_backtest
from spotkeeper_lab.backtest.policies import choose
from spotkeeper_lab.backtest.report import report_html
from spotkeeper_lab.backtest.world import World
from spotkeeper_lab.traces.generate import generate

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
PROBE = """
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
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium here")
    policies = choose([])
    plan = BacktestPlan(
        markets=[generate(0, hours=6)],
        worlds=[World(target=3)],
        policies=policies,
        windows=Windows(count=2, hours=3.0),
    )
    page = tmp_path / "report.html"
    page.write_text(report_html(run_backtest(plan)).replace("</body>", f"{PROBE}</body>"))
    command = [browser, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", "--window-size=500,900"]
    shown = subprocess.run(
        [*command, "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    # All but the limit are marks; each policy's chart has two areas and a line, the market's one.
    expected = f"overflow=0 marks={len(policies) - 1} filled={3 * len(policies) + 1} cut=0 end"
    assert expected in shown
