"""What a program without rights tries against the agent of its machine; a line of JSON for each.

It runs with the machine's own Python, alone: `python3 nobody.py`.
"""

import fcntl
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

RUN, SPOOL = Path("/run/spotkeeper"), Path("/var/spool/spotkeeper")
ROSTER, INBOX = RUN / "workers", SPOOL / "in"
SECRET = "/etc/spotkeeper/secret.json"
READY = "ready=1 busy=00001 begun=0000000001\n"
AGENT = "/opt/spotkeeper/bin/spotkeeper-agent"


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def join(name: str) -> None:
    """Take a place and keep it, as a worker does that is ready, and busy for ever."""
    fd = os.open(ROSTER / name, os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.write(fd, READY.encode())


def send(request_id: str) -> None:
    """Send a log of another worker."""
    at = "2026-01-01T00:00:00.000Z"
    log = {"request_id": request_id, "worker_id": "gpu-0", "status": "ok"}
    log.update(enqueued_at=at, started_at=at, finished_at=at)
    line = json.dumps({"logs": [log], "session": "nobody", "batch": 1}) + "\n"
    with socket.socket(socket.AF_UNIX) as agent:
        agent.settimeout(60)
        agent.connect(str(RUN / "agent.sock"))
        agent.sendall(line.encode())
        agent.recv(65536)


def second_agent() -> None:
    ran = subprocess.run([AGENT, "run"], capture_output=True, timeout=60, check=False)
    if ran.returncode:
        raise PermissionError(ran.stderr.decode().strip().splitlines()[-1])


SHARED = {
    # What blocks, never ends, or belongs to root (A1).
    "pipe in the spool": lambda: os.mkfifo(INBOX / "pipe.json"),
    "pipe in the roster": lambda: os.mkfifo(ROSTER / "pipe"),
    "device in the spool": lambda: (INBOX / "zero.json").symlink_to("/dev/zero"),
    "device in the roster": lambda: (ROSTER / "zero").symlink_to("/dev/zero"),
    "secret in the spool": lambda: (INBOX / "secret.json").symlink_to(SECRET),
    "secret in the roster": lambda: (ROSTER / "secret").symlink_to(SECRET),
    "large file": lambda: huge(INBOX / "large.json"),
    # What stands for a worker (A6).
    "stranger is ready": lambda: join("stranger"),
    "log of another": lambda: send("r-1"),
    # Lines in the agent's log (A7).
    "name with a line": lambda: (INBOX / "x\nCRITICAL forged.json").write_text("{"),
    "id with a line": lambda: send("r-2\nCRITICAL forged"),
}
"""What a container with the shipped volumes can do; nothing of it may harm the agent."""
TRIES = SHARED | {
    # What is the agent's own (A12).
    "notice deleted": lambda: (RUN / "notice.json").unlink(),
    "notice written": lambda: (RUN / "notice.json").write_text('{"state": "serving"}'),
    "worker deleted": lambda: (ROSTER / "gpu-0").unlink(),
    "worker written": lambda: (ROSTER / "gpu-0").write_text(READY),
    "journal read": lambda: list((SPOOL / "journal").iterdir()),
    "second agent": second_agent,
}

if __name__ == "__main__":
    for name, attempt in TRIES.items():
        try:
            attempt()
            outcome = "done"
        except OSError as error:
            outcome = f"{type(error).__name__}: {error}"
        sys.stdout.write(json.dumps([name, outcome]) + "\n")
