"""What another user of the machine can put in the agent's way, and what the agent does about it."""

import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from spotkeeper_worker.log import Sometimes, get_logger
from spotkeeper_worker.logs import files
from spotkeeper_worker.roster import NameTaken, Place, read_roster
from tests.worker.logs import a_log

NOW = 1_763_632_800.0


pytestmark = pytest.mark.usefixtures("no_hang")


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def secret(path: Path) -> None:
    """A symbolic link to a file that only the agent can read."""
    target = path.parent.parent / "secret"
    target.write_text('["hunter2", "ready=1 busy=00007 begun=0000000001"]')
    path.symlink_to(target)


def second_name(path: Path) -> None:
    target = path.parent.parent / "secret"
    target.write_text('["hunter2"]')
    path.hardlink_to(target)


def folder(path: Path) -> None:
    path.mkdir()
    (path / "file").touch()


def large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


TRAPS: tuple[Callable[[Path], None], ...] = (fifo, endless, secret, second_name, folder, large)


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.__name__)
def test_nothing_in_the_spool_stops_the_logs(
    trap: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in").mkdir()
    trap(tmp_path / "in" / "a.json")
    (tmp_path / "in" / "b.json").write_text(json.dumps(a_log()))
    taken: list[object] = []

    def accept(logs: Sequence[object], session: str, batch: int) -> list[str]:
        taken.extend(logs)
        return []

    say = Sometimes(get_logger("agent"))
    for _ in range(3):
        files.collect(tmp_path, accept, say)
    assert taken == [a_log()]
    assert "a.json" in caplog.text
    assert "hunter2" not in caplog.text
    assert list((tmp_path / "in").iterdir()) == []


def test_a_flood_of_files_does_not_hold_the_agent_up(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(3 * files.MOST_FILES):
        (tmp_path / "in" / f"{number:05d}.json").write_text("[]")
    say = Sometimes(get_logger("agent"))
    assert files.collect(tmp_path, lambda *_: [], say) == files.MOST_FILES
    assert len(list((tmp_path / "in").iterdir())) == 2 * files.MOST_FILES


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.__name__)
def test_no_trap_in_the_roster_counts(trap: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    trap(tmp_path / "workers" / "gpu-7")
    mine = Place(tmp_path, "gpu-0")
    mine.ready()
    found = read_roster(tmp_path, 1, NOW)
    assert (found.ready, found.not_ready, found.busy) == (("gpu-0",), (), 0)
    mine.close()


@pytest.mark.parametrize("trap", TRAPS[:-1], ids=lambda trap: trap.__name__)
def test_no_trap_blocks_a_worker_s_name(trap: Callable[[Path], None], tmp_path: Path) -> None:
    """It is refused by name at worst; it never hangs, and never writes into another's file."""
    (tmp_path / "workers").mkdir()
    trap(tmp_path / "workers" / "gpu-0")
    try:
        Place(tmp_path, "gpu-0").close()
    except (NameTaken, OSError) as error:
        assert "gpu-0" in str(error)
    secret = tmp_path / "secret"
    assert not secret.exists() or "hunter2" in secret.read_text()


def test_no_text_from_outside_makes_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    log = get_logger("agent")
    log.warning("%s could not be read", "x\nCRITICAL all is lost\x1b[2J\u2028\u202e.json")
    try:
        raise ValueError("no\nCRITICAL all is lost")
    except ValueError:
        log.exception("request %s failed", "r-1\r\n")
    for record in caplog.records:
        lines = logging.Formatter("%(levelname)s %(message)s").format(record).splitlines()
        assert lines[0].startswith(("WARNING", "ERROR"))
        assert all(line.startswith("    ") for line in lines[1:]), lines
    assert "\x1b" not in caplog.text
