# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the trials of a guest returned, from what its kernel counted before and after them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

_PAGE = 4096

_Reader = Callable[[str], dict[str, int]]


def slab_bytes(slabinfo: str) -> dict[str, int]:
    """Bytes of the slab pages of each cache: ``<num_slabs> * <pagesperslab>`` pages."""
    sizes = {}
    for line in slabinfo.splitlines()[2:]:
        name, *fields = line.split()
        sizes[name] = int(fields[13]) * int(fields[4]) * _PAGE
    return sizes


def meminfo_bytes(meminfo: str) -> dict[str, int]:
    """Bytes of each line of ``/proc/meminfo`` that is in kB."""
    lines = (line.replace(":", "").split() for line in meminfo.splitlines())
    return {fields[0]: int(fields[1]) << 10 for fields in lines if fields[2:] == ["kB"]}


def pairs(text: str) -> dict[str, int]:
    """Values of a file of names and numbers, such as ``memory.stat`` and ``vmstat``."""
    return {name: int(value) for name, value in (line.split() for line in text.splitlines())}


_READERS: dict[str, tuple[str, _Reader]] = {
    "slabinfo": ("slabinfo.4", slab_bytes),
    "meminfo": ("meminfo", meminfo_bytes),
    "vmstat": ("vmstat", pairs),
    "memory.stat": ("memory.stat", pairs),
    "cgroup.stat": ("cgroup.stat", pairs),
}


def returned_by(truth: Mapping[str, str], trial: str, file: str, after: str = "") -> dict[str, int]:
    """Return by how much each value of a file fell in a trial; negative where it rose.

    :param trial: its name
    :param file: ``slabinfo`` (bytes by cache), ``meminfo`` (bytes), ``vmstat``, ``memory.stat`` or
        ``cgroup.stat``
    :param after: the trial before it; empty if it is the first: the values of the dump
    """
    name, read = _READERS[file]
    before = read(truth[f"{file}@{after}" if after else name])
    now = read(truth[f"{file}@{trial}"])
    return {key: value - now.get(key, 0) for key, value in before.items()}
