# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files of a case, open and without names: their limits, and what is kept in them."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from kcensus.outputs import OutputError

LEVEL = 3
"""Of compression."""
NO_OUTPUT = "cannot write the output"
"""First words of a sentence; its file has no name where it is written."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class TooLarge(Exception):
    """A file would exceed its limit."""


class Bounded:
    """A file that refuses to grow beyond a limit."""

    def __init__(self, file: BinaryIO, limit: int | None) -> None:
        self._file, self._limit = file, limit
        self.tell, self.seek = file.tell, file.seek

    def write(self, data: bytes) -> int:
        if self._limit is not None and self._file.tell() + len(data) > self._limit:
            raise TooLarge
        return self._file.write(data)


@contextmanager
def writing() -> Iterator[None]:
    """Tell a full disk from a target that cannot be read.

    :raises OutputError: the disk is full
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise OutputError(f"{NO_OUTPUT}: {error.strerror}") from error


def keep(file: int, what: Any) -> None:
    """Append an object for :func:`kept`."""
    with writing(), open(os.dup(file), "ab") as out:
        pickle.dump(what, out)


def kept(file: int) -> Iterator[Any]:
    """Yield what a process of ours has kept; the last part may be incomplete."""
    with open(os.dup(file), "rb") as source:
        source.seek(0)
        with contextlib.suppress(EOFError, pickle.UnpicklingError):
            while True:
                yield pickle.load(source)


def packed_bytes(file: int, most: int | None) -> int:
    """Return the size of a file in the archive; no need to know it without a limit."""
    if most is None:
        return 0
    import zstandard

    size, packer = 0, zstandard.ZstdCompressor(level=LEVEL).compressobj()
    with open(os.dup(file), "rb") as source:
        source.seek(0)
        while data := source.read(1 << 20):
            size += len(packer.compress(data))
    return size + len(packer.flush())


def room_on(file: int, most_memory: int) -> int:
    """Return the bytes that a snapshot may take of the file system: half of what is free.

    :param most_memory: most bytes where files are in memory
    """
    status = os.fstatvfs(file)
    room = status.f_bavail * status.f_frsize // 2
    return min(room, most_memory) if _is_in_memory(os.fstat(file).st_dev) else room


def _is_in_memory(device: int) -> bool:
    number = f"{os.major(device)}:{os.minor(device)}"
    with (
        contextlib.suppress(OSError),
        open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts,
    ):
        for line in mounts:
            left, _, right = line.partition(" - ")
            if left.split()[2] == number:
                return right.split()[0] in ("tmpfs", "ramfs")
    return False
