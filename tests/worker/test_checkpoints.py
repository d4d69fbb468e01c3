"""A checkpoint is whole or not there, wherever the process that writes it is killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spotkeeper_worker.checkpoints import DRAFT, FOLDER, latest, publish

# Publishes 7, 8 and 9 in children, each killed at another system call; prints after which of its
# calls each child died, and what `latest` finds then.
KILLED_ANYWHERE = """
import os, pathlib, sys
from spotkeeper_worker.checkpoints import latest, publish
root = pathlib.Path(sys.argv[1])
calls = ("open", "os.mkdir", "os.rename", "os.rmdir", "os.remove", "os.unlink", "os.scandir")

def write(number):
    with publish(number, folder) as draft:
        (draft / "part").mkdir()
        for name in ("model", "part/optimizer"):
            with open(draft / name, "wb") as file:
                file.write(b"%d" % number * 50_000)

for kill in range(1, 1000):
    folder = root / str(kill)
    child = os.fork()
    if not child:
        left = [kill]
        def audit(event, arguments):
            left[0] -= event in calls
            if not left[0]:
                os._exit(9)
        sys.addaudithook(audit)
        for number in (7, 8, 9):
            write(number)
        left[0] = 0
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found = latest(folder)
    print(kill, code, found.name if found else "-", *(
        "half" for each in (folder.iterdir() if folder.exists() else ())
        if not each.name.startswith(".")
        for name in ("model", "part/optimizer")
        if (each / name).read_bytes() != b"%d" % int(each.name) * 50_000
    ))
    if not code:
        break
"""


@pytest.mark.make_e2e
def test_a_kill_at_any_call_leaves_whole_checkpoints_and_never_goes_back(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED_ANYWHERE, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    lines = [line.split() for line in ran.stdout.splitlines()]
    assert len(lines) > 30
    assert lines[-1][1:] == ["0", "000009"]
    assert not [line for line in lines if "half" in line]
    found = [line[2] for line in lines]
    assert sorted(found) == found, "a later kill finds an older checkpoint"
    assert set(found) == {"-", "000007", "000008", "000009"}


def test_sync_precedes_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    rename = os.rename

    def renamed(old: Path, new: Path) -> None:
        calls.append(f"-> {Path(new).name}")
        rename(old, new)

    def synced(fd: int) -> None:
        calls.append(Path(f"/proc/self/fd/{fd}").readlink().name)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    with publish(7, tmp_path / "kept") as folder:
        (folder / "model").write_bytes(b"7")
        (folder / "part").mkdir()
        (folder / "part" / "optimizer").write_bytes(b"7")
    at = calls.index("-> 000007")
    assert set(calls[:at]) == {"model", "part", "optimizer", ".spotkeeper", folder.name}
    assert calls[at - 1] == folder.name
    assert calls[at + 1 :] == ["kept"]


def test_a_block_that_raises_publishes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), publish(1, tmp_path) as folder:
        (folder / "model").write_text(str(1 / 0))
    assert list(tmp_path.iterdir()) == []
    assert latest(tmp_path) is None


def test_only_the_newest_two_published_stay(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-5000000").mkdir()
    for step in (999_998, 999_999, 1_000_000):
        with publish(step, tmp_path) as folder:
            (folder / "model").touch()
    names = sorted(each.name for each in tmp_path.iterdir())
    assert names == ["1000000", "999999", "checkpoint-5000000"]
    assert latest(tmp_path) == tmp_path / "1000000"


def test_a_step_published_again_is_replaced(tmp_path: Path) -> None:
    for text in ("old", "new"):
        with publish("last", tmp_path) as folder:
            (folder / "model").write_text(text)
    assert (tmp_path / "last" / "model").read_text() == "new"


@pytest.mark.parametrize("name", ["", ".draft", "a/b", "a\0"])
def test_a_bad_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="is not a checkpoint's name"), publish(name, tmp_path):
        pass


def test_the_folder_is_the_job_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(FOLDER, raising=False)
    with publish(1) as folder:
        assert folder.parent == tmp_path / "checkpoints"
        assert folder.name.startswith(DRAFT)
    monkeypatch.setenv(FOLDER, str(tmp_path / "elsewhere"))
    assert latest() is None
