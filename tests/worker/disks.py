"""Folders as disks: a volume is attached when a folder of its name is there.

`python -m tests.worker.disks FOLDER` is `spotkeeper-agent job` with such volumes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from spotkeeper_worker.agent.settings import load
from spotkeeper_worker.job.disks import Disks
from spotkeeper_worker.job.main import run

_FORMATTED = ".formatted"


class FolderDisks(Disks):
    """Mounting is a symbolic link. A volume without the file `.formatted` is blank."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find(self, volume: str) -> str | None:
        """Give the volume's folder."""
        return str(self._root / volume) if (self._root / volume).is_dir() else None

    def probe(self, device: str) -> str:
        """Give ext4 once it is formatted."""
        return "ext4" if (Path(device) / _FORMATTED).exists() else ""

    def format(self, device: str) -> None:
        """Format it, and refuse what is formatted."""
        (Path(device) / _FORMATTED).touch(exist_ok=False)
        (Path(device) / "content").mkdir()

    def mount(self, device: str, folder: Path, *, read_only: bool) -> None:
        """Link the folder to the disk."""
        if not self.probe(device):
            raise OSError(f"{device} has no file system")
        if folder.is_dir() and not folder.is_symlink():
            folder.rmdir()
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.symlink_to(Path(device) / "content")

    def unmount(self, folder: Path) -> None:
        """Take the link away."""
        if folder.is_symlink():
            folder.unlink()


if __name__ == "__main__":
    sys.exit(run(load(os.environ, job=True), FolderDisks(Path(sys.argv[1]))))
