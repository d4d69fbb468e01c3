"""Fleet documents in files: what is wrong with them, what they change, and what follows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from functions.check_health.app import handler as check_health
from spotkeeper_cli import stack_commands
from tests.functions.conftest import TABLE, Stage, document
from tests.operator.command import STACK, deploy, run

PATH = f"/spotkeeper/{STACK}/fleets"


def _written(folder: Path, name: str, text: Any) -> str:
    file = folder / f"{name}.json"
    file.write_text(text if isinstance(text, str) else json.dumps(text))
    return str(file)


def _with(section: str, **settings: Any) -> dict[str, Any]:
    whole = document("main")
    return whole | {section: {**whole.get(section, {}), **settings}}


@pytest.mark.parametrize(
    ("name", "text", "mistake"),
    [
        ("main", _with("availability", lanch_deadline_s=900), "mean availability.launch_dead"),
        (
            "main",
            {**document("main"), "spot_max": 9},
            "spot_max: is not known here: did you mean b",
        ),
        ("main", _with("bounds", Spot_Min=9), "did you mean bounds.spot_min?"),
        ("main", _with("availability", notice_s="2m"), "a whole number, without quotes or a unit"),
        ("main", "", "document main: is empty\n"),
        ("main", _with("bounds", spot_min=10, spot_max=9), "spot_min 10 is above spot_max 9"),
        ("main", {**document("main"), "request_queue_url": "q"}, "request_queue_url: does not"),
        ("main", "{", "is not JSON"),
        ("main.overrides", {"bounds": {"spot_mx": 3}}, "did you mean bounds.spot_max?"),
        ("main", {**document("main"), "spot_group": "x" * 5000}, "at most 4096"),
        ("a fleet", document("main"), "is not the name of a fleet"),
    ],
)
def test_each_mistake_is_named_without_aws(
    tmp_path: Path, name: str, text: Any, mistake: str
) -> None:
    code, out, _ = run("fleet", "validate", _written(tmp_path, name, text))
    assert (code, mistake in out) == (1, True), out
    # Of what turns do about it, nobody knows here.
    assert not [word for word in ("pattern", "turn", "in force", "Input") if word in out]
    assert run("fleet", "validate", _written(tmp_path, "main", document("main")))[:2] == (0, "")


def test_a_group_of_another_fleet_is_refused_in_files_and_beside_what_is_deployed(
    deployed: Stage, tmp_path: Path
) -> None:
    files = [_written(tmp_path, name, document("main")) for name in ("main", "other")]
    code, out, _ = run("fleet", "validate", *files)
    assert (code, out.count("which main and other name")) == (1, 2)
    code, _, err = run("fleet", "diff", files[1])
    assert (code, err.endswith("which fleet main has\n")) == (2, True)


def test_a_mistake_of_another_fleet_stops_no_other(deployed: Stage, tmp_path: Path) -> None:
    """Two documents are wrong: each can be mended alone, and main's changes go on."""
    deployed.put("night", "{")
    deployed.put("noon", "[]")
    larger = _written(tmp_path, "main.overrides", {"bounds": {"spot_min": 3}})
    assert run("fleet", "diff", larger)[0] == 1
    assert run("fleet", "apply", larger, "--yes")[::2] == (0, "")
    code, _, err = run("fleet", "show", "night")
    assert (code, "night: is not JSON" in err, "noon" in err) == (2, True, False)
    assert run("fleet", "apply", _written(tmp_path, "noon", document("noon")), "--yes")[0] == 0
    assert json.loads(run("fleet", "show", "noon")[1])["settings"]["spot_group"] == "noon-spot"


def test_a_file_of_another_name_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "main.yaml"
    file.write_text(json.dumps(document("main")))
    code, out, err = run("fleet", "validate", str(file))
    assert (code, out, "is not called NAME.json" in err) == (2, "", True)


