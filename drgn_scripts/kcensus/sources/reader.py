# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read headers from a file of any kind, without blocking."""

from __future__ import annotations

import difflib
import os
import stat
from pathlib import Path

from kcensus.samples import CAPSULES, is_store
from kcensus.sources.model import DamagedError, TargetError
from kcensus.text import printable

_KINDS = (
    (stat.S_ISFIFO, "is a named pipe; copy the dump into a file"),
    (stat.S_ISSOCK, "is a socket; pass the QMP socket of a QEMU guest as qmp:PATH"),
    (stat.S_ISCHR, "is a character device; leave out the target to read the running kernel"),
    (stat.S_ISBLK, "is a block device; copy the dump from it into a file"),
)

_STORE = "is a store of records, not a dump; `kcensus trend` and `kcensus notebook growth` take it"


def os_error(name: str, error: OSError) -> TargetError:
    """Return ``error`` as a sentence about the file ``name``, which is printable."""
    if isinstance(error, FileNotFoundError):
        if is_store(name):
            return TargetError(f"{name}: {_STORE}")
        near = difflib.get_close_matches(name, CAPSULES, 1) if "/" not in name else []
        hint = f"; did you mean {near[0]}?" if near else ""
        return TargetError(f"{name}: no such file{hint}")
    if isinstance(error, PermissionError):
        return TargetError(f"{name}: permission denied; run as root or make the file readable")
    return TargetError(f"{name}: cannot be read ({os_reason(error)})")


def os_reason(error: OSError) -> str:
    """Return the reason of ``error`` in words, without errno and path."""
    return printable(error.strerror or str(error)).lower()


class FileReader:
    """A regular file, open for reading at offsets; all methods raise :class:`TargetError`.

    :param prefix: text before the path in messages
    """

    def __init__(self, path: str | Path, prefix: str = "") -> None:
        self.name = prefix + printable(os.fspath(path))
        try:
            # First: opening a FIFO waits for its writer, opening some devices has side effects.
            status = os.stat(path)
            self._check_kind(status.st_mode, path)
            self.size = status.st_size
            if self.size == 0:
                raise TargetError(f"{self.name}: is empty; copy it again")
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            self._file = os.fdopen(os.open(path, flags), "rb")
        except OSError as error:
            raise os_error(self.name, error) from error
        except ValueError as error:
            raise TargetError(f"{self.name}: is not a valid path") from error

    def _check_kind(self, mode: int, path: str | Path) -> None:
        if stat.S_ISREG(mode):
            return
        if stat.S_ISDIR(mode):
            if any(".blktrace." in name for name in os.listdir(path)):
                raise TargetError(
                    f"{self.name}: is a directory of a trace of blktrace; pass it with --trace "
                    "(or --traces to kcensus validate)"
                )
            if is_store(path):
                raise TargetError(f"{self.name}: {_STORE}")
            vmcore = os.path.join(os.fspath(path), "vmcore")
            remedy = printable(vmcore) if os.path.isfile(vmcore) else "the vmcore file inside it"
            raise TargetError(f"{self.name}: is a directory; pass {remedy}")
        messages = (message for matches, message in _KINDS if matches(mode))
        raise TargetError(f"{self.name}: {next(messages, 'is not a regular file')}")

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, offset: int, size: int) -> bytes:
        """Return up to ``size`` bytes at ``offset``, fewer at the end of the file.

        :raises TargetError: the file cannot be read
        """
        if offset >= self.size:
            return b""
        try:
            self._file.seek(offset)
            return self._file.read(size)
        except OSError as error:
            raise os_error(self.name, error) from error

    def exact(self, offset: int, size: int, what: str) -> bytes:
        """Return exactly ``size`` bytes at ``offset``; ``what`` names them in errors.

        :raises TargetError: the file cannot be read or ends too early
        """
        if offset + size > self.size:
            end = offset + size
            why = f"it ends inside its {what}, after {self.size} of at least {end} bytes"
            raise DamagedError(self.name, "truncated", why, end - self.size)
        data = self.read(offset, size)
        if len(data) < size:
            raise TargetError(f"{self.name}: shrank while it was read; copy it again")
        return data
