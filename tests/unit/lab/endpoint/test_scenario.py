from pathlib import Path

import pytest

from spotkeeper_lab.endpoint.story import (
    FOLDER,
    ScenarioError,
    find_scenario,
    read_scenario,
)

SHIPPED = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_what_comes_along_is_sound(path: Path) -> None:
    scenario = read_scenario(path)
    assert scenario.name == path.stem
    assert all(step.at_s < scenario.for_s for step in scenario.steps)
    assert any(value is not None for value in scenario.promises.model_dump().values())


def test_every_fault_is_in_some_scenario() -> None:
    used = {step.fault.do for path in SHIPPED for step in read_scenario(path).steps}
    assert used >= {
        "calls",
        "capacity",
        "events",
        "kill-function",
        "loss",
        "refuse-launches",
        "search-logs",
    }


def test_every_wrong_field_is_named(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(
        "name: Wrong Name\nabout: x\nfor_s: 60\n"
        "steps: [{at_s: -1, fault: {do: loss, cuont: 2}}]\npromises: {served_share: 2}\n"
    )
    with pytest.raises(ScenarioError) as caught:
        read_scenario(path)
    for field in ("name", "steps.0.at_s", "steps.0.fault.loss.cuont", "promises.served_share"):
        assert field in str(caught.value)


@pytest.mark.parametrize("text", ["{", "- a\n- b\n", ""])
def test_what_is_no_scenario_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "no.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=str(path)):
        read_scenario(path)


def test_an_unknown_name_lists_those_that_there_are() -> None:
    with pytest.raises(ScenarioError, match="spot-dry"):
        find_scenario("no-such")


def test_a_scenario_is_found_by_its_name_or_its_file(tmp_path: Path) -> None:
    assert find_scenario("spot-dry") == FOLDER / "spot-dry.yaml"
    mine = tmp_path / "mine.yaml"
    mine.touch()
    assert find_scenario(str(mine)) == mine
