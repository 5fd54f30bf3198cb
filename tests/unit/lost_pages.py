# SPDX-License-Identifier: LGPL-2.1-or-later
"""Damage one page of a capsule at a time: a figure that changes must show as a gap or a check.

``python -m tests.unit.lost_pages CAPSULE zero|pointers [CASES [FIRST]]`` damages so many of the
pages that an analysis reads, evenly spread, by default each of them. It prints what changed without
a word, ``page FRAME ANALYSIS FIGURE OLD NEW``, and at last the tally. Each case is a process of its
own, which runs only the analyses that read the page.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import numpy as np

from kcensus.analyses import AnalysisError, analyses
from kcensus.analyses.runner import Context
from kcensus.sources import open_target
from kcensus.sources.capsule.container import PageStore
from tests.running import document
from tests.unit.fuzz_report import Recorded

TOLERANCE = 0.01
"""Share by which a figure may change without a word."""
_SECONDS = 60
"""Limit of a case, CPU time."""


class _Pages(PageStore):
    """The pages of a capsule, some of them replaced."""

    changed: dict[int, bytes] = {}
    read_frames: dict[int, None] | None = None
    """The frames in the order in which they were read; None if nobody asks."""
    size = 4096

    def read(self, address: int, count: int) -> bytes:
        data = super().read(address, count)
        first, last = address // self.size, (address + count - 1) // self.size
        if self.read_frames is not None:
            self.read_frames |= dict.fromkeys(range(first, last + 1))
        for frame in self.changed.keys() & range(first, last + 1):
            start = frame * self.size
            low, high = max(start, address), min(start + self.size, address + count)
            part = self.changed[frame][low - start : high - start]
            data = data[: low - address] + part + data[high - address :]
        return data


def _run(path: str, names: list[str]) -> dict[str, Any]:
    """Return the JSON of each analysis, or its error, on the capsule with ``_Pages.changed``."""
    found: dict[str, Any] = {}
    with mock.patch("kcensus.sources.capsule.PageStore", _Pages):
        context = Context.of(open_target(path), jobs=1)
        for name in names:
            try:
                found[name] = json.loads(document(context.run(analyses()[name])))
            except AnalysisError as error:
                found[name] = str(error)
    return found


def _words_of(result: Any) -> list[Any]:
    """Return what a result says of its own truth: its gaps and how its checks ended."""
    return [result["gaps"], [(check["name"], check["status"]) for check in result["checks"]]]


def _numbers(result: Any) -> dict[str, Any]:
    figures = dict(result["summary"])
    for name, rows in result["tables"].items():
        figures[f"{name}[]"] = len(rows)
        for row in rows:
            for key, value in row.items():
                # Sums of addresses and names of numbers mean nothing.
                if isinstance(value, (int, float)) and key not in ("address", "number", "pid"):
                    place = f"{name}[].{key}"
                    figures[place] = figures.get(place, 0) + (abs(value) < 1 << 53) * value
    return figures


def silent(before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the figures of a result that changed without a gap or check that says so."""
    if isinstance(after, str) or _words_of(before) != _words_of(after):
        return
    old, new = _numbers(before), _numbers(after)
    for key in sorted(old.keys() | new.keys()):
        one, other = old.get(key, 0), new.get(key, 0)
        if isinstance(one, (int, float)) and isinstance(other, (int, float)):
            if abs(one - other) > TOLERANCE * max(abs(one), abs(other)):
                yield key, one, other
        elif one != other:
            yield key, one, other


