"""The machine's disks by the real commands, and by stand-ins of them where they need root."""

import os
import subprocess
from pathlib import Path

import pytest

from spotkeeper_worker.job import disks
from spotkeeper_worker.job.disks import DiskError, Disks
from tests.worker.conftest import program


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str) -> None:
    program(tmp_path / "bin" / name, script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin")


def test_a_volume_is_found_by_its_serial_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "BY_ID", tmp_path)
    (tmp_path / "nvme1n1").touch()
    link = tmp_path / "nvme-Amazon_Elastic_Block_Store_vol0abc"
    link.symlink_to(tmp_path / "nvme1n1")
    assert Disks().find("vol-0abc") == str(tmp_path / "nvme1n1")
    assert Disks().find("vol-0abd") is None


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo ext4", "ext4"),
        ("echo gpt", "gpt"),
        ("exit 2", ""),
        ("exit 8", DiskError),
        ("echo ambivalent >&2; exit 8", DiskError),
        ("exit 0", DiskError),
    ],
)
def test_a_disk_is_blank_only_where_blkid_says_that_it_found_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, found: object
) -> None:
    stand_in(tmp_path, monkeypatch, "blkid", script)
    if found is DiskError:
        with pytest.raises(DiskError):
            Disks().probe("/dev/nvme1n1")
    else:
        assert Disks().probe("/dev/nvme1n1") == found


def test_a_missing_command_is_an_error_and_no_blank_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DiskError, match="blkid"):
        Disks().probe("/dev/nvme1n1")


def test_a_disk_that_is_looked_at_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only mount replays the journal, unless an option prevents it."""
    stand_in(tmp_path, monkeypatch, "blkid", "echo ext4")
    stand_in(tmp_path, monkeypatch, "mount", f'echo "$@" > {tmp_path}/asked')
    Disks().mount("/dev/nvme1n1", tmp_path / "proof", read_only=True)
    asked = (tmp_path / "asked").read_text().split()
    assert asked == ["-o", "ro,noload", "/dev/nvme1n1", str(tmp_path / "proof")]


@pytest.mark.make_e2e
@pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/sbin/mkfs.ext4").exists(), reason="needs root and e2fsprogs"
)
def test_the_real_commands_make_and_find_a_file_system(tmp_path: Path) -> None:
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(8 * 1024 * 1024)
    assert Disks().probe(str(image)) == ""
    Disks().format(str(image))
    assert Disks().probe(str(image)) == "ext4"
    before = image.read_bytes()
    mounted = subprocess.run(
        ["mount", "-o", "loop,ro,noload", image, tmp_path], capture_output=True, check=False
    )
    if mounted.returncode == 0:
        subprocess.run(["umount", tmp_path], check=True)
        assert image.read_bytes() == before
