# SPDX-License-Identifier: LGPL-2.1-or-later
"""Report on capsules whose kernel memory is damaged.

``python -m tests.unit.fuzz_report CAPSULE SEED FIRST END`` reports on cases FIRST to END - 1, each
in a process of its own, and prints what went wrong. Case N of a seed is always the same, so
``… SEED N N+1`` repeats it. A case takes as long as a report on the intact capsule.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np

from kcensus.analyses.runner import Context
from kcensus.render.report import write_report
from kcensus.render.screen import console_for
from kcensus.reports import examine
from kcensus.sources import open_target
from kcensus.sources.capsule.container import BLOCK_PAGES, PageStore, Reader
from tests.catalogue import CATALOGUE
from tests.running import document
from tests.unit.fuzzing import peak_bytes

_KERNEL_IMAGE = 0xFFFFFFFF80000000
"""``__START_KERNEL_map`` of x86_64."""
_NUMBERS = (
    *(0, 1, 2, 7, 64, 255, 4096, 65535, 65536, 100_000, 3_000_000, (1 << 31) - 1, 1 << 31),
    *((1 << 32) - 1, 1 << 32, 1 << 40, 1 << 48, (1 << 63) - 1, 1 << 63, (1 << 64) - 8, -1),
)
MAX_SECONDS = 10
"""CPU time of a case; most take two or three seconds."""
MAX_BYTES = 512 << 20
"""Memory of a case at its peak."""
MAX_LINES = 2000
"""Lines of the text of a case."""
_MAX_MORE_BYTES = 1 << 30
"""Address space of a case, beyond which it fails where it asks for it."""
_BLOCKS = ("copied block", "zero block", "shuffled block", "shuffled blocks")
"""Damage to whole blocks of a capsule."""


class Recorded:
    """The intact capsule: its memory and where its variables are."""

    def __init__(self, path: str) -> None:
        self.path = path
        reader = Reader(path)
        self.page_size = int(reader.manifest["machine"]["page_size"])
        index = reader.index(self.page_size)
        stored = index.status == 0
        runs = zip(index.first[stored], index.pages[stored], strict=True)
        self.frames = np.concatenate([np.arange(first, first + pages) for first, pages in runs])
        self.store = PageStore(reader, self.page_size)
        text = reader.section("vmcoreinfo", 1 << 16)
        base = re.search(rb"NUMBER\(phys_base\)=(-?\d+)", text)
        self.image = _KERNEL_IMAGE - (int(base[1]) if base else 0)
        lookups = reader.json_section("lookups")["object_lookups"]
        self.variables = sorted(
            {
                (row[3][1] - self.image, row[0])
                for row in lookups
                if row[3] and row[3][1] and row[3][1] >= _KERNEL_IMAGE
            }
        )

    def page(self, frame: int) -> bytearray:
        return bytearray(self.store.read(int(frame) * self.page_size, self.page_size))


def damaged(choose: random.Random, intact: Recorded) -> tuple[dict[int, bytearray], str]:
    """Return changed pages by frame, and what was changed."""
    pages: dict[int, bytearray] = {}
    size = intact.page_size
    kind = choose.choice(("variable", "variable", "words", "pointers", "zero", "swap", "noise"))
    known = set(intact.frames.tolist()) if kind == "variable" else set()
    if kind == "variable" and intact.variables:
        place, name = choose.choice(intact.variables)
        if place // size in known:
            page = pages.setdefault(place // size, intact.page(place // size))
            number = choose.choice(_NUMBERS) % (1 << 64)
            width = min(choose.choice((4, 8)), size - place % size)
            page[place % size : place % size + width] = number.to_bytes(8, "little")[:width]
            return pages, f"{name} = {number:#x} ({width} bytes)"
    if choose.randrange(3) == 0:
        kind = choose.choice(_BLOCKS)
        return damaged_blocks(choose, intact, kind), kind
    count = choose.choice((1, 1, 3, 10, 100))
    frames = [int(choose.choice(intact.frames)) for _ in range(count)]
    for frame in frames:
        page = pages.setdefault(frame, intact.page(frame))
        words = np.frombuffer(page, "<u8")
        used = np.flatnonzero(words).tolist() or [0]
        if kind == "zero":
            words[:] = 0
        elif kind == "swap":
            page[:] = intact.page(int(choose.choice(intact.frames)))
        elif kind == "noise":
            page[:] = choose.randbytes(size)
        for _ in range(choose.choice((1, 4, 40)) if kind in ("words", "pointers") else 0):
            at = choose.choice(used)
            number = choose.choice(_NUMBERS) % (1 << 64)
            words[at] = words[choose.choice(used)] if kind == "pointers" else number
    return pages, f"{kind} on {len(frames)} pages"


def damaged_blocks(choose: random.Random, intact: Recorded, kind: str) -> dict[int, bytearray]:
    """Return the pages of one block, or of all, as another block, zeros or in another order."""
    blocks = [
        intact.frames[start : start + BLOCK_PAGES].tolist()
        for start in range(0, len(intact.frames), BLOCK_PAGES)
    ]
    to, source = choose.choice(blocks), choose.choice(blocks)
    if kind == "zero block":
        return {frame: bytearray(intact.page_size) for frame in to}
    if kind == "shuffled block":
        source = choose.sample(to, len(to))
    elif kind == "shuffled blocks":
        to = intact.frames.tolist()
        source = [frame for block in choose.sample(blocks, len(blocks)) for frame in block]
    return {frame: intact.page(other) for frame, other in zip(to, source, strict=False)}


def report_on(intact: Recorded, pages: dict[int, bytearray]) -> list[str]:
    """Return what is wrong with the report on a damaged capsule."""

    class Damaged(PageStore):
        def read(self, address: int, count: int) -> bytes:
            data, size = bytearray(super().read(address, count)), intact.page_size
            for frame in range(address // size, -(-(address + count) // size)):
                if (page := pages.get(frame)) is not None:
                    start, end = (
                        max(frame * size, address),
                        min((frame + 1) * size, address + count),
                    )
                    part = page[start - frame * size : end - frame * size]
                    data[start - address : end - address] = part
            return bytes(data)

    with mock.patch("kcensus.sources.capsule.PageStore", Damaged):
        target = open_target(intact.path)
    report = examine(Context.of(target, jobs=1), CATALOGUE)
    errors = []
    for name, error in report.errors.items():
        if "failed with" in error:
            errors.append(f"{name} {error}")
    for name, result in json.loads(document(report).encode())["analyses"].items():
        share = result["summary"].get("share_of_ram")
        if share is not None and not 0 <= share <= 1:
            errors.append(f"{name}: share of RAM {share}")
    text = io.StringIO()
    write_report(report, console_for(text), 10, True)
    if (lines := text.getvalue().count("\n")) > MAX_LINES:
        errors.append(f"{lines} lines of text")
    return errors


def run_case(intact: Recorded, seed: int, number: int) -> str:
    """Report on one case in a process of its own; return what went wrong, one line each."""
    pages, change = damaged(random.Random(f"{seed} {number}"), intact)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        lines: list[str] = []
        try:
            start = time.process_time()
            resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS * 3, MAX_SECONDS * 3))
            lines += report_on(intact, pages)
            if (seconds := time.process_time() - start) > MAX_SECONDS:
                lines.append(f"{seconds:.1f} s of CPU time")
            if (peak := peak_bytes()) > MAX_BYTES:
                lines.append(f"{peak >> 20} MiB")
        except BaseException as error:
            lines += [f"{type(error).__name__}: {error}", *traceback.format_exc().splitlines()[-6:]]
        text = "\n".join(ascii(line)[1:-1] for line in lines)
        os.write(writer, text.encode()[: 1 << 15])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        text += f"\nended by {signal.Signals(-status).name}"
    return f"case {number}, {change}: {text.strip()}" if text.strip() else ""


def run_cases(path: str, seed: int, first: int, end: int) -> Iterator[str]:
    """Report on cases ``first`` to ``end - 1``; yield what went wrong with a case."""
    intact = Recorded(path)
    assert report_on(intact, {}) == []
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _MAX_MORE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for number in range(first, end):
        if line := run_case(intact, seed, number):
            yield line


def _main() -> None:
    path, seed, first, end = sys.argv[1:]
    for line in run_cases(path, int(seed), int(first), int(end)):
        print(line, flush=True)


if __name__ == "__main__":
    _main()
