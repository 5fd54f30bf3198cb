# SPDX-License-Identifier: LGPL-2.1-or-later
"""Messages of the kernel log about disks that do not answer, and about the tasks behind them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import drgn

from kcensus.human import counted, human_seconds, shown_time
from kcensus.kernel.block.disks import Disk
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.log import HUNG_TASK, Line, read_log
from kcensus.kernel.machine import machine
from kcensus.kernel.names import DAMAGED, decode
from kcensus.kernel.tasks.hung import Hang, present
from kcensus.kernel.tasks.tasks import tasks
from kcensus.text import printable

_CONTROLLER = re.compile(r"^nvme (nvme\d+): .*(?:\bI/O .*\btimeout\b|\bQID \d+ timeout\b)")
"""Message of a controller of NVMe, whose disks have its name as a prefix."""
_DISKS = (
    re.compile(r"^sd [\d:]+: \[(\w+)\] .*(?:timing out command|hostbyte=DID_(?:TIME_OUT|NO_CONN))"),
    re.compile(r"\b(?:I/O|timeout|recoverable transport|critical \w+) error, dev (\w+), sector"),
    re.compile(r"^block (nbd\d+): (?:Possible stuck request|Connection timed out)"),
)
"""Messages about disks."""
_MAX_TEXT = 100
"""Most characters of a message to show."""
_MAX_LINES = 3
"""Most lines of the log to quote."""
_MAX_READ = 1 << 14
"""Most lines of the log to compare with the names of each disk."""
_BEFORE = 5.0
"""Seconds before the start of a wait whose lines may tell its cause."""
_VIRTUAL = re.compile(r"x?vd[a-z]+$")
"""Names of disks of virtio and Xen."""
_MAX_PARENTS = 8
"""Most devices above a disk: SCSI device, target, session, host, controller, bus."""
_PARENTS = re.compile(
    r"\d+:\d+:\d+:\d+|(?:host|session|nvme|virtio)\d+|rport-[\d:-]+|"
    r"[\da-f]{4}:[\da-f]{2}:[\d.a-f]+"
)
"""Names of such devices as messages have them; the last one is an address of PCI."""
_USUAL = re.compile(
    r"^\s+(?:\? |\S+\+0x|<|\[<)|^(?:task:|Workqueue: |INFO: task |CPU: |Call Trace)|"
    r"mounted filesystem|[Mm]ounting |clean mount|logical blocks|physical blocks|capacity change|"
    r"Attached SCSI|Write Protect|Mode Sense|Write cache|poll queues"
)
"""Lines about stacks of tasks, and those of every start of a disk or file system."""


@dataclass
class Messages:
    """Messages of the log about one disk or controller."""

    count: int = 0
    stamp: float = -1.0
    """Seconds since boot of the last one; -1 if unknown."""
    text: str = ""
    """The last one; printable."""


@dataclass(frozen=True)
class Reported:
    """Messages of the log about disks and tasks."""

    disks: dict[str, Messages] = field(default_factory=dict)
    """By name of the disk, or of its controller."""
    hung: dict[int, Hang] = field(default_factory=dict)
    """Last report of the hung task detector, by PID."""


@once
def reported(kernel: Kernel) -> Reported:
    """Return the messages; none if the log cannot be read."""
    return parse(read_log(kernel).lines)


def parse(lines: Iterable[Line]) -> Reported:
    """Return the messages among the lines of a log."""
    found = Reported()
    for stamp, line in lines:
        for pattern in (_CONTROLLER, *_DISKS):
            if match := pattern.search(line):
                own = found.disks.setdefault(match[1], Messages())
                own.count += 1
                own.stamp, own.text = -1.0 if stamp is None else stamp, line
                break
        if match := HUNG_TASK.search(line):
            found.hung[int(match[2])] = Hang(-1.0 if stamp is None else stamp, int(match[3]))
    return found


@once
def _told(kernel: Kernel) -> tuple[float, list[float], list[str]]:
    """Return the first of the last stamps of the log, or -1; and stamps and texts since then.

    Lines of :data:`_USUAL` are left out.
    """
    lines = [(at, text) for at, text in read_log(kernel).lines[-_MAX_READ:] if at is not None]
    rare = [(at, text) for at, text in lines if not _USUAL.search(text)]
    return lines[0][0] if lines else -1.0, [at for at, _ in rare], [text for _, text in rare]


def log_evidence(kernel: Kernel, disk: str, pids: Iterable[int]) -> str:
    """Return a phrase about the messages on a disk and its waiters; printable, empty for none.

    :param disk: name of the disk
    :param pids: of the tasks behind it
    """
    known, parts = reported(kernel), []
    controller = re.match(r"(nvme\d+)(?:c\d+)?n\d+$", disk)
    names = [disk, controller[1]] if controller else [disk]
    for name in names:
        if own := known.disks.get(name):
            now = tasks(kernel).now_ns / 1e9
            ago = f", the last {human_seconds(max(now - own.stamp, 0.0))} before the dump"
            when = ago if own.stamp >= 0 and now >= 0 else ""
            messages = counted(own.count, "message")
            parts.append(f'the log has {messages} about {name}{when}: "{_cut(own.text)}"')
    if hung := present(kernel, {pid: known.hung[pid] for pid in pids if pid in known.hung}):
        longest = human_seconds(max(hung.values()))
        count = f"{len(hung):,} of these tasks"
        parts.append(f"the log reports {count} as blocked for more than {longest}")
    return "; ".join(parts)


def log_advice(kernel: Kernel, disk: Disk, seconds: float) -> str:
    """Return the lines of the log about a disk, and what to do next, as sentences; printable.

    :param seconds: for which the disk has been late
    """
    first, stamps, texts = _told(kernel)
    # Addresses of devices, which are numbers, have no pseudonyms.
    is_known = first >= 0 and not kernel.has_pseudonyms
    now = tasks(kernel).now_ns / 1e9 if is_known else -1.0
    if now < 0:
        return (
            "Look in the kernel log for timeouts, resets and lost paths of the device, and at the "
            "statistics of the storage"
        )
    since, names = max(now - seconds - _BEFORE, first), _names(kernel, disk)
    pattern = _pattern(names)
    # With many disks, the pattern alone would take long.
    rows = {row for name in names for row, text in enumerate(texts) if name in text}
    about = [
        f'"{stamps[row]:.2f} s: {_cut(texts[row].strip())}"'
        for row in sorted(rows)
        if stamps[row] >= since and pattern.search(texts[row])
    ]
    others = [printable(name) for name in names[1:]]
    called = printable(disk.name) + (f" ({', '.join(others)})" if others else "")
    if about:
        which = f" (the last of {len(about):,} lines)" if len(about) > _MAX_LINES else ""
        return (
            "Check the path, controller or storage that the kernel log names. It says of "
            f"{called}: {', '.join(about[-_MAX_LINES:])}{which}"
        )
    is_virtual = _VIRTUAL.match(names[0]) or any(name.startswith("virtio") for name in others)
    who = "the hypervisor" if is_virtual else "the storage"
    return (
        f"Ask the administrator of {who} for errors and latency of {called} between {since:.1f} s "
        f"and {now:.1f} s after boot{_utc(kernel, since, now)}: the kernel log has no line about "
        "it in that time"
    )


def _utc(kernel: Kernel, since: float, until: float) -> str:
    """Return two times after boot by the machine's clock, in brackets; empty if unknown."""
    known = machine(kernel)
    if known.time is None or known.uptime_seconds is None:
        return ""
    boot = known.time - known.uptime_seconds
    first, last = shown_time(boot + since), shown_time(boot + until)
    if not first or not last:
        return ""
    return f" ({first[:19].replace('T', ' ')} to {last[11:19]} UTC)"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