def test_what_somebody_else_wrote_meanwhile_is_kept(
    deployed: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the command asks, a colleague applies another file."""

    def ask(*_: object) -> None:
        deployed.put("main.overrides", '{"bounds": {"spot_min": 9}}')

    monkeypatch.setattr(stack_commands, "confirm", ask)
    file = _written(tmp_path, "main.overrides", {"bounds": {"spot_min": 6}})
    code, _, err = run("fleet", "apply", file)
    assert (code, f"by somebody else meanwhile: {PATH}/main.overrides" in err) == (2, True)
    shown = json.loads(run("fleet", "show", "main")[1])["settings"]
    assert shown["bounds"]["spot_min"] == 9


def test_a_file_is_compared_shown_and_written(deployed: Stage, tmp_path: Path) -> None:
    """The next turns are those of the deployed code on the files' settings; none leaves a trace."""
    same = json.dumps(document("main", sizing={"enabled": False}))
    assert run("fleet", "diff", _written(tmp_path, "main", same))[0] == 0
    sized = {"sizing": {"enabled": True}, "objective": {"wait_s": 10, "share": 0.95}}
    larger = _written(tmp_path, "main.overrides", {**sized, "bounds": {"spot_min": 6}})
    code, out, _ = run("fleet", "diff", larger, "--json")
    (found,) = json.loads(out)["fleets"]
    changes = {each["setting"]: (each["deployed"], each["file"]) for each in found["changes"]}
    assert (code, found["parameters"]) == (1, [f"{PATH}/main.overrides"])
    assert changes["sizing.enabled"] == (False, True)
    assert changes["bounds.spot_min"][1] == 6

    def kept() -> Any:
        return boto3.client("dynamodb").scan(TableName=TABLE)["Items"]

    before = kept()
    code, _, err = run("fleet", "apply", larger)
    assert (code, kept()) == (2, before)
    assert "give --yes" in err
    assert run("fleet", "apply", larger, "--yes")[0] == 0
    ssm = boto3.client("ssm")
    (written,) = [
        p["Value"]
        for p in ssm.get_parameters_by_path(Path=PATH)["Parameters"]
        if p["Name"].endswith(".overrides")
    ]
    assert json.loads(written)["bounds"] == {"spot_min": 6}
    shown = json.loads(run("fleet", "show", "main", "--json")[1])["settings"]
    assert (shown["bounds"]["spot_min"], shown["sizing"]["enabled"]) == (6, True)
    # The next turn requests what the command announced.
    (line,) = [it for it in err.splitlines() if "next health turn" in it]
    spot = deployed.cloud.group("main-spot").desired
    deployed.restart()
    deployed.call(check_health)
    now = deployed.cloud.group("main-spot").desired
    assert now != spot, line
    assert f"main-spot: desired {now} " in line


def test_the_stack_s_own_document_is_left_to_deployments(deployed: Stage, tmp_path: Path) -> None:
    boto3.client("cloudformation").delete_stack(StackName=STACK)
    deploy(FleetDocumentName=f"{PATH}/main")
    code, _, err = run("fleet", "diff", _written(tmp_path, "main", _with("bounds", spot_min=2)))
    assert (code, "main.overrides.json" in err) == (2, True)


def test_a_turn_that_cannot_be_foreseen_is_not_called_idle(
    deployed: Stage, tmp_path: Path, denied: Callable[..., None]
) -> None:
    file = _written(tmp_path, "main.overrides", {"bounds": {"spot_min": 6}})
    denied("DescribeAutoScalingGroups")
    code, _, err = run("fleet", "apply", file)
    assert code == 2
    assert err.count("turn is not known: the turn failed: Refused") == 2
    assert "requests nothing" not in err


def test_a_document_that_aws_refuses_names_those_written_before(
    deployed: Stage, tmp_path: Path, denied: Callable[..., None]
) -> None:
    file = _written(tmp_path, "main.overrides", {"bounds": {"spot_min": 6}})
    denied("PutParameter")
    code, _, err = run("fleet", "apply", file, "--yes")
    assert (code, f"writing the fleet document {PATH}/main.overrides" in err) == (2, True)
