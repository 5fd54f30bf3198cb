# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reading headers from a file that may be anything at all, without ever blocking."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import TracebackType

from kcensus.sources.model import TargetError
from kcensus.text import printable

_KINDS = (
    (stat.S_ISFIFO, "is a named pipe"),
    (stat.S_ISSOCK, "is a socket; a QEMU guest's QMP socket is given as qmp:PATH"),
    (stat.S_ISCHR, "is a character device; the running kernel is read when no target is given"),
    (stat.S_ISBLK, "is a block device; copy the dump off it into a file"),
)


def os_error(name: str, error: OSError) -> TargetError:
    """``error`` as a sentence about the file called ``name`` (already printable)."""
    if isinstance(error, FileNotFoundError):
        return TargetError(f"{name}: no such file")
    if isinstance(error, PermissionError):
        return TargetError(f"{name}: permission denied; run as root or make the file readable")
    return TargetError(f"{name}: cannot be read ({os_reason(error)})")


def os_reason(error: OSError) -> str:
    """Why it failed, without the number and the path that ``str(error)`` brings along."""
    return printable(error.strerror or str(error)).lower()


class FileReader:
    """A regular file open for reading at offsets.

    :param prefix: stands before the path in messages
    :raises TargetError: if the path is not a regular file that can be read and is not empty
    """

    def __init__(self, path: str | Path, prefix: str = "") -> None:
        self.name = prefix + printable(os.fspath(path))
        try:
            # Ask before opening: opening a FIFO waits for its writer, and opening some devices
            # does something. O_NONBLOCK and the second look are for a path that changes meanwhile.
            self._check_kind(os.stat(path), path)
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise os_error(self.name, error) from error
        except ValueError as error:
            raise TargetError(f"{self.name}: is not a valid path") from error
        try:
            status = os.fstat(self._fd)
            self._check_kind(status, path)
            self.size = status.st_size
            if self.size == 0:
                raise TargetError(f"{self.name}: is empty; copy it again")
        except TargetError:
            os.close(self._fd)
            raise

    def _check_kind(self, status: os.stat_result, path: str | Path) -> None:
        if stat.S_ISREG(status.st_mode):
            return
        if stat.S_ISDIR(status.st_mode):
            inside = os.path.join(os.fspath(path), "vmcore")
            better = printable(inside) if os.path.isfile(inside) else "the vmcore file inside it"
            raise TargetError(f"{self.name}: is a directory; pass {better}")
        for matches, what in _KINDS:
            if matches(status.st_mode):
                raise TargetError(f"{self.name}: {what}")
        raise TargetError(f"{self.name}: is not a regular file")

    def __enter__(self) -> FileReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes at ``offset``; fewer where the file ends.

        :raises TargetError: if the file cannot be read
        """
        parts = []
        try:
            # Beyond what off_t holds there is nothing, and pread() would say EINVAL.
            while size > 0 and offset < self.size and (part := os.pread(self._fd, size, offset)):
                parts.append(part)
                offset += len(part)
                size -= len(part)
        except OSError as error:
            raise os_error(self.name, error) from error
        return b"".join(parts)

    def exact(self, offset: int, size: int, what: str) -> bytes:
        """``size`` bytes at ``offset``.

        :param what: what they are, for the message
        :raises TargetError: if the file cannot be read or ends before that
        """
        if offset + size > self.size:
            raise TargetError(
                f"{self.name}: is truncated: it ends inside its {what}, at {self.size} of at least "
                f"{offset + size} bytes; copy it again"
            )
        data = self.read(offset, size)
        if len(data) < size:
            raise TargetError(f"{self.name}: got shorter while it was read; copy it again")
        return data
