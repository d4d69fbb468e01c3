"""GPU health: what nvidia-smi and the kernel's log say; test_step has a machine without one."""

import subprocess
from pathlib import Path

import pytest

from spotkeeper_worker.agent.gpu import Gpus, count_gpus
from tests.builders import evidence
from tests.worker.conftest import program

# What NVIDIA's catalog asks for where starting the program again does not help.
NEW = ("RESET_GPU", "RESTART_BM", "RESTART_VM", "WORKFLOW_XID_48", "WORKFLOW_NVLINK_ERR")
TWO = "echo 'GPU 0: NVIDIA A10G (UUID: GPU-1)'; echo 'GPU 1: NVIDIA A10G (UUID: GPU-2)'"


def look_of(folder: Path, script: str, log: str = "none", timeout_s: float = 60.0) -> Gpus:
    """Look once by an nvidia-smi that is this script, and at a kernel's log."""
    found = Gpus([str(program(folder / "nvidia-smi", script))], folder / log, timeout_s)
    found.look()
    return found


@pytest.mark.parametrize(("script", "ill"), [
    (TWO, ""),
    ("echo 'No devices were found'; exit 6", "nvidia-smi: No devices were found"),
    ("echo 'NVIDIA-SMI has failed' >&2; exit 9", "nvidia-smi: NVIDIA-SMI has failed"),
    ("exit 0", "nvidia-smi: lists no GPU"),
    ("echo 'GPU 0: A10G'; echo 'Unknown Error'; exit 15", "nvidia-smi: Unknown Error"),
    # An update of the driver, which what runs outlives, hits all machines in one night.
    (
        "echo 'ld.so: cannot be preloaded' >&2;"
        " echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
        "",
    ),
    (None, "nvidia-smi is not there; is the driver installed?"),
])  # fmt: skip
def test_a_failing_nvidia_smi_makes_a_machine_ill(
    tmp_path: Path, script: str | None, ill: str
) -> None:
    command = tmp_path / "nvidia-smi"
    if script:
        program(command, script)
    gpus = Gpus([str(command)], tmp_path / "none")
    gpus.look()
    assert gpus.ill == ill
    assert count_gpus([str(command)])[0] == (script or "").count("echo 'GPU")


def test_a_hung_nvidia_smi_blocks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs in the driver."""
    asked: list[subprocess.Popen[str]] = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda process: asked.append(process))
    gpus = look_of(tmp_path, "exec sleep 60", timeout_s=0.1)
    monkeypatch.undo()
    assert gpus.ill == "nvidia-smi: did not answer within 0.1 s"
    (process,) = asked
    process.kill()
    process.communicate()


def test_a_gpu_that_fell_off_is_missed(tmp_path: Path) -> None:
    gpus = look_of(tmp_path, TWO)
    for script, ill in ((TWO.partition(";")[0], "1 of 2 GPUs fell off"), (TWO, "")):
        program(tmp_path / "nvidia-smi", script)
        gpus.look()
        assert gpus.ill == ill


# The driver that has it, the vendor, the class, and what a container may have.
@pytest.mark.parametrize(("third", "ill"), [
    # Off the bus when the driver started: NVIDIA/NVSentinel#155 has the kernel's log, without Xid.
    ("none 10DE 030200", "1 of 3 GPUs fell off"),
    ("none 10DE 030200 0,1", ""),
    ("vfio-pci 10DE 030200", ""),  # a guest's
    ("nvidia 10DE 068000", ""),  # an NVSwitch
    ("none 1D0F 030000", ""),  # EC2's display
])  # fmt: skip
def test_a_gpu_that_never_started_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, third: str, ill: str
) -> None:
    for number, each in enumerate((*["nvidia 10DE 030200"] * 2, third)):
        driver, vendor, kind, *visible = each.split()
        (folder := tmp_path / "pci" / str(number)).mkdir(parents=True)
        (folder / "modalias").write_text(f"pci:v0000{vendor}d00002237bc{kind[:2]}sc{kind[2:4]}i00")
        if driver != "none":
            (folder / "driver").symlink_to(driver)
        for some in visible:
            monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", some)
    gpus = Gpus([str(program(tmp_path / "smi", TWO))], tmp_path / "none", pci=tmp_path / "pci")
    gpus.look()
    assert gpus.ill == ill


@pytest.mark.parametrize("row", evidence("xids"), ids=lambda row: f"{row['xid']}-{row['action']}")
def test_an_xid_that_asks_for_another_machine_stays(tmp_path: Path, row: dict[str, str]) -> None:
    log = tmp_path / "kmsg"
    log.write_text("6,1,1,-;NVRM: Xid (PCI:0000:00:1e): 79, from before\n")
    gpus = look_of(tmp_path, TWO, "kmsg")
    assert gpus.ill == ""
    with log.open("a") as file:
        file.write(f"3,2,2,-;NVRM: Xid (PCI:0000:00:1e): {row['xid']}, {row['text']}\n")
    for _ in range(2):
        gpus.look()
        assert gpus.ill == (f"Xid {row['xid']} of PCI:0000:00:1e" if row["action"] in NEW else "")
