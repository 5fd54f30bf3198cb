# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the trials of a guest returned, from what its kernel counted before and after them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

_Reader = Callable[[str, int], dict[str, int]]


class Slabs(NamedTuple):
    """A line of ``/proc/slabinfo``."""

    active: int
    total: int
    slot_size: int
    slabs: int
    pages: int
    """Of all slabs."""


def slabinfo(text: str) -> dict[str, Slabs]:
    """The slab caches by name, as ``/proc/slabinfo`` gives them."""
    caches = {}
    for line in text.splitlines()[2:]:
        name, active, total, size, _, pages, *rest = line.split()
        slabs = int(rest[8])
        caches[name] = Slabs(int(active), int(total), int(size), slabs, int(pages) * slabs)
    return caches


def kmalloc_slot(caches: Iterable[str], size: int) -> int:
    """Bytes that kmalloc() takes for some, by names of slab caches; arm64 may lack small ones."""
    slots = (re.fullmatch(r"kmalloc-(\d+)(k?)", name) for name in caches)
    return min(
        slot for each in slots if each and (slot := int(each[1]) << 10 * bool(each[2])) >= size
    )


def page_size(truth: Mapping[str, str]) -> int:
    """Bytes of a page: what /proc/meminfo has in kB, /proc/zoneinfo has in pages."""
    pages = sum(map(int, re.findall(r"^ +managed +(\d+)", truth["zoneinfo"], re.MULTILINE)))
    return meminfo_bytes(truth["meminfo"])["MemTotal"] // pages


def slab_bytes(text: str, page: int) -> dict[str, int]:
    """Bytes of the slabs of each cache, where a page has so many."""
    return {name: cache.pages * page for name, cache in slabinfo(text).items()}


def meminfo_bytes(meminfo: str, _page: int = 0) -> dict[str, int]:
    """Bytes of each line of ``/proc/meminfo`` that is in kB."""
    lines = (line.replace(":", "").split() for line in meminfo.splitlines())
    return {fields[0]: int(fields[1]) << 10 for fields in lines if fields[2:] == ["kB"]}


def pairs(text: str) -> dict[str, int]:
    """Values of a file of names and numbers, such as ``memory.stat`` and ``vmstat``."""
    return {name: int(value) for name, value in (line.split() for line in text.splitlines())}


_READERS: dict[str, tuple[str, _Reader]] = {
    "slabinfo": ("slabinfo.4", slab_bytes),
    "meminfo": ("meminfo", meminfo_bytes),
}


def returned_by(truth: Mapping[str, str], trial: str, file: str, after: str = "") -> dict[str, int]:
    """Return by how much each value of a file fell in a trial; negative where it rose.

    :param trial: its name
    :param file: ``slabinfo`` (bytes by cache) or ``meminfo`` (bytes)
    :param after: the trial before it; empty if it is the first: the values of the dump
    """
    name, read = _READERS[file]
    page = page_size(truth)
    before = read(truth[f"{file}@{after}" if after else name], page)
    now = read(truth[f"{file}@{trial}"], page)
    return {key: value - now.get(key, 0) for key, value in before.items()}
