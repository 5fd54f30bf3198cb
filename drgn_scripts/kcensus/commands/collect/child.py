# SPDX-License-Identifier: LGPL-2.1-or-later
"""The process that reads one target: it records, reports, and can be killed at any time.

It sends what it has done, field by field of :class:`Account`, so that its parent knows what there
is when the time is over.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from kcensus.commands.collect.order import CAPSULE, FIRST, FORMS, LIFT, SIZE, TIME, Order
from kcensus.limits import limit_share, memory, own_process, yield_to_others
from kcensus.limits.children import end_with

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from kcensus.capsule import Recording
    from kcensus.kernel.kernel import Kernel
    from kcensus.progress import Progress
    from kcensus.reports import Report, Section
    from kcensus.results import Result
    from kcensus.sources import Target

_LEVEL = 3
_SAMPLE_PAGES = 2048
_MARGIN = 0.9
"""Share of the limit that an estimate may reach."""
_AGAIN = 1.0
"""Seconds after which to stop an analysis again: Python drops exceptions in some callbacks."""
_SPARSENESS = 16
"""Most times that the memory of a snapshot is larger than its capsule."""
_REDACTING = 4
"""How much longer it takes to write a redacted capsule."""
_PATCHES = 2.0
"""Seconds more for patches, which take a moment and come last."""
_OPEN = "opening the target"


class _OutOfTime(BaseException):
    """Not an Exception, which analyses survive."""


class _TooLarge(Exception):
    pass


class _Bounded:
    """A file that refuses to grow beyond a limit."""

    def __init__(self, file: BinaryIO, limit: int | None) -> None:
        self._file, self._limit = file, limit
        self.tell, self.seek = file.tell, file.seek

    def write(self, data: bytes) -> int:
        if self._limit is not None and self._file.tell() + len(data) > self._limit:
            raise _TooLarge
        return self._file.write(data)


class _Told:
    """Tells the parent the titles of the running steps."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell, self._titles = tell, list[str]()

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[_Told]:
        self._titles.append(title)
        self._tell("step", ": ".join(self._titles))
        try:
            yield self
        finally:
            self._titles.pop()

    def advance(self, amount: int = 1) -> None:
        pass

    def skip(self, amount: int = 1) -> None:
        pass


def main() -> None:
    """Do the order that the parent sends."""
    connection = Connection(int(sys.argv[1]))
    try:
        order: Order = connection.recv()
    except (EOFError, OSError):  # the parent was killed meanwhile
        return
    end_with(order.parent)
    own_process()
    yield_to_others()
    memory.prepare()
    if order.reading.cpu_share is not None:
        limit_share(order.reading.cpu_share)

    def tell(key: str, value: Any) -> None:
        connection.send((key, value))

    try:
        _Work(order, tell).run()
    except Exception as error:
        from kcensus.commands.shared.errors import verdict

        memory.lift()
        if order.is_debugging:
            import traceback

            traceback.print_exc()
        tell("error", verdict(error)[1])
    tell("end", True)
    # Programs and pages need no release, and a large one takes time.
    sys.stderr.flush()
    os._exit(0)


