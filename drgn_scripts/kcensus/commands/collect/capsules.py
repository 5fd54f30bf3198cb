# SPDX-License-Identifier: LGPL-2.1-or-later
"""The capsule of a case: of as many of the first analyses as time and size allow.

The slabs of a running kernel are taken first, with the ``struct page`` array, which tells where
they are, and which most analyses read. Names to redact are found after the analyses, on the pages
that these have read; the report is then made from the capsule, and takes about as long as they did.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from kcensus.commands.collect.files import LEVEL, NO_OUTPUT, Bounded, TooLarge, room_on
from kcensus.commands.collect.order import CAPSULE, LIFT, SIZE, TIME, Order
from kcensus.commands.collect.timing import OutOfTime, alarm
from kcensus.limits import memory
from kcensus.outputs import OutputError

if TYPE_CHECKING:
    import numpy.typing as npt

    from kcensus.capsule import Recording
    from kcensus.progress import Progress
    from kcensus.reports import Report

_DISK = "half of the free disk space"
_SAMPLE_PAGES = 1024
_MARGIN, _MAX_MARGIN = 0.9, 1.5
"""Shares of the limit of size that an estimate may reach: the pages of the first analyses can take
half of the average. Beyond the first, there must be time to try again."""
_SLACK = 1.25
"""Times an estimate of time that there must be left."""
_SLABS, _NAMES = 0.15, 0.5
"""Most shares of the time left to take the slabs, and to find the names to redact."""
_REPORT, _MIN_REPORT = 0.08, 3.0
"""Share of the time for opening a redacted capsule and rendering its report, and least seconds."""


@dataclass(frozen=True)
class _Mark:
    """The end of an analysis."""

    name: str
    seconds: float
    frames: npt.NDArray[np.int64]
    """All pages read until then."""


class Capsules:
    """The recording of a target, and its capsule."""

    def __init__(
        self,
        order: Order,
        recording: Recording,
        progress: Progress,
        tell: Callable[[str, Any], None],
    ) -> None:
        self._order, self._recording = order, recording
        self._progress, self._tell = progress, tell
        self._begin = time.monotonic()
        self._why = ""
        """Why the capsule lacks analyses."""
        self._marks: list[_Mark] = []

    def mark(self, name: str, seconds: float) -> None:
        """Note the end of an analysis."""
        snapshot = self._recording.recorder.snapshot
        if snapshot is None or not snapshot.is_full:
            frames = np.flatnonzero(self._recording.recorder.touched)
            self._marks.append(_Mark(name, seconds, frames))

    def take_slabs(self, until: float | None) -> None:
        """Take what belongs together of a running kernel, before the first analysis reads of it.

        :param until: when the analyses must end
        """
        now = time.monotonic()
        had_room, title = True, "taking the slabs"
        try:
            with (
                alarm(None if until is None else now + max(_SLABS * (until - now), 0)),
                self._progress.step(title, 0),
            ):
                had_room = self._recording.take_slabs()
        except OutOfTime:
            had_room = False
        self._tell("seconds", (title, round(time.monotonic() - now, 3)))
        if not had_room:
            why = "slabs are of several moments, so that figures of slab and dentries differ more"
            self._tell("left_out", ("slabs of one moment", f"{why}; {LIFT}"))

    def write(self, made: Report, left: int | None) -> None:
        """Write the capsule.

        :param made: what the recorded analyses found
        :param left: bytes that it may take
        """
        limit = SIZE
        if self._order.redact:
            # The report comes first, and is made from it; then it may be too large to be sent.
            left, limit = room_on(self._order.files[CAPSULE], memory.MIN_BYTES), _DISK
        recording = self._recording
        recording.probe_patches()
        count = self._count_with_names()
        begin, bytes_each, seconds_each = 0.0, 0.0, 0.0
        if count:
            self._keep_pages(count)
            try:
                with alarm(self._until(1)):
                    scrub = recording.find_names(self._progress)
                    start = time.monotonic()
                    if scrub is not None:
                        scrub.begin()
                        recording.recorder.sample(1, LEVEL, scrub)
                    begin = time.monotonic() - start
                    bytes_each, seconds_each = recording.recorder.sample(
                        _SAMPLE_PAGES, LEVEL, scrub
                    )
            except OutOfTime:
                count, self._why = 0, f"writing it without names exceeds {TIME}"
        while count:
            pages, until = len(self._marks[count - 1].frames), self._until(count)
            needed, size = _SLACK * (begin + pages * seconds_each), pages * bytes_each
            if left is not None and size > _MARGIN * left:
                needed *= 2
            if left is not None and size > _MAX_MARGIN * left and count > 1:
                self._why = f"about {size / 1e6:,.1f} MB would exceed {limit}"
            elif until is not None and time.monotonic() + needed > until and count > 1:
                self._why = f"writing it would exceed {TIME}"
            else:
                try:
                    with alarm(until):
                        self._write(made, count, left)
                    break
                except OutOfTime:
                    self._why = f"writing it exceeds {TIME}"
                except TooLarge:
                    self._why = f"it would exceed {limit}"
                os.ftruncate(self._order.files[CAPSULE], 0)
            count -= 1
        if not count and _DISK in self._why:
            raise OutputError(f"{NO_OUTPUT}: the capsule of the first analysis exceeds {_DISK}")
        self._tell_lacking(made, count)

    def _count_with_names(self) -> int:
        """Find the names to redact; return for how many of the first analyses.

        Names of files are as many as the pages of these analyses have: time and memory decide.
        """
        count, title = len(self._marks), "finding names to redact"
        while self._order.redact and count:
            now, end = time.monotonic(), self._until(count)
            frames = np.zeros(len(self._recording.recorder.touched), np.bool_)
            frames[self._marks[count - 1].frames] = True
            try:
                with (
                    alarm(None if end is None else now + max(_NAMES * (end - now), 0)),
                    self._progress.step(title, 0),
                ):
                    self._recording.find_names(self._progress, frames)
            except OutOfTime:
                self._why = f"{title} exceeds {TIME}"
            except MemoryError:
                self._why = f"{title} exceeds the memory limit (--max-memory)"
            else:
                break
            finally:
                self._tell("seconds", (title, round(time.monotonic() - now, 3)))
            count -= 1
            gc.collect()
        return count

    def _until(self, count: int) -> float | None:
        """Return when a capsule for the first analyses must be complete."""
        end = self._order.until
        if end is None or not self._order.redact:
            return end
        report = max(_REPORT * (end - self._begin), _MIN_REPORT)
        return end - report - sum(mark.seconds for mark in self._marks[:count])

    def _tell_lacking(self, made: Report, count: int) -> None:
        why = self._why
        names = [mark.name for mark in self._marks[:count]]
        wanted = [each.name for each in made.sections if each.name != "patches"]
        if lacking := [name for name in wanted if name not in names]:
            snapshot = self._recording.recorder.snapshot
            if not why and snapshot is not None and snapshot.is_full:
                why = "the memory to keep exceeds the limits of size or of free disk space"
            why = why or f"{TIME} stopped the analyses"
            why += "" if _DISK in why or "--max-memory" in why else f"; {LIFT}"
            self._tell(
                "left_out", (f"{CAPSULE} for {', '.join(lacking)}" if names else CAPSULE, why)
            )

    def _keep_pages(self, count: int) -> None:
        """Record the pages of the first analyses only."""
        touched = self._recording.recorder.touched
        touched[:] = False
        touched[self._marks[count - 1].frames] = True

    def _write(self, made: Report, count: int, left: int | None) -> None:
        self._keep_pages(count)
        names = {mark.name for mark in self._marks[:count]}
        sections = [each for each in made.sections if each.name in names]
        file, begin, title = self._order.files[CAPSULE], time.monotonic(), "writing the capsule"
        os.ftruncate(file, 0)
        with self._progress.step(title, 0), open(os.dup(file), "wb") as out:
            out.seek(0)
            done = self._recording.write(
                cast(BinaryIO, Bounded(out, left)),
                replace(made, sections=sections),
                progress=self._progress,
            )
        self._tell("seconds", (title, round(time.monotonic() - begin, 3)))
        self._tell(
            "capsule",
            {
                "analyses": done.analyses,
                "pages": done.stored,
                "unreadable_pages": done.unreadable,
                "modules_without_debug_info": done.lacking,
                "not_redacted": done.unredacted,
            },
        )
