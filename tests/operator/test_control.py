"""mode, pause, resume and stop on a stack that works, and what its turns do then."""

import json

from functions.check_availability.app import handler as check_availability
from functions.check_health.app import handler as check_health
from tests.functions.conftest import Stage
from tests.operator.command import answered, refused, run


def turned(stage: Stage) -> list[dict[str, object]]:
    """Let a minute pass and both halves turn; the two records."""
    stage.at(stage.cloud.now_s + 60)
    stage.call(check_health)
    stage.call(check_availability)
    return stage.records("main")[-2:]


def test_observe_then_act(deployed: Stage) -> None:
    assert answered("mode", "main", "observe").startswith("main: observe, said arn:aws:sts::")
    deployed.cloud.set_desired("main-spot", 6)
    before = deployed.cloud.group("main-on-demand").desired
    deployed.at(deployed.cloud.now_s + 180)
    records = turned(deployed)
    assert {r["permission"] for r in records} == {"observe"}
    assert deployed.cloud.group("main-on-demand").desired == before
    assert "OBSERVING since" in answered("status")
    assert "-> only observed" in answered("explain", "--since", "5m")
    answered("mode", "main", "act")
    assert {r["permission"] for r in turned(deployed)} == {"act"}
    assert deployed.cloud.group("main-on-demand").desired > before
    assert "OBSERVING" not in answered("status")


def test_pause_then_resume(deployed: Stage) -> None:
    told = answered("pause", "main", "--for", "2h", "--why", "new image")
    assert told == "main: paused until 2026-11-20 14:18:00 UTC\n"
    out = answered("status")
    assert "PAUSED until 2026-11-20 14:18 UTC: new image" in out
    found = json.loads(answered("status", "--json"))
    assert found["fleets"][0]["control"]["pause"]["why"] == "new image"
    assert {r["permission"] for r in turned(deployed)} == {"paused"}
    assert answered("resume", "main") == "main: not paused any more\n"
    assert {r["permission"] for r in turned(deployed)} == {"act"}
    assert refused("resume", "main") == "error: main is not paused"


def test_a_pause_without_an_end_or_a_reason(deployed: Stage) -> None:
    for wrong in ("-1h", "soon"):
        assert "no duration" in refused("pause", "main", "--for", wrong, "--why", "x")
    for wrong in ("30d", "0"):
        assert "at most 24h" in refused("pause", "main", "--for", wrong, "--why", "x")
    assert "say --why" in refused("pause", "main", "--for", "1h", "--why", " ")
    assert "there is no fleet nope" in refused("pause", "nope", "--for", "1h", "--why", "x")
    assert "Missing option '--for'" in refused("pause", "main", "--why", "x")


def test_stop_waits_for_spot_and_then_leaves_nothing_of_its_own(deployed: Stage) -> None:
    assert refused("stop", "main") == (
        "error: 1 of 4 spot instances do not serve, and 1 on demand stand in for them: "
        "wait, or give --anyway"
    )
    assert deployed.cloud.group("main-spot").suspensions.keys() == {"AZRebalance"}
    code, out, _ = run("stop", "main", "--anyway")
    assert code == 0
    assert out.splitlines()[:4] == [
        "did   main only observes from now on",
        "did   main-on-demand: desired 1 -> 0",
        "did   main-on-demand: AZRebalance resumed",
        "did   main-spot: AZRebalance resumed",
    ]
    assert deployed.cloud.group("main-on-demand").desired == 0
    assert deployed.cloud.group("main-spot").suspensions == {}
    turned(deployed)
    assert deployed.cloud.group("main-on-demand").desired == 0
    assert deployed.cloud.group("main-spot").suspensions == {}