class _Work:
    def __init__(self, order: Order, tell: Callable[..., None]) -> None:
        self._order, self._tell = order, tell
        self._progress = cast("Progress", _Told(tell))
        self._marks: list[tuple[str, npt.NDArray[np.int64]]] = []
        """By analysis in the order of their runs, the pages that were read until its end."""
        self._recording: Recording | None = None
        self._left = order.max_bytes
        """Bytes of the archive."""

    def run(self) -> None:
        if self._order.work == "rescue":
            self._rescue()
            return
        from kcensus.commands.shared.target import default_limit, opened

        reading = self._order.reading
        if reading.max_memory is None and memory.is_enforced():
            reading = replace(reading, max_memory=default_limit(), jobs=None)
        with self._timed(_OPEN):
            spec = self._order.spec
            context = opened(spec, replace(reading, no_progress=True))
            target, _ = context.__enter__()  # until the process ends
        if self._order.work == "report":
            target = replace(target, name=CAPSULE, words=CAPSULE)
        self._tell("kernel", target.kernel)
        self._tell("format", target.format)
        from kcensus.commands.shared.target import errors_of_target

        with errors_of_target():
            if self._order.work == "report":
                self._report(target)
            else:
                self._record(target)

    def _record(self, target: Target) -> None:
        from kcensus.capsule import Recording
        from kcensus.kernel.kernel import Kernel
        from kcensus.sources import TargetError

        order, is_redacted = self._order, "names" in self._order.redact
        if target.recorded_for is not None:
            if is_redacted and not target.has_pseudonyms:
                raise TargetError(
                    f"{target.name}: is a capsule with names; collect with --redact names from the"
                    " vmcore that it was recorded from"
                )
            if is_redacted:  # its path may have names
                target = replace(target, name=CAPSULE, words=CAPSULE)
            self._report(target)
            self._copy_capsule()
            return
        recording = Recording(
            target,
            redact=order.redact,
            keep=order.keep,
            key=order.key,
            snapshot=self._snapshot(target) if target.live else None,
        )
        self._recording = recording
        if target.live:
            with self._timed("taking the slabs"):
                recording.take_slabs()
        now = Kernel(target.prog, live=True) if target.live else None
        made = self._examined(recording.target, now)
        if not is_redacted:
            self._render(made)
        has_results, made = bool(made.results), _without_tables(made)
        gc.collect()  # results and kernels have cycles
        if has_results:
            self._capsule(recording, made)

    def _snapshot(self, target: Target) -> Any:
        from kcensus.sources.capsule.snapshot import Snapshot

        file = self._order.files["pages"]
        status = os.fstatvfs(file)
        most = status.f_bavail * status.f_frsize // 2
        if self._order.max_bytes is not None:
            most = min(most, self._order.max_bytes * _SPARSENESS)
        return Snapshot(target.prog, file, most)

    # The report

    def _report(self, target: Target) -> None:
        self._render(self._examined(target))

    def _examined(self, target: Target, now: Kernel | None = None) -> Report:
        from kcensus.commands.shared.target import context_of
        from kcensus.reports import examine

        context = context_of(target, self._progress, self._order.reading)
        if now is not None:
            context = replace(context, now=now)
        self._keep(("head", (context.name, context.release, target.live)))
        return examine(context, order=FIRST, section=self._section)

    def _section(self, name: str, run: Callable[[], Result]) -> Section:
        from kcensus.reports import Section, section_of

        begin, until = time.monotonic(), self._order.analyses_until
        if until is not None and name == "patches":
            until += _PATCHES
        if until is not None and begin >= until:
            made = Section(name, None, f"not run before {TIME}; {LIFT}")
        else:
            try:
                with _alarm(until):
                    made = section_of(name, run)
            except _OutOfTime:
                seconds = time.monotonic() - begin
                made = Section(name, None, f"stopped after {seconds:.0f} s at {TIME}; {LIFT}")
        seconds = round(time.monotonic() - begin, 3)
        self._tell("analysis", (name, made.error or "done", seconds))
        if TIME not in made.error and name != "patches":
            self._mark(name)
        self._keep(("section", made))
        gc.collect()
        return made

    def _mark(self, name: str) -> None:
        import numpy as np

        if self._recording is not None:
            snapshot = self._recording.recorder.snapshot
            if snapshot is None or not snapshot.is_full:
                self._marks.append((name, np.flatnonzero(self._recording.recorder.touched)))

    def _keep(self, what: tuple[str, Any]) -> None:
        """Keep a part of the report, in case this process is killed."""
        if self._order.redact or self._order.work != "record":
            return
        with open(os.dup(self._order.files["sections"]), "ab") as file:
            pickle.dump(what, file)

    def _rescue(self) -> None:
        """Report what a killed process has kept."""
        from kcensus.analyses import analyses
        from kcensus.catalogue import load
        from kcensus.reports import Report, Section, concluded
        from kcensus.results import Result as Head

        parts = [*_pickles(self._order.files["sections"])]
        heads = [value for kind, value in parts if kind == "head"]
        sections = {value.name: value for kind, value in parts if kind == "section"}
        known = {name: each for name, each in sections.items() if each.result}
        if not heads or not known:
            return
        name, release, live = heads[0]
        first = next(each.result for each in known.values() if each.result)
        head = Head("report", name, release, live, first.machine)
        head.placeholders = first.placeholders
        for each in (*analyses(), "patches"):
            if each not in sections:
                sections[each] = Section(each, None, f"killed, or not run, at {TIME}; {LIFT}")
                self._tell("analysis", (each, sections[each].error, 0.0))
        ordered = [sections[each] for each in (*analyses(), "patches")]
        self._render(concluded(Report(head, ordered), load(), is_torn=live))

    def _render(self, made: Report) -> None:
        from kcensus.render.html import page_html
        from kcensus.render.json import write_json
        from kcensus.render.report import write_report
        from kcensus.render.screen import console_for

        def text(file: Any) -> None:
            write_report(made, console_for(file), full=True)

        forms: dict[str, Callable[[Any], object]] = {
            "report.txt": text,
            "report.json": lambda file: write_json(made, file),
            "report.html": lambda file: file.write(page_html(made)),
        }
        with self._timed("rendering the report"):
            for name in FORMS:
                file = self._order.files[name]
                os.ftruncate(file, 0)
                with open(os.dup(file), "w", encoding="utf-8", errors="backslashreplace") as out:
                    out.seek(0)
                    forms[name](out)
                packed = _packed_bytes(file, self._left)
                if self._left is not None and packed >= self._left:
                    os.ftruncate(file, 0)
                    self._leave_out(name, f"it would exceed {SIZE}; {LIFT}")
                elif self._left is not None:
                    self._left -= packed
        if made.results:
            self._tell("has_report", True)
        else:
            self._tell("error", "no analysis has a result")

    # The capsule

    def _capsule(self, recording: Recording, made: Report) -> None:
        """Write the capsule, for as many analyses as the limits allow."""
        recording.probe_patches()
        wanted = [each.name for each in made.sections if each.name != "patches"]
        pages = [len(frames) for _, frames in self._marks]
        bytes_each, seconds_each = recording.recorder.sample(_SAMPLE_PAGES, _LEVEL)
        if self._order.redact:
            seconds_each *= _REDACTING
        count, why = len(self._marks), ""
        while count:
            estimate = pages[count - 1] * bytes_each
            if self._left is not None and estimate > _MARGIN * self._left:
                why = f"about {estimate / 1e6:,.0f} MB would exceed {SIZE}"
            elif (
                self._order.until is not None
                and time.monotonic() + pages[count - 1] * seconds_each > self._order.until
            ):
                why = f"writing it would exceed {TIME}"
            elif self._written(recording, made, count):
                break
            else:
                why = f"it would exceed {SIZE}"
            count -= 1
        names = [name for name, _ in self._marks[:count]]
        if lacking := [name for name in wanted if name not in names]:
            snapshot = recording.recorder.snapshot
            if not why and snapshot is not None and snapshot.is_full:
                why = "the memory to keep exceeds the limits of size or of free disk space"
            why = f"{why}; {LIFT}" if why else f"{TIME} stopped the analyses; {LIFT}"
            self._leave_out(f"{CAPSULE} for {', '.join(lacking)}" if names else CAPSULE, why)

    def _written(self, recording: Recording, made: Report, count: int) -> bool:
        touched = recording.recorder.touched
        touched[:] = False
        touched[self._marks[count - 1][1]] = True
        names = {name for name, _ in self._marks[:count]}
        sections = [each for each in made.sections if each.name in names]
        file = self._order.files[CAPSULE]
        os.ftruncate(file, 0)
        try:
            with self._timed("writing the capsule"), open(os.dup(file), "wb") as out:
                out.seek(0)
                bounded = cast(BinaryIO, _Bounded(out, self._left))
                done = recording.write(
                    bounded, replace(made, sections=sections), progress=self._progress
                )
        except _TooLarge:
            os.ftruncate(file, 0)
            return False
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
        return True

    def _copy_capsule(self) -> None:
        from kcensus import samples

        spec = str(self._order.spec)
        path = Path(spec) if os.path.lexists(spec) else samples.capsule(spec)
        if self._left is not None and os.stat(path or spec).st_size > self._left:
            self._leave_out(CAPSULE, f"it exceeds {SIZE}; {LIFT}")
            return
        with (
            open(path or spec, "rb") as source,
            open(os.dup(self._order.files[CAPSULE]), "wb") as out,
        ):
            shutil.copyfileobj(source, out)
        self._tell("capsule", {"copied": True})

    def _leave_out(self, what: str, why: str) -> None:
        self._tell("left_out", (what, why))

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        begin = time.monotonic()
        with self._progress.step(step, 0):
            yield
        self._tell("seconds", (step, round(time.monotonic() - begin, 3)))


