# SPDX-License-Identifier: LGPL-2.1-or-later
"""The private memory that this process takes at most.

``RLIMIT_DATA`` bounds private writable mappings, so that an allocation beyond the limit fails, and
Python raises :class:`MemoryError`. Since Linux kernel commit 84638335900f ("mm: rework virtual
memory accounting") (in v4.5), it counts all of these mappings; before, the heap alone.

drgn maps files with debug info privately and writable, so the limit would count all of a vmlinux of
600 MB. What it does not change of them is page cache, which the kernel takes back when it needs
memory, and is left out here.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kcensus.human import human_bytes

MIN_BYTES = 320 << 20
"""Least limit: a report on a small machine reserves up to 280 MiB (with four threads of OpenMP), of
which it uses 120 to 170 MiB."""
MIN_AVAILABLE = 192 << 20
"""Available memory with which it does not push others into swap."""
_RESERVED = 32 << 20
"""Of the limit, bytes that reading leaves to showing what was read, or what failed."""
_MAX_THREADS = 4
"""Of OpenMP, which drgn uses to read debug info; by default, it starts one per CPU."""
_MAX_MAPPED = 4 << 30
"""Address space for the files that drgn maps in one go; a vmlinux has up to 1.5 GB."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ (\d+)")

_limit: int | None = None
_reading: int | None = None
"""The limit while a target is read; None while none is."""


def prepare() -> None:
    """Keep libraries from reserving memory that they never use; call it before they are imported.

    The limit counts what is reserved: a gibibyte for each thread that allocates with pyarrow, and
    32 MiB for each thread of OpenBLAS, of whose functions kcensus calls none. It counts the stacks
    of OpenMP's threads, too, and where one cannot be started, for lack of memory or of tasks
    (``TasksMax=`` of systemd), OpenMP ends the process. What the user has set stays.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("OMP_STACKSIZE", "2M")


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Return how much memory programs can take before the machine swaps; None if unknown."""
    if not meminfo.exists():  # a sandbox shows processes only
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", meminfo.read_text(), re.MULTILINE)
    return int(found[1]) << 10 if found else None


def default_limit(available: int) -> int | None:
    """Return half of the available memory, but at least :data:`MIN_BYTES`.

    :return: bytes; None if fewer than :data:`MIN_AVAILABLE` are available
    """
    return None if available < MIN_AVAILABLE else max(available // 2, MIN_BYTES)


def current() -> int | None:
    """Return the limit in bytes; None without one."""
    return _limit


@contextmanager
def limited(size: int | None) -> Iterator[None]:
    """Let allocations fail beyond ``size`` bytes of private memory, also after the ``with``.

    :param size: None changes nothing
    """
    global _limit, _reading
    if size is None:
        yield
        return
    before = _reading
    _limit, _reading = size, size - _RESERVED
    _set(_reading + _unchanged_bytes())
    try:
        yield
    finally:
        _reading = before
        _raise(_RESERVED)
        if before is not None:
            _set(before + _unchanged_bytes())


def lift() -> None:
    """Lift the limit: the sentence about an error needs a little, too."""
    if _limit is not None:
        _raise(_MAX_MAPPED)


@contextmanager
def mapping_files() -> Iterator[None]:
    """Leave out the files that drgn maps meanwhile; what it allocates is checked afterwards.

    :raises MemoryError: the process has more private memory than the limit
    """
    if _reading is None:
        yield
        return
    _raise(_MAX_MAPPED)
    try:
        yield
    finally:
        _set(_reading + _unchanged_bytes())
    if private_bytes() > _reading:
        raise MemoryError


def exceeded(reader: str) -> str:
    """Return a sentence about a :class:`MemoryError`, and what to do.

    :param reader: what needs the memory
    """
    if _limit is None:
        return f"{reader} needs more memory than this machine has free; read it on a larger one"
    return (
        f"{reader} needs more than {human_bytes(_limit)} of private memory, the limit; pass a "
        "larger --max-memory, or read a vmcore on another machine"
    )


def private_bytes() -> int:
    """Return the private memory that this process has in RAM."""
    resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    return (resident - shared) * _PAGE


def _set(size: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _raise(size: int) -> None:
    """Raise the limit by ``size`` bytes; needs no memory to do that, as :func:`limited` may."""
    _set(resource.getrlimit(resource.RLIMIT_DATA)[0] + size)


def _unchanged_bytes() -> int:
    """Return the bytes of private writable mappings of files that are as in the file."""
    size, is_counted = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if mapping := _MAPPING.match(line):
            is_counted = mapping[3][1] == "w" and mapping[3][3] == "p" and mapping[4] != "0"
            if is_counted:
                size += int(mapping[2], 16) - int(mapping[1], 16)
        elif is_counted and line.startswith(("Anonymous:", "Swap:")):
            size -= int(line.split()[1]) << 10
    return size
