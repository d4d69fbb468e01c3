"""Disks of a job with a volume: found by serial number, proved, formatted once, and mounted."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from spotkeeper_worker.agent.gpu import ask

BY_ID = Path("/dev/disk/by-id")
MARK = Path(".spotkeeper") / "volume.json"
_TIMEOUT_S = 120.0
# A mount to look at a disk writes nothing: the journal is not replayed.
_UNTOUCHED = {"ext3": "noload", "ext4": "noload", "xfs": "norecovery"}
_NOTHING_FOUND = 2


class DiskError(Exception):
    """A disk that cannot be used; says why."""


class Disks:
    """The disks of a machine, by util-linux and e2fsprogs. Each method raises DiskError."""

    def find(self, volume: str) -> str | None:
        """Give the device of a volume; None until it is attached.

        https://docs.aws.amazon.com/ebs/latest/userguide/ebs-using-volumes.html
        """
        link = BY_ID / f"nvme-Amazon_Elastic_Block_Store_{volume.replace('-', '')}"
        return str(link.resolve()) if link.exists() else None

    def probe(self, device: str) -> str:
        """Give the type of the file system; empty where blkid finds nothing, and answers 2."""
        command = ["blkid", "-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "value", device]
        code, text = _run(command)
        if code == _NOTHING_FOUND and not text:
            return ""
        if code or not text:
            raise DiskError(f"blkid {device}: {text or f'status {code}'}")
        return text.split()[0]

    def format(self, device: str) -> None:
        """Make ext4."""
        _check(["mkfs.ext4", "-q", "-m", "0", device])

    def mount(self, device: str, folder: Path, *, read_only: bool) -> None:
        """Mount it; read-only means that nothing at all is written."""
        folder.mkdir(parents=True, exist_ok=True)
        options = ["ro", _UNTOUCHED.get(self.probe(device), "ro")] if read_only else ["rw"]
        _check(["mount", "-o", ",".join(dict.fromkeys(options)), device, str(folder)])

    def unmount(self, folder: Path) -> None:
        """Write everything to the disk and unmount it; nothing where it is not mounted."""
        if os.path.ismount(folder):
            os.sync()
            _check(["umount", str(folder)])


def _run(command: list[str]) -> tuple[int, str]:
    try:
        code, output, errors = ask(command, _TIMEOUT_S)
    except OSError as error:
        raise DiskError(f"{command[0]}: {error}") from None
    return code, (output or errors).strip()


def _check(command: list[str]) -> None:
    code, text = _run(command)
    if code:
        raise DiskError(f"{' '.join(command)}: {text or f'status {code}'}")


@dataclass
class Volume:
    """The volume of a job, on this machine; `is_new` while no command of the job has run."""

    disks: Disks
    job: str
    volume: str
    device: str
    is_new: bool = False

    def prove(self, folder: Path) -> None:
        """Check that this is the job's volume, and write nothing. Raises DiskError.

        A volume without a file system, or with an empty one, is right where the job never ran.
        """
        if not self.disks.probe(self.device):
            self._must_be_new()
            return
        self.disks.mount(self.device, folder, read_only=True)
        try:
            try:
                marked = json.loads((folder / MARK).read_text(encoding="utf-8"))
            except FileNotFoundError:
                # A machine that was lost in `open` may have made the folder of the mark.
                if {each.name for each in folder.iterdir()} - {"lost+found", MARK.parent.name}:
                    raise DiskError(
                        f"{self.volume} has files, and none of them is {MARK}"
                    ) from None
                self._must_be_new()
                return
            if not isinstance(marked, dict) or marked.get("job") != self.job:
                raise DiskError(f"{self.volume} belongs to another job: {marked}")
        except (OSError, ValueError) as error:
            raise DiskError(f"{self.volume}: {MARK} cannot be read: {error}") from None
        finally:
            self.disks.unmount(folder)

    def _must_be_new(self) -> None:
        if not self.is_new:
            raise DiskError(f"{self.volume} is empty, and the job {self.job} ran before")

    def open(self, folder: Path, generation: int) -> None:
        """Mount the volume for the command. Before its first command, format a blank one."""
        if not self.disks.probe(self.device):
            self._must_be_new()
            self.disks.format(self.device)
        self.disks.mount(self.device, folder, read_only=False)
        mark = folder / MARK
        mark.parent.mkdir(exist_ok=True)
        body = {"version": 1, "job": self.job, "volume": self.volume, "generation": generation}
        draft = mark.with_suffix(".new")
        with draft.open("w", encoding="utf-8") as file:
            json.dump(body, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(mark)
