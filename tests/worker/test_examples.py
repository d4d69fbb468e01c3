"""The examples are held by the tools of what they are for, where those are."""

import base64
import gzip
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from botocore.session import get_session
from botocore.validate import ParamValidator

from spotkeeper_worker.agent.settings import Settings

EXAMPLES = Path(__file__).parents[2] / "worker" / "examples"
CONFIGS = sorted(EXAMPLES.rglob("*.cloud-config.yaml"))
UNITS = sorted(EXAMPLES.rglob("*.service"))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_a_cloud_config_has_the_units_and_fits_its_parameter(config: Path) -> None:
    assert config.read_text().startswith("#cloud-config\n")
    read: Any = yaml.safe_load(config.read_text())
    files = {each["path"]: each["content"] for each in read["write_files"]}
    beside = config.parent if config.parent != EXAMPLES else EXAMPLES / "systemd"
    units = list(beside.glob("*.service"))
    if config.name.startswith("ecs-tasks"):
        # ECS starts the workers.
        units = [unit for unit in units if "worker@" not in unit.name]
    for unit in units:
        assert files[f"/etc/systemd/system/{unit.name}"] == unit.read_text()
    assert len(base64.b64encode(gzip.compress(config.read_bytes(), 9))) <= 4096


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
@pytest.mark.make_e2e
def test_cloud_init_accepts_a_cloud_config(config: Path) -> None:
    if shutil.which("cloud-init") is None:
        pytest.skip("there is no cloud-init here (apt-get install cloud-init)")
    command = ["cloud-init", "schema", "--config-file", str(config)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_a_unit(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze here (apt-get install systemd)")
    # Neither docker nor the agent need be on this machine.
    text = re.sub(r"^(Exec\w+=-?)\S+", r"\1/bin/true", unit.read_text(), flags=re.MULTILINE)
    (tmp_path / "docker.service").write_text("[Service]\nExecStart=/bin/true\n")
    for each in UNITS:
        shutil.copy(each, tmp_path)
    name = unit.name.replace("@.", "@0.")
    (tmp_path / name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", name]
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    checked = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    told = [line for line in checked.stderr.splitlines() if str(tmp_path) in line]
    assert checked.returncode == 0, checked.stderr
    assert told == []


def test_the_launch_template_s_role_may_change_nothing_that_is_not_named() -> None:
    text = (EXAMPLES / "launch-template.yaml").read_text()
    wild = re.findall(r'Action: (.*)\n *Resource: "\*"', text)
    assert wild == ["ecr:GetAuthorizationToken"]


def test_the_ecs_task_is_one_that_the_api_accepts() -> None:
    """By botocore's model of it; what it mounts is where the agent is."""
    page = (EXAMPLES.parents[1] / "docs" / "ecs.md").read_text()
    task = json.loads(re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0])
    model = get_session().get_service_model("ecs").operation_model("RegisterTaskDefinition")
    assert model.input_shape
    report = ParamValidator().validate(task, model.input_shape)
    assert not report.has_errors(), report.generate_report()
    (worker,) = task["containerDefinitions"]
    paths = {volume["name"]: volume["host"]["sourcePath"] for volume in task["volumes"]}
    assert {paths[it["sourceVolume"]]: it["containerPath"] for it in worker["mountPoints"]} == {
        str(folder): str(folder) for folder in (Settings().run_dir, Settings().spool_dir)
    }
    config = (EXAMPLES / "ecs-tasks.cloud-config.yaml").read_text()
    assert config.count("write_files:") == 1 and "ECS_ENABLE_SPOT_INSTANCE_DRAINING=true" in config
    assert worker["user"].endswith(":" + re.findall(r"--gid (\d+)", config)[0])
