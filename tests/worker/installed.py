"""A machine that a cloud-config installs: Debian in a chroot, with mounts and processes of its own.

Debian is made by debootstrap once, in `build/bookworm`; what a machine changes is in memory, and
gone with it. What the machine images have and Debian has not is replaced by a script of its name
that writes down how it was called.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.worker.page import ROOT

DEBIAN = "http://deb.debian.org/debian"
NEEDED = ("debootstrap", "unshare", "nsenter")
PACKAGES = "python3-venv,systemd,passwd"
STAND_INS = {
    "aws": 'case "$1" in s3) cp "/wheels/${3##*/}" "$4";; ecr) echo password;; esac',
    "docker": "cat",
    "nvidia-smi": "echo 'GPU 0: NVIDIA A10G (UUID: a)'; echo 'GPU 1: NVIDIA A10G (UUID: b)'",
}
Ran = subprocess.CompletedProcess[str]


def debian() -> Path:
    """Give the smallest Debian and the configs' packages; skips where it cannot be had."""
    if os.geteuid() != 0:
        pytest.skip("only root can make and enter a chroot")
    if missing := [one for one in NEEDED if shutil.which(one) is None]:
        pytest.skip(f"there is no {', '.join(missing)} here (apt-get install debootstrap)")
    root = ROOT / "build" / "bookworm"
    if not root.exists():
        root.parent.mkdir(exist_ok=True)
        # In memory first: it waits for the disk after every package otherwise.
        script = f"""
            mkdir -p {root}.new; mount -t tmpfs tmpfs {root}.new
            debootstrap --variant=minbase --include={PACKAGES} bookworm {root}.new {DEBIAN}
            rm -rf {root}.new/var/cache/apt/archives {root}.new/usr/share/doc
            cp -a {root}.new {root}.whole; mv {root}.whole {root}"""
        made = subprocess.run(
            ["unshare", "--mount", "bash", "-ec", script],
            capture_output=True, text=True, check=False, timeout=400,
        )  # fmt: skip
        if made.returncode != 0:
            pytest.skip(f"debootstrap of {DEBIAN} failed: {made.stdout[-500:]}{made.stderr[-500:]}")
    return root


class Installed:
    """The machine. `close` ends every process on it."""

    def __init__(self, lower: Path, wheels: Path, folder: Path) -> None:
        folder = folder / "machine"
        folder.mkdir()
        script = f"""
            mount -t tmpfs tmpfs {folder}; cd {folder}; mkdir upper work root
            mount -t overlay overlay -o lowerdir={lower},upperdir=upper,workdir=work root
            mkdir root/wheels; mount --bind {wheels} root/wheels
            mount -t proc proc root/proc; mount --rbind /dev root/dev; mount -t tmpfs tmpfs root/run
            echo mounted; exec sleep 1000000"""
        own = ["--mount", "--pid", "--fork", "--kill-child"]
        self._holder = subprocess.Popen(
            ["unshare", *own, "bash", "-ec", script], stdout=subprocess.PIPE, text=True
        )
        assert self._holder.stdout and self._holder.stdout.readline() == "mounted\n"
        # The process that unshare waits for, by this machine's numbers.
        holder = self._holder.pid
        (child,) = Path(f"/proc/{holder}/task/{holder}/children").read_text().split()
        entered = ["nsenter", "--target", child, "--mount", "--pid"]
        self._inside = [*entered, "chroot", f"{folder}/root"]
        for name, does in STAND_INS.items():
            self.write(f"/usr/local/bin/{name}", f'#!/bin/sh\necho "{name} $*" >> /calls\n{does}\n')
            self.run("chmod", "755", f"/usr/local/bin/{name}")

    def run(self, *words: str, says: str = "", **env: str) -> Ran:
        """Run a command to its end."""
        return subprocess.run(
            [*self._inside, *words], input=says, env=ENVIRONMENT | env,
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip

    def write(self, path: str, text: str) -> None:
        self.run("mkdir", "-p", str(Path(path).parent))
        assert self.run("tee", path, says=text).returncode == 0

    def read(self, path: str) -> str:
        return self.run("cat", path).stdout

    def boot(self, config: Path, **env: str) -> Ran:
        """Do what cloud-init does: write the files, then run the commands by sh, whatever fails."""
        read: Any = yaml.safe_load(config.read_text())
        for each in read["write_files"]:
            self.write(each["path"], each["content"])
        return self.run("sh", says="\n".join(read["runcmd"]), **env)

    def close(self) -> None:
        with self._holder:
            self._holder.kill()


ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin", "LANG": "C.UTF-8"}
