# SPDX-License-Identifier: LGPL-2.1-or-later
"""The limit of this process's private memory.

``RLIMIT_DATA`` bounds private writable mappings, so that an allocation beyond the limit raises
:class:`MemoryError`. Since Linux kernel commit 84638335900f ("mm: rework virtual memory
accounting") (in v4.5), it counts all of these mappings; before, the heap alone.

drgn maps debug info privately and writable: 600 MB for a vmlinux. The unchanged pages are page
cache, which the kernel takes back, and are left out here.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kcensus.human import human_bytes
from kcensus.limits import cgroups

MIN_BYTES = 320 << 20
"""Least limit: a report on a small machine reserves up to 280 MiB, and uses 120 to 170 MiB."""
MIN_AVAILABLE = 192 << 20
"""Least available memory to run in without pushing others into swap."""
_RESERVED = 32 << 20
"""Bytes of the limit to keep free while reading, for results or errors afterwards."""
_MAX_THREADS = 4
"""Threads of OpenMP, which drgn uses to read debug info; its own default is one per CPU."""
_MAX_MAPPED = 4 << 30
"""Address space for the files that drgn maps in one go; a vmlinux has up to 1.5 GB."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ (\d+)")


class Shortage(Exception):
    """The machine has too little memory; the message is one sentence."""


_limit: int | None = None
_reading: int | None = None
"""The limit while a target is read; otherwise None."""


def prepare() -> None:
    """Keep libraries from reserving memory that they never use; call it before they are imported.

    The limit counts reserved memory: a gibibyte for each thread that allocates with pyarrow, 32 MiB
    for each thread of OpenBLAS, and the stacks of OpenMP's threads. OpenMP ends the process where
    it cannot start one (``TasksMax=`` of systemd). Variables that the user has set stay.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("OMP_STACKSIZE", "2M")


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Return the bytes available before the machine swaps or a cgroup is full; None if unknown."""
    text = meminfo.read_text() if meminfo.exists() else ""  # a sandbox shows processes only
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", text, re.MULTILINE)
    every = (int(found[1]) << 10 if found else None, cgroups.available_bytes())
    return min((each for each in every if each is not None), default=None)


def default_limit(available: int, processes: int = 1) -> int | None:
    """Return half of the available memory, but at least :data:`MIN_BYTES`.

    :param processes: that share it, and start at any time
    :return: bytes; None if fewer than :data:`MIN_AVAILABLE` are available
    """
    return None if available < MIN_AVAILABLE else max(available // 2 // processes, MIN_BYTES)


def affordable(processes: int = 1, least: int = MIN_AVAILABLE) -> int | None:
    """Return the private memory that this process may take on this machine; None if unknown.

    :param processes: as for :func:`default_limit`
    :param least: bytes that must be available
    :raises Shortage: too little is available
    """
    available = available_bytes()
    if available is None:
        return None
    limit = default_limit(available, processes)
    if limit is None or available < least:
        raise Shortage(
            f"this machine, or the cgroup, has {human_bytes(available)} of memory available, and"
            f" kcensus needs {human_bytes(least)} or more; free some, or read a vmcore on another"
            f" machine (--max-memory {MIN_BYTES >> 20}M runs it all the same, and can stall other"
            " programs)"
        )
    return limit


def is_enforced() -> bool:
    """Return whether the system takes a limit: user-mode emulation of a processor drops it."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    soft, hard = before
    other = 1 << 50 if soft == resource.RLIM_INFINITY else soft - _PAGE
    resource.setrlimit(resource.RLIMIT_DATA, (other, hard))
    try:
        return resource.getrlimit(resource.RLIMIT_DATA)[0] == other
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


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
    """Leave out the files that drgn maps meanwhile; its allocations are checked afterwards.

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
    """Return a sentence about a :class:`MemoryError`, and the next step.

    :param reader: the part that needs the memory
    """
    if _limit is None:
        return (
            f"{reader} needs more memory than this machine has free; read the target on a larger "
            "machine"
        )
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
    """Raise the limit by ``size`` bytes, without a need for memory."""
    _set(resource.getrlimit(resource.RLIMIT_DATA)[0] + size)


def _unchanged_bytes() -> int:
    """Return the bytes of private writable mappings that equal their files."""
    size, is_counted = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if mapping := _MAPPING.match(line):
            is_counted = mapping[3][1] == "w" and mapping[3][3] == "p" and mapping[4] != "0"
            if is_counted:
                size += int(mapping[2], 16) - int(mapping[1], 16)
        elif is_counted and line.startswith(("Anonymous:", "Swap:")):
            size -= int(line.split()[1]) << 10
    return size
