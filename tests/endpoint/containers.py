"""A Docker for a test: the machine's own, or one that is started for as long as it is needed."""

import hashlib
import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError

import pytest

from tests.endpoint.conftest import CHECKOUT, OWN, until

UBUNTU = "http://archive.ubuntu.com/ubuntu"
# The archive's keys: by their hash, since nothing here vouches for them.
KEYS = f"{UBUNTU}/pool/main/u/ubuntu-keyring/ubuntu-keyring_2021.03.26_all.deb"
KEYS_SHA256 = "0d0e7ed6b112f5d03eabf3c7eb01ebdacf9c57714b279e90495cfc58c8c4520f"
KEYRING = "usr/share/keyrings/ubuntu-archive-keyring.gpg"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
NEEDED = ("docker", "dockerd", "debootstrap", "dpkg", "unshare")


def docker(*arguments: str, host: str | None, check: bool = True) -> str:
    """What docker says; raises CalledProcessError with it."""
    done = subprocess.run(
        ["docker", *arguments], env=environment(host), capture_output=True, text=True,
        check=False, timeout=400,
    )  # fmt: skip
    assert not check or done.returncode == 0, (arguments, done.stdout + done.stderr)
    return done.stdout


def environment(host: str | None) -> dict[str, str]:
    """What a client needs to find its Docker."""
    return OWN | ({} if host is None else {"DOCKER_HOST": host})


@contextmanager
def running(folder: Path) -> Iterator[str | None]:
    """Where Docker listens, None for where it does by itself; skips where there can be none."""
    if shutil.which("docker") and subprocess.run(
        ["docker", "info"], env=OWN, capture_output=True, check=False
    ).stdout.count(b"Server Version"):
        yield None
        return
    if missing := [one for one in NEEDED if shutil.which(one) is None]:
        pytest.skip(f"no Docker runs here, and there is no {', '.join(missing)} to have one")
    if os.geteuid() != 0:
        pytest.skip("no Docker runs here, and only root can start one")
    host, data = f"unix://{folder}/socket", folder / "data"
    places = f"--data-root {data} --exec-root {folder}/exec --pidfile {folder}/pid"
    line = f"exec dockerd --host {host} {places}"
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(_in_memory(data, line), stdout=log, stderr=log, env=OWN)
    try:
        until(lambda: docker("version", host=host, check=False).count("Server:"), within_s=60,
              what="Docker answers")  # fmt: skip
        yield host
    finally:
        daemon.terminate()
        daemon.wait(60)


def base_image(name: str, folder: Path, host: str | None) -> None:
    """Have an image under a name; without a registry, what Ubuntu installs at the least."""
    if docker("image", "ls", "--quiet", name, host=host):
        return
    if host is None:
        pytest.skip(f"docker pull {name}, which is large, is yours to say")
    assert name.endswith("ubuntu22.04"), "jammy is Ubuntu 22.04"
    archive = CHECKOUT / "build/jammy.tar"
    if not archive.exists():
        archive.parent.mkdir(exist_ok=True)
        _install(folder / "root", _keyring(folder), archive)
    # pip is a client of this machine's, and trusts whom it trusts.
    trusts = ["--change", "ENV PIP_CERT=/etc/host.crt"] if CERTIFICATES.exists() else []
    docker("import", *trusts, str(archive), name, host=host)


def _keyring(folder: Path) -> Path:
    try:
        with urllib.request.urlopen(KEYS, timeout=60) as answer:
            package = answer.read()
    except URLError as error:
        pytest.skip(f"{UBUNTU} cannot be reached: {error}")
    assert hashlib.sha256(package).hexdigest() == KEYS_SHA256
    (folder / "keys.deb").write_bytes(package)
    subprocess.run(["dpkg", "-x", folder / "keys.deb", folder / "keys"], check=True)
    return folder / "keys" / KEYRING


def _install(root: Path, keyring: Path, archive: Path) -> None:
    """As Ubuntu's own image has it: its pip is in universe."""
    done = subprocess.run(
        _in_memory(
            root,
            f"""
            debootstrap --variant=minbase --keyring={keyring} jammy {root} {UBUNTU}
            echo "deb {UBUNTU} jammy main universe" > {root}/etc/apt/sources.list
            if [ -e {CERTIFICATES} ]; then cp {CERTIFICATES} {root}/etc/host.crt; fi
            tar -C {root} -cf {archive}.new .
            mv {archive}.new {archive}
            """,
        ),
        env=OWN, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def _in_memory(folder: Path, script: str) -> list[str]:
    """A shell that has a folder in memory, which is gone with it, as is all that it mounts."""
    mounts = f"mkdir {folder}; mount -t tmpfs tmpfs {folder}"
    return ["unshare", "--mount", "bash", "-ec", f"{mounts}\n{script}"]


def has_gpu(host: str | None) -> bool:
    """Whether this Docker can give a container a GPU."""
    found = json.loads(docker("info", "--format", "{{json .Runtimes}}", host=host))
    return "nvidia" in found