def _pattern(names: list[str]) -> re.Pattern[str]:
    """Return the pattern of lines about a disk, its partitions, or the devices that it is on."""
    first, *others = (re.escape(name) for name in names)
    # Partition 2 of sda is sda2; of nvme0n1, it is nvme0n1p2.
    partition = r"(?:p\d+)?" if names[0][-1:].isdigit() else r"\d*"
    known = "|".join((first + partition, *others))
    return re.compile(rf"(?<![\w/:.-])(?:{known})(?![\w-])")


def _names(kernel: Kernel, disk: Disk) -> list[str]:
    """Return the names of a disk and the devices that it is on; not safe to print."""
    found = [disk.name]
    with contextlib.suppress(*DAMAGED):
        parent = _device(kernel, disk.address).parent.read_()
        for _ in range(_MAX_PARENTS):
            if not parent or not parent.kobj.name:
                break
            name = decode(parent.kobj.name.string_())
            if _PARENTS.fullmatch(name):
                found.append(name)
            if name.startswith("session"):
                found.append(f"connection{name.removeprefix('session')}:0")
            parent = parent.parent.read_()
    return [*dict.fromkeys(found)]


def _device(kernel: Kernel, disk: int) -> drgn.Object:
    """Return the ``struct device`` of a disk."""
    part = drgn.Object(kernel.prog, "struct gendisk", address=disk).part0
    # Since Linux kernel commit 0d02129e76ed ("block: merge struct block_device and struct
    # hd_struct") (in v5.11), a block_device in place of an embedded hd_struct.
    is_pointer = part.type_.kind is drgn.TypeKind.POINTER
    return part.bd_device if is_pointer else part.member_("__dev")
