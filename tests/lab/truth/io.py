# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a guest with a disk says about its requests and about who sleeps.

The guest reads it twice, "first" and "last", after QEMU has stopped to serve the disk, and is
dumped within seconds of "last". What both reads agree on, the dump has, too: see :func:`moved`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .packed import functions, unpacked

FIRST, LAST = "first", "last"

_DEBUG, _SYSFS, _PROC = "/sys/kernel/debug/block/", "/sys/block/", "/proc/"

# Times, and counts of what happens while requests stand still.
_ALWAYS_MOVING = re.compile(r"clocks|/proc/diskstats|.*/stat|.*/hctx\d+/run")
_ON_TIMER = re.compile(r"balance_dirty_pages|\A\[<0>\] xfsaild\+")
_SWITCHES = re.compile(r"^(non)?voluntary_ctxt_switches:.*\n", re.MULTILINE)

_REQUEST = re.compile(
    r"(?P<address>\S+) \{\.op=(?P<op>\w+), \.cmd_flags=(?P<flags>[^,]*), "
    r"\.rq_flags=(?P<rq_flags>[^,]*), \.state=(?P<state>\w+), "
    r"\.tag=(?P<tag>-?\d+), \.internal_tag=(?P<internal_tag>-?\d+)"
)


@dataclass(frozen=True)
class Request:
    """A request as the block layer's debugfs prints it."""

    address: int
    """Hashed on kernels before 5.12, so that it identifies the request, but is no address."""
    op: str
    flags: frozenset[str]
    rq_flags: frozenset[str]
    state: str
    tag: int
    internal_tag: int


@dataclass(frozen=True)
class Disk:
    """A disk with its queue."""

    files: dict[str, str]
    """By path below the queue's directory in debugfs."""
    settings: dict[str, str]
    """By path below the queue's directory in sysfs: ``scheduler``, ``iosched/fifo_batch``, …"""
    inflight: tuple[int, int]
    """Reads and writes that are with the driver."""

    @property
    def scheduler(self) -> str:
        match = re.search(r"\[([\w-]+)\]", self.settings["scheduler"])
        return match[1] if match else ""

    @property
    def requests(self) -> dict[str, list[Request]]:
        """The requests by list, the empty lists left out: ``hctx0/busy``, ``sched/read1_…``."""
        lists = {name: requests(text) for name, text in self.files.items()}
        return {name: found for name, found in lists.items() if found}

    def tags(self, name: str) -> set[int]:
        """The bits that are set in a bitmap of tags, such as ``hctx0/sched_tags_bitmap``."""
        lines = self.files[name].splitlines()
        words = bytes.fromhex("".join(line.partition(": ")[2] for line in lines))
        return {8 * i + bit for i, byte in enumerate(words) for bit in range(8) if byte >> bit & 1}


@dataclass(frozen=True)
class Task:
    """A task in D state."""

    comm: str
    stack: tuple[str, ...]
    """Names of functions, the innermost first."""
    status: dict[str, str]


@dataclass(frozen=True)
class Io:
    """One read of it all."""

    monotonic_ns: int
    """CLOCK_MONOTONIC right before the disks were read."""
    disks: dict[str, Disk]
    tasks: dict[int, Task]


def requests(text: str) -> list[Request]:
    """Parse a list of requests of debugfs; other texts have none."""
    return [
        Request(
            # "(____ptrval____)" before the kernel has random numbers.
            address=int(match["address"], 16) if match["address"].isalnum() else 0,
            op=match["op"],
            flags=_names(match["flags"]),
            rq_flags=_names(match["rq_flags"]),
            state=match["state"],
            tag=int(match["tag"]),
            internal_tag=int(match["internal_tag"]),
        )
        for match in _REQUEST.finditer(text)
    ]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split("|")) - {""}


def read(truth: Mapping[str, str], which: str = LAST) -> Io:
    """Parse one read of a dump's truth."""
    disks, tasks = unpacked(truth[f"disks.{which}"]), unpacked(truth[f"tasks.{which}"])
    ((seconds, fraction),) = re.findall(r"\Amonotonic (\d+)\.(\d+)", disks["clocks"])
    names = re.findall(r"^/sys/block/(.+)/inflight$", "\n".join(disks), re.MULTILINE)
    pids = map(int, re.findall(r"^/proc/(\d+)/comm$", "\n".join(tasks), re.MULTILINE))
    return Io(
        monotonic_ns=int(seconds) * 10**9 + int(fraction),
        disks={name: _disk(disks, name) for name in names},
        tasks={pid: _task(tasks, pid) for pid in pids},
    )


def _disk(files: dict[str, str], name: str) -> Disk:
    reads, writes = files[f"{_SYSFS}{name}/inflight"].split()
    return Disk(
        files=_below(files, f"{_DEBUG}{name}/"),
        settings={
            path: text.strip() for path, text in _below(files, f"{_SYSFS}{name}/queue/").items()
        },
        inflight=(int(reads), int(writes)),
    )


def _below(files: dict[str, str], directory: str) -> dict[str, str]:
    return {
        path.removeprefix(directory): text
        for path, text in files.items()
        if path.startswith(directory)
    }


def _task(files: dict[str, str], pid: int) -> Task:
    # A task that wakes up between two of its files loses the ones that follow.
    files = _below(files, f"{_PROC}{pid}/")
    lines = (line.partition(":") for line in files.get("status", "").splitlines())
    return Task(
        comm=files["comm"].removesuffix("\n"),
        stack=functions(files.get("stack", "")),
        status={key: value.strip() for key, _, value in lines},
    )


def moved(truth: Mapping[str, str]) -> list[str]:
    """The files that changed between the two reads, apart from times and the like.

    A task that writes more than the dirty limit allows sleeps for some time, not for a request,
    and may be caught awake; so does the thread that writes back XFS's metadata. What they do is no
    change, either.
    """
    return sorted(
        {
            path
            for kind in ("disks", "tasks")
            for path in _changed(truth[f"{kind}.{FIRST}"], truth[f"{kind}.{LAST}"])
        }
    )


def _changed(first: str, last: str) -> Iterator[str]:
    before, after = unpacked(first), unpacked(last)
    timed = {
        path.removesuffix("/stack")
        for path, text in [*before.items(), *after.items()]
        if path.endswith("/stack") and _ON_TIMER.search(text)
    }
    for path in before.keys() | after.keys():
        if path.rpartition("/")[0] in timed:
            continue
        texts = (_SWITCHES.sub("", files.get(path, "")) for files in (before, after))
        if not _ALWAYS_MOVING.fullmatch(path) and len(set(texts)) > 1:
            yield path