class Damaged:
    """A capsule, and what its analyses say of it intact.

    :param names: analyses; all by default
    """

    def __init__(self, path: str, names: Iterable[str] = ()) -> None:
        self.path, self.intact = path, Recorded(path)
        _Pages.size = self.intact.page_size
        self.readers: dict[int, list[str]] = {}
        """Names of the analyses that read a frame."""
        self.before: dict[str, Any] = {}
        stored = set(self.intact.frames.tolist())
        for name in names or analyses():
            _Pages.read_frames = {}
            result = _run(path, [name])
            if not isinstance(result[name], str):
                self.before |= result
                for frame in _Pages.read_frames.keys() & stored:
                    self.readers.setdefault(frame, []).append(name)
        _Pages.read_frames = None

    def frames(self, address: int) -> list[int]:
        """Return the frames of the page tables of an address of the kernel, and of its page."""
        with mock.patch("kcensus.sources.capsule.PageStore", _Pages):
            prog = open_target(self.path).prog
            _Pages.read_frames = {}
            prog.read(address & -8, 8)
            frames = [*_Pages.read_frames]
            _Pages.read_frames = None
        return frames

    def bent(self, address: int, pointer: int) -> tuple[int, bytes]:
        """Return frame and page of an address, with another pointer there."""
        frame, at = self.frames(address)[-1], address % self.intact.page_size
        page = self.intact.page(frame)
        return frame, bytes(page[:at] + pointer.to_bytes(8, "little") + page[at + 8 :])

    def shows(self, frame: int, page: bytes, *others: int) -> bool:
        """Return whether a gap or check of a reader changes if pages are, as in :meth:`case`."""
        _Pages.changed = dict.fromkeys(others, bytes(self.intact.page_size)) | {frame: page}
        after = _run(self.path, self.readers[frame])
        _Pages.changed = {}
        return any(_words_of(self.before[name]) != _words_of(one) for name, one in after.items())

    def case(self, frame: int, page: bytes, *others: int) -> list[str]:
        """Return a line for each figure that changes without a word if a page is replaced.

        :param others: frames of pages that are zeroed at the same time
        """
        reader, writer = os.pipe()
        if not (child := os.fork()):
            os.close(reader)
            lines: list[str] = []
            try:
                signal.setitimer(signal.ITIMER_PROF, _SECONDS)
                _Pages.changed = dict.fromkeys(others, bytes(self.intact.page_size))
                _Pages.changed |= {frame: page}
                for name, after in _run(self.path, self.readers[frame]).items():
                    lines += [
                        f"page {frame:#x} {name} {key} {old} {new}"
                        for key, old, new in silent(self.before[name], after)
                    ]
            except BaseException as error:
                if "the capsule lacks" not in str(error):
                    lines.append(f"page {frame:#x} failed: {error!r}")
                    lines += traceback.format_exc().splitlines()[-6:]
            os.write(writer, "\n".join(map(ascii, lines)).encode()[: 1 << 15])
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            text = pipe.read().decode()
        if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            text = f"page {frame:#x} ended with {status}"
        return [line.strip("'\"") for line in text.splitlines()]

    def zeroed(self, frames: list[int]) -> Iterator[list[str]]:
        """Zero pages, one at a time."""
        for frame in frames:
            yield self.case(frame, bytes(self.intact.page_size))

    def pointers(self, frame: int) -> list[int]:
        """Return the numbers of the words of a page that may be pointers of the kernel."""
        words = np.frombuffer(self.intact.page(frame), "<u8")
        return np.flatnonzero(words >= np.uint64(0xFFFF_8000_0000_0000)).tolist()

    def all_bent(self, frames: list[int], seed: int = 1) -> Iterator[list[str]]:
        """Replace a pointer on each page by another word of it, or by a flipped bit."""
        for frame in frames:
            choose = random.Random(f"{seed} {frame}")
            page, pointers = self.intact.page(frame), self.pointers(frame)
            words = np.frombuffer(page, "<u8")
            at = choose.choice(pointers)
            if choose.random() < 0.5:
                words[at] = words[choose.choice(pointers)]
            else:
                words[at] ^= np.uint64(1 << choose.randrange(48))
            yield self.case(frame, bytes(page))


def tally(cases: Iterator[list[str]]) -> Counter[str]:
    """Print the lines of all cases; return the number of cases and of those that were silent."""
    count: Counter[str] = Counter()
    for lines in cases:
        count["cases"] += 1
        count["silent"] += bool(lines)
        count["silent in the summary"] += any("[]" not in line for line in lines)
        for line in lines:
            print(line, flush=True)
    return count


def _main() -> None:
    path, kind, cases, first = [*sys.argv[1:], "0", "0"][:4]
    damaged = Damaged(path)
    frames = [
        frame for frame in sorted(damaged.readers) if kind == "zero" or damaged.pointers(frame)
    ]
    frames = frames[int(first) :: max(len(frames) // int(cases), 1) if int(cases) else 1]
    print(f"{len(damaged.readers)} pages, {len(damaged.before)} analyses", file=sys.stderr)
    done = tally(damaged.zeroed(frames) if kind == "zero" else damaged.all_bent(frames))
    print(json.dumps(done))


if __name__ == "__main__":
    _main()
