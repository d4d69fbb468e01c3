"""Opening files that another user may have put there, so that none of them hangs or fools us."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NotARegularFile(ValueError):
    """A symbolic link, a pipe, a device, a folder, or a file with a second name."""


def open_regular(path: Path) -> int:
    """Open a regular file for reading, and nothing else. Raises NotARegularFile or OSError.

    A pipe would block, a device may never end, and a link may lead to what only we can read.
    """
    try:
        fd = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise NotARegularFile("is not a regular file") from None
        raise
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(fd)
        raise NotARegularFile("is not a regular file, or has a second name")
    return fd
