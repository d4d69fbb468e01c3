"""GPU health as far as it is free: nvidia-smi answers, no GPU fell off, no Xid that means hardware.

NVIDIA's catalog asks to start the program again after most Xids, or for nothing; `OF_HARDWARE` has
those that need a reset or another machine. Of all others, the driver itself tells by Xid 154.
https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from spotkeeper_worker.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

OF_HARDWARE = frozenset(
    {46, 48, 61, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, *range(144, 152), 154, 155, 156,
     158}
)  # fmt: skip
# An NVLink that goes on (144 to 150), and a recovery that is not needed any more (154).
_OVER = ("Nonfatal", "to 0x0 (None)")
KERNEL_LOG = Path("/dev/kmsg")
_XID = re.compile(r"NVRM: Xid \(([^)]*)\): (\d+)(.*)")
# A driver that was updated while its module is loaded: what runs goes on, what starts fails.
_UPDATED = "version mismatch"
TIMEOUT_S = 20.0
_KILLED_WITHIN_S = 1.0
LIST = ("nvidia-smi", "-L")
PCI, _GPU = Path("/sys/bus/pci/devices"), re.compile("pci:v000010DE.*bc03")


def has_gpu() -> bool:
    """Whether this machine is meant to have a GPU: its driver or its tool is there."""
    # Not by shutil, which brings the libraries of three compressions along.
    tools = (Path(folder, "nvidia-smi") for folder in os.get_exec_path())
    return Path("/proc/driver/nvidia").exists() or any(os.access(tool, os.X_OK) for tool in tools)


def ask(command: Sequence[str], timeout_s: float = TIMEOUT_S) -> tuple[int, str, str]:
    """Run a command: its status, its output and its errors. Raises OSError."""
    # Here, so that a machine without a GPU does without its memory.
    import subprocess

    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        # Where the driver hangs, even this does not end it.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_KILLED_WITHIN_S)
        raise TimeoutError(f"did not answer within {timeout_s:g} s") from None
    return process.returncode, output, errors


def count_gpus(command: Sequence[str] = LIST, timeout_s: float = TIMEOUT_S) -> tuple[int, str]:
    """Give how many GPUs nvidia-smi lists, and what is wrong with its answer."""
    try:
        status, output, errors = ask(command, timeout_s)
    except FileNotFoundError:
        return 0, "nvidia-smi is not there; is the driver installed?"
    except OSError as error:
        return 0, f"nvidia-smi: {error}"
    gpus = sum(line.startswith("GPU ") for line in output.splitlines())
    if status or not gpus:
        # It writes its errors to its output; what else writes there, such as ld.so, is no reason.
        printed = f"{output}\n{errors}".splitlines()
        lines = [line for line in printed if line.strip() and not line.startswith("GPU ")]
        return gpus, f"nvidia-smi: {lines[0] if lines else 'lists no GPU'}"
    return gpus, ""


def count_on_the_bus(devices: Path = PCI) -> int:
    """Count the GPUs on the bus that no other driver has; 0 in a container, which may have few."""
    many = 0
    if "NVIDIA_VISIBLE_DEVICES" not in os.environ:
        for alias in devices.glob("*/modalias"):
            driver = os.path.realpath(alias.with_name("driver"))
            with contextlib.suppress(OSError):
                is_gpu = bool(_GPU.match(alias.read_text()))
                many += is_gpu and driver.endswith(("/driver", "/nvidia"))
    return many


class Gpus:
    """Looks at the GPUs from a thread of its own: nvidia-smi may hang, which is an answer too."""

    def __init__(
        self,
        command: Sequence[str] = LIST,
        kernel_log: Path = KERNEL_LOG,
        timeout_s: float = TIMEOUT_S,
        pci: Path = PCI,
    ) -> None:
        self._command = command
        self._timeout_s = timeout_s
        self._most = count_on_the_bus(pci)
        self._xid = ""
        self._kernel_log: int | None = None
        with contextlib.suppress(OSError):
            self._kernel_log = os.open(kernel_log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._kernel_log, 0, os.SEEK_END)
        self._stop = threading.Event()
        self.ill = ""
        """Why the machine cannot serve; empty while it can."""

    def start(self, every_s: float = 60.0) -> None:
        """Look now, and then again and again."""
        self.look()

        def run() -> None:
            while not self._stop.wait(every_s):
                self.look()
            if self._kernel_log is not None:
                os.close(self._kernel_log)

        threading.Thread(target=run, name="gpu", daemon=True).start()

    def close(self) -> None:
        """Stop looking."""
        self._stop.set()

    def look(self) -> None:
        """Look once. An Xid of the hardware stays until the machine starts again."""
        with contextlib.suppress(OSError):
            # Each read of the kernel's log gives one line.
            while self._kernel_log is not None and (line := os.read(self._kernel_log, 8192)):
                for pci, xid, text in _XID.findall(line.decode("utf-8", "replace")):
                    if int(xid) in OF_HARDWARE and not any(words in text for words in _OVER):
                        self._xid = self._xid or f"Xid {xid} of {pci}"
        gpus, trouble = count_gpus(self._command, self._timeout_s)
        self._most = max(self._most, gpus)
        if _UPDATED in trouble:
            get_logger("agent").warning("%s: restart this machine", trouble)
            trouble = ""
        elif not trouble and gpus < self._most:
            trouble = f"{self._most - gpus} of {self._most} GPUs fell off"
        self.ill = self._xid or trouble
