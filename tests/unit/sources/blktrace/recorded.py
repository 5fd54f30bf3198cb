# SPDX-License-Identifier: LGPL-2.1-or-later
"""Traces for tests: recorded ones, and files made of events.

``starved`` was recorded in a guest with Linux 6.1: mq-deadline with a ``write_expire`` of 60 s and
a disk of 60 IOPS, direct readers, and buffered writes; ``starved.txt`` is what blkparse printed of
it, ``starved.btt`` the first table of btt. ``bfq`` is half a second of a guest with BFQ and its
messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import zstandard

from kcensus.sources.blktrace import events

DATA = Path(__file__).parents[2] / "data" / "traces"
STARVED = """\
  8,0   11      152    81.092472813   804  A  WM 141698288 + 8 <- (8,1) 141696240
  8,0   11      153    81.092472889   804  Q  WM 141698288 + 8 [xfsaild/sda1]
  8,0   11      154    81.092473207   804  G  WM 141698288 + 8 [xfsaild/sda1]
  8,0   11      206    81.092496118   804  I  WM 141698288 + 8 (   22911) [xfsaild/sda1]
  8,0    1        0    81.117912979     0  m   N cfq1618SN / insert_request
  8,0    1        0    81.117913419     0  m   N cfq1618SN / add_to_rr
  8,0    1        0    81.117914044     0  m   N cfq1618SN / preempt
  8,0    1        0    81.117914398     0  m   N cfq767A  / slice expired t=1
  8,0    1        0    81.117914755     0  m   N cfq767A  / resid=40
  8,0    1        0    81.117915340     0  m   N / served: vt=1948520448 min_vt=1948520448
  8,0    1        0    81.117915858     0  m   N cfq767A  / sl_used=1 disp=0 charge=0 iops=1 sect=0
  8,0    0   289372    96.718761435     0  D  WM 141698288 + 8 (15626265317) [swapper/0]
"""
"""The events that the posting of "cfq: fix starvation of asynchronous writes" shows (Linux 4.9)."""
ACTIONS = {act.letters: act for act in events.Act}
READ, WRITE = 1, events.WRITE
NOTIFY = events.NOTIFY


def unpack(directory: Path, *names: str) -> Path:
    for name in names:
        for packed in DATA.glob(f"{name}.*.zst"):
            content = zstandard.ZstdDecompressor().decompress(packed.read_bytes())
            (directory / packed.stem).write_bytes(content)
    return directory


def averages(name: str) -> Iterator[tuple[str, float, float, float, int]]:
    """Yield phase, minimum, average, maximum and count from what btt printed."""
    for line in (DATA / name).read_text().splitlines():
        words = line.split()
        if len(words) == 5 and words[4].isdigit():
            yield words[0], float(words[1]), float(words[2]), float(words[3]), int(words[4])


@dataclass
class Event:
    """An event to write; times in ns."""

    letter: str
    time: int
    sector: int = 0
    sectors: int = 8
    flags: int = READ
    pid: int = 100
    device: int = 8 << 20
    error: int = 0
    payload: bytes = b""
    note: int = -1
    cgroup: int = 0
    sequence: int = 0
    cpu: int = 0

    @property
    def action(self) -> int:
        if self.note >= 0:
            return self.note | self.cgroup | NOTIFY << 16
        return ACTIONS[self.letter] | self.flags << 16


def message(time: int, text: str, *, cgroup: bool = False, device: int = 8 << 20) -> Event:
    payload = (bytes(range(8)) if cgroup else b"") + text.encode()
    return Event("m", time, payload=payload, note=2, cgroup=cgroup << 8, device=device)


def name_of(time: int, pid: int, name: bytes) -> Event:
    return Event("", time, pid=pid, payload=name.ljust(16, b"\0")[:16], note=0)


def packed(made: Iterable[Event], order: str = "<", version: int = 7) -> bytes:
    magic, parts, sequence = 0x65617400 | version, [], 0
    for each in made:
        sequence += each.note < 0
        head = (magic, each.sequence or sequence * (each.note < 0), each.time, each.sector)
        tail = (each.device, each.cpu, each.error & 0xFFFF, len(each.payload))
        size, action, pid = each.sectors << 9, each.action, each.pid
        if version == 7:
            parts.append(struct.pack(f"{order}IIQQIIIIIHH", *head, size, action, pid, *tail))
        else:
            fields = (*head, size, pid, action, *tail, bytes(12))
            parts.append(struct.pack(f"{order}IIQQIIQIIHH12s", *fields))
        parts.append(each.payload)
    return b"".join(parts)


def life(sector: int, *times: int, letters: str = "QGIDC", **values: int) -> list[Event]:
    return [
        Event(letter, time, sector, **values)  # type: ignore[arg-type]
        for letter, time in zip(letters, times, strict=False)
    ]