def _without_tables(made: Report) -> Report:
    """Return what a capsule needs of a report: its rows can take more memory than the capsule."""
    sections = [
        replace(each, result=replace(each.result, tables={})) if each.result else each
        for each in made.sections
    ]
    return replace(made, sections=sections)


@contextmanager
def _alarm(until: float | None) -> Iterator[None]:
    """Raise :class:`_OutOfTime` in the context when the time has come."""
    if until is None:
        yield
        return

    def stop(*_: Any) -> None:
        raise _OutOfTime

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(until - time.monotonic(), 0.001), _AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _pickles(file: int) -> Iterator[Any]:
    """Yield what a process of ours has kept; the last part may be incomplete."""
    with open(os.dup(file), "rb") as source:
        source.seek(0)
        with contextlib.suppress(EOFError, pickle.UnpicklingError):
            while True:
                yield pickle.load(source)


def _packed_bytes(file: int, most: int | None) -> int:
    """Return the size of a file in the archive; no need to know it without a limit."""
    if most is None:
        return 0
    import zstandard

    size, packer = 0, zstandard.ZstdCompressor(level=_LEVEL).compressobj()
    with open(os.dup(file), "rb") as source:
        source.seek(0)
        while data := source.read(1 << 20):
            size += len(packer.compress(data))
    return size + len(packer.flush())
