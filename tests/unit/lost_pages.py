# SPDX-License-Identifier: LGPL-2.1-or-later
"""Damage one page of a capsule at a time: a figure that changes must show as a gap or a check.

``python -m tests.unit.lost_pages CAPSULE zero|pointers [CASES [SEED]]`` damages so many of the
pages that analyses read, by default each of them once. Half of them are drawn from all pages; for
the other half, a function that reads memory is drawn first, then one of its pages, so that every
kind of page is there. It prints what changed without a word, ``page FRAME (READER, DAMAGE) ANALYSIS
FIGURE OLD NEW``, and at last the tally. Each case is a process of its own, which runs only the
analyses that read the page, in 10 s of CPU time and 512 MiB.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any
from unittest import mock

import numpy as np

from kcensus.analyses import AnalysisError, analyses
from kcensus.analyses.runner import Context
from kcensus.sources import Target, open_target
from kcensus.sources.capsule.container import PageStore
from tests.running import document
from tests.unit.fuzz_report import MAX_BYTES, MAX_SECONDS, Recorded
from tests.unit.fuzzing import peak_bytes

TOLERANCE = 0.01
"""Share by which a figure may change without a word."""
_BENDS = ("zero", "word", "page", "bit")
"""What becomes of a pointer: NULL, another one of its page, a page more or less, a flipped bit."""


class _Pages(PageStore):
    """The pages of a capsule, some of them replaced."""

    changed: dict[int, bytes] = {}
    read_frames: dict[int, str] | None = None
    """The frames in reading order, and their first readers; None while they are not noted."""
    size = 4096

    def read(self, address: int, count: int) -> bytes:
        data = super().read(address, count)
        frames = range(address // self.size, (address + count - 1) // self.size + 1)
        if self.read_frames is not None and (new := set(frames) - self.read_frames.keys()):
            self.read_frames |= dict.fromkeys(sorted(new), _reader())
        for frame in self.changed.keys() & frames:
            start = frame * self.size
            low, high = max(start, address), min(start + self.size, address + count)
            part = self.changed[frame][low - start : high - start]
            data = data[: low - address] + part + data[high - address :]
        return data


def _reader() -> str:
    """Return the innermost function of an analysis, or of a reader of the kernel, on the stack."""
    frame = sys._getframe()
    while caller := frame.f_back:
        frame = caller
        _, room, place = frame.f_code.co_filename.rpartition("/kcensus/")
        if room and place.startswith(("kernel/", "analyses/")):
            return f"{place}:{frame.f_code.co_name}"
    return "?"


def _opened(path: str) -> Target:
    """Return a capsule with ``_Pages.changed``."""
    with mock.patch("kcensus.sources.capsule.PageStore", _Pages):
        return open_target(path)


def _run(target: Target, names: list[str]) -> dict[str, Any]:
    """Return the JSON of each analysis, or its error."""
    found: dict[str, Any] = {}
    context = Context.of(target, jobs=1)
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
        self.kinds: dict[int, str] = {}
        """The first function that read a frame."""
        self.before: dict[str, Any] = {}
        stored = set(self.intact.frames.tolist())
        for name in names or analyses():
            _Pages.read_frames = {}
            result = _run(_opened(path), [name])
            if not isinstance(result[name], str):
                self.before |= result
                self.kinds = _Pages.read_frames | self.kinds
                for frame in _Pages.read_frames.keys() & stored:
                    self.readers.setdefault(frame, []).append(name)
        _Pages.read_frames = None

    def frames(self, address: int) -> list[int]:
        """Return the frames of the page tables of an address of the kernel, and of its page."""
        prog = _opened(self.path).prog
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
        after = _run(_opened(self.path), self.readers[frame])
        _Pages.changed = {}
        return any(_words_of(self.before[name]) != _words_of(one) for name, one in after.items())

    def case(self, frame: int, page: bytes, *others: int, damage: str = "zero") -> list[str]:
        """Return a line for each figure that changes without a word if a page is replaced.

        :param others: frames of pages that are zeroed at the same time
        """
        reader, writer = os.pipe()
        place = f"page {frame:#x} ({self.kinds[frame]}, {damage})"
        if not (child := os.fork()):
            os.close(reader)
            lines: list[str] = []
            try:
                start, held = time.process_time(), peak_bytes()
                resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS * 3, MAX_SECONDS * 3))
                _Pages.changed = dict.fromkeys(others, bytes(self.intact.page_size))
                _Pages.changed |= {frame: page}
                for name, after in _run(_opened(self.path), self.readers[frame]).items():
                    lines += [
                        f"{place} {name} {key} {old} {new}"
                        for key, old, new in silent(self.before[name], after)
                    ]
                if (seconds := time.process_time() - start) > MAX_SECONDS:
                    lines.append(f"{place} took {seconds:.1f} s of CPU time")
                if (more := peak_bytes() - held) > MAX_BYTES:
                    lines.append(f"{place} took {more >> 20} MiB")
            except BaseException as error:
                if "the capsule lacks" not in str(error):
                    lines.append(f"{place} failed: {error!r}")
                    lines += traceback.format_exc().splitlines()[-6:]
            os.write(writer, "\n".join(map(ascii, lines)).encode()[: 1 << 15])
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            text = pipe.read().decode()
        if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            text = f"{place} ended with {status}"
        return [line.strip("'\"") for line in text.splitlines()]

    def drawn(self, frames: list[int], cases: int, seed: int) -> list[int]:
        """Return so many of some frames, in their order, drawn as the module says; 0 for all."""
        if not 0 < cases < len(frames):
            return frames
        choose, drawn = random.Random(f"{seed}"), dict[int, None]()
        kinds: dict[str, list[int]] = {}
        for frame in frames:
            kinds.setdefault(self.kinds[frame], []).append(frame)
        groups = [kinds[kind] for kind in sorted(kinds)]
        while len(drawn) < cases:
            drawn[choose.choice(frames)] = None
            if len(drawn) < cases:
                drawn[choose.choice(choose.choice(groups))] = None
        return sorted(drawn)

    def zeroed(self, cases: int = 0, seed: int = 1) -> Iterator[list[str]]:
        """Zero pages that are not, one at a time."""
        zeros = bytes(self.intact.page_size)
        frames = [frame for frame in sorted(self.readers) if self.intact.page(frame) != zeros]
        for frame in self.drawn(frames, cases, seed):
            yield self.case(frame, zeros)

    def pointers(self, frame: int) -> list[int]:
        """Return the numbers of the words of a page that may be pointers of the kernel."""
        words = np.frombuffer(self.intact.page(frame), "<u8")
        return np.flatnonzero(words >= np.uint64(0xFFFF_8000_0000_0000)).tolist()

    def all_bent(self, cases: int = 0, seed: int = 1) -> Iterator[list[str]]:
        """Bend a pointer of pages that have some, one at a time."""
        frames = [frame for frame in sorted(self.readers) if self.pointers(frame)]
        for frame in self.drawn(frames, cases, seed):
            choose = random.Random(f"{seed} {frame}")
            page, pointers, kind = (
                self.intact.page(frame),
                self.pointers(frame),
                choose.choice(_BENDS),
            )
            words, at = np.frombuffer(page, "<u8"), choose.choice(pointers)
            old = words[at]
            if kind == "zero":
                words[at] = 0
            elif kind == "word":
                words[at] = words[choose.choice(pointers)]
            elif kind == "page":
                words[at] = (int(old) + choose.choice((1, -1)) * self.intact.page_size) % (1 << 64)
            if words[at] == old:
                kind = "bit"
                words[at] ^= np.uint64(1 << choose.randrange(48))
            yield self.case(frame, bytes(page), damage=f"{kind} at {at * 8:#x}")


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
    path, kind, *numbers = sys.argv[1:]
    damaged = Damaged(path)
    print(f"{len(damaged.readers)} pages, {len(damaged.before)} analyses", file=sys.stderr)
    mutate = damaged.zeroed if kind == "zero" else damaged.all_bent
    print(json.dumps(tally(mutate(*map(int, numbers)))))


if __name__ == "__main__":
    _main()
