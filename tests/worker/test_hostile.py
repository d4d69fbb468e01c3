"""What another user of the machine can put in the agent's way, and what the agent does about it."""

import fcntl
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spotkeeper_worker.log import Sometimes, get_logger
from spotkeeper_worker.logs import files
from spotkeeper_worker.roster import NameTaken, Place, read_roster
from tests.worker.logs import Accepted, a_log

NOW = 1_763_632_800.0


pytestmark = pytest.mark.usefixtures("no_hang")


def large(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


SECRET = '["hunter2", "ready=1 busy=00007 begun=0000000001"]'
TRAPS: dict[str, Callable[[Path, Path], object]] = {
    "pipe": lambda path, secret: os.mkfifo(path),
    "endless": lambda path, secret: path.symlink_to("/dev/zero"),
    "link to a file of the agent's": lambda path, secret: path.symlink_to(secret),
    "second name of it": lambda path, secret: path.hardlink_to(secret),
    "folder": lambda path, secret: (path / "in it").mkdir(parents=True),
    "large": lambda path, secret: large(path),
}


@pytest.fixture(params=TRAPS)
def trap(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[Path], object]:
    """Put what another user made in the place of a file."""
    (tmp_path / "secret").write_text(SECRET)
    return lambda path: TRAPS[request.param](path, tmp_path / "secret")


def test_nothing_in_the_spool_stops_the_logs(
    trap: Callable[[Path], object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "in").mkdir()
    trap(tmp_path / "in" / "a.json")
    (tmp_path / "in" / "b.json").write_text(json.dumps(a_log()))
    taken, say = Accepted(), Sometimes(get_logger("agent"))
    for _ in range(3):
        files.collect(tmp_path, taken.accept, say)
    assert taken == [a_log()]
    assert "a.json" in caplog.text
    assert "hunter2" not in caplog.text
    assert list((tmp_path / "in").iterdir()) == []


def test_a_flood_of_files_does_not_hold_the_agent_up(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(3 * files.MOST_FILES):
        (tmp_path / "in" / f"{number:05d}.json").write_text("[]")
    say = Sometimes(get_logger("agent"))
    files.collect(tmp_path, lambda *_: [], say)
    assert len(list((tmp_path / "in").iterdir())) == 2 * files.MOST_FILES


def test_no_trap_in_the_roster_counts(trap: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    trap(tmp_path / "workers" / "gpu-7")
    mine = Place(tmp_path, "gpu-0")
    mine.ready()
    found = read_roster(tmp_path, 1, NOW)
    assert (found.ready, found.not_ready, found.busy) == (("gpu-0",), (), 0)
    mine.close()


def test_no_trap_blocks_a_worker_s_name(trap: Callable[[Path], object], tmp_path: Path) -> None:
    """It is refused by name at worst; it never hangs, and never writes into another's file."""
    (tmp_path / "workers").mkdir()
    trap(tmp_path / "workers" / "gpu-0")
    try:
        Place(tmp_path, "gpu-0").close()
    except (NameTaken, OSError) as error:
        assert "gpu-0" in str(error)
    assert (tmp_path / "secret").read_text() == SECRET


def test_a_file_with_an_invalid_name_is_no_worker(tmp_path: Path) -> None:
    """Names of workers reach the notice and systemd."""
    (tmp_path / "workers").mkdir()
    with (tmp_path / "workers" / "x\nMAINPID=1").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        found = read_roster(tmp_path, 1, NOW)
    assert (found.alive, found.busy_with) == (0, ())


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
