# SPDX-License-Identifier: LGPL-2.1-or-later
"""The process that reads one target: it records, reports, and can be killed at any time.

It sends what it has done as JSON, field by field of :class:`Account`, so that its parent knows what
there is when the time is over.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kcensus.commands.collect import reasons
from kcensus.commands.collect.capsules import Capsules
from kcensus.commands.collect.files import keep, kept, packed_bytes, room_on, writing
from kcensus.commands.collect.order import CAPSULE, FIRST, FORMS, LIFT, RECORDED, SIZE, TIME, Order
from kcensus.commands.collect.timing import OutOfTime, alarm
from kcensus.limits import limit_share, memory, own_process, yield_to_others
from kcensus.text import printable

if TYPE_CHECKING:
    from kcensus.kernel.kernel import Kernel
    from kcensus.progress import Progress
    from kcensus.reports import Report, Section
    from kcensus.results import Result
    from kcensus.sources import Target

_SPARSENESS = 16
"""Most times that the memory of a snapshot is larger than its capsule."""
_PATCHES = 2.0
"""Seconds more for patches, which take a moment and come last."""
_OPEN, _RENDER = "opening the target", "rendering the report"
_SOON = 0.5
"""Least share of the time of a report that its analyses get."""


class _Told:
    """Tells the parent the titles of the running steps."""

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell, self._titles = tell, list[str]()

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[_Told]:
        self._titles.append(printable(title))
        self._tell("step", ": ".join(dict.fromkeys(self._titles)))
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
    import msgspec

    connection = Connection(int(sys.argv[1]))
    try:
        order: Order = connection.recv()
    except (EOFError, OSError):  # the parent was killed meanwhile
        return
    own_process()
    yield_to_others(is_nice=order.until is None)
    memory.prepare()
    if order.reading.cpu_share is not None:
        limit_share(order.reading.cpu_share)

    def tell(key: str, value: Any) -> None:
        try:
            connection.send_bytes(msgspec.json.encode((key, value)))
        except BrokenPipeError:  # the parent was killed: nobody reads what follows
            os._exit(1)

    try:
        _Work(order, tell).run()
    except Exception as error:
        from kcensus.commands.shared.errors import verdict

        memory.lift()
        if order.is_debugging:
            import traceback

            traceback.print_exc()
        sentence = verdict(error)[1]
        tell("error", (printable(sentence), reasons.of_target(error, order.spec)))
    tell("end", True)
    # Programs and pages need no release, and a large one takes time.
    sys.stderr.flush()
    os._exit(0)


class _Work:
    def __init__(self, order: Order, tell: Callable[..., None]) -> None:
        self._order, self._tell = order, tell
        self._progress = cast("Progress", _Told(tell))
        self._capsules: Capsules | None = None
        self._analyses_until = order.analyses_until
        self._left = order.max_bytes
        """Bytes of the archive."""

    def run(self) -> None:
        if self._order.work == "rescue":
            self._rescue()
            return
        from kcensus.commands.shared.target import default_limit, errors_of_target, opened

        reading = self._order.reading
        if reading.max_memory is None and memory.is_enforced():
            reading = replace(reading, max_memory=default_limit(), jobs=None)
        with self._timed(_OPEN):
            spec = self._order.spec
            context = opened(spec, replace(reading, no_progress=True))
            target, _ = context.__enter__()  # until the process ends
        if self._order.work == "report":
            target = replace(target, name=CAPSULE, words=CAPSULE)
        self._tell("kernel", printable(target.kernel))
        self._tell("format", printable(target.format))
        with errors_of_target():
            if self._order.work == "report":
                self._report(target)
            else:
                self._record(target)

    def _prepare(self) -> None:
        """Prepare for the analyses, before their kernel is made, which must not be frozen."""
        self._leave_time()
        gc.collect()
        gc.freeze()  # modules: the collector looks at the rest after each analysis

    def _leave_time(self) -> None:
        """Stop analyses early enough to render the report, but not before they begin.

        Where other programs keep the CPUs busy, that takes up to as long as imports and opening.
        """
        order, now, until = self._order, time.monotonic(), self._analyses_until
        if order.until is None or until is None:
            return
        left = order.until - now
        if order.work == "report" or not order.redact:
            latest = order.until - (now - order.started)
            self._analyses_until = min(until, max(now + _SOON * left, latest))
        else:
            self._analyses_until = max(until, now + RECORDED * left)

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
        self._capsules = Capsules(order, recording, self._progress, self._tell)
        now = Kernel(target.prog, live=True) if target.live else None
        self._prepare()
        if target.live:
            self._capsules.take_slabs(self._analyses_until)
        made = self._examined(recording.target, now)
        if not is_redacted:
            self._render(made)
        has_results, made = bool(made.results), _without_tables(made)
        gc.collect()  # results and kernels have cycles
        if has_results:
            with writing():
                self._capsules.write(made, self._left)

    def _snapshot(self, target: Target) -> Any:
        from kcensus.sources.capsule.snapshot import Snapshot

        file = self._order.files["pages"]
        # Files in memory take it from the analyses, and from the machine.
        most = room_on(file, memory.current() or memory.MIN_BYTES)
        if self._order.max_bytes is not None:
            most = min(most, self._order.max_bytes * _SPARSENESS)
        return Snapshot(target.prog, file, most)

    # The report

    def _report(self, target: Target) -> None:
        self._prepare()
        self._render(self._examined(target))

    def _examined(self, target: Target, now: Kernel | None = None) -> Report:
        from kcensus.analyses import analyses
        from kcensus.commands.shared.target import context_of
        from kcensus.reports import examine

        context = context_of(target, self._progress, self._order.reading)
        if now is not None:
            context = replace(context, now=now)
            for analysis in analyses().values():  # of the moment when the slabs were taken
                with suppress(Exception):
                    analysis.gauges_of(context.kernel)
        self._keep(("head", (context.name, context.release, target.live)))
        return examine(context, order=FIRST, section=self._section)

    def _section(self, name: str, run: Callable[[], Result]) -> Section:
        from kcensus.reports import Section, section_of

        begin, until = time.monotonic(), self._analyses_until
        if until is not None and name == "patches":
            until += _PATCHES
        if why := self._order.lacking.get(name, ""):
            made = Section(name, None, why)
        elif until is not None and begin >= until:
            made = Section(name, None, f"not run before {TIME}; {LIFT}")
        else:
            try:
                with alarm(until):
                    made = section_of(name, run)
            except OutOfTime:
                seconds = time.monotonic() - begin
                how = f"stopped after {seconds:.0f} s at" if seconds >= 1 else "not run before"
                made = Section(name, None, f"{how} {TIME}; {LIFT}")
            gc.collect()
        seconds = round(time.monotonic() - begin, 3)
        told = made.error or "done"
        self._tell("analysis", (name, told, made.kind or told, seconds))
        if self._capsules is not None and TIME not in made.error and name != "patches":
            self._capsules.mark(name, seconds)
        self._keep(("section", made))
        return made

    def _keep(self, what: tuple[str, Any]) -> None:
        """Keep a part of the report, in case this process is killed."""
        if not self._order.redact:
            keep(self._order.files["sections"], what)

    def _rescue(self) -> None:
        """Report what a killed process has kept."""
        from kcensus.analyses import analyses
        from kcensus.catalogue import load
        from kcensus.reports import Report, Section, concluded
        from kcensus.results import Result as Head

        parts = [*kept(self._order.files["sections"])]
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
                why = self._order.lacking.get(each) or f"killed, or not run, at {TIME}; {LIFT}"
                sections[each] = Section(each, None, why)
                self._tell("analysis", (each, why, why, 0.0))
        ordered = [sections[each] for each in (*analyses(), "patches")]
        self._render(concluded(Report(head, ordered), load(), is_torn=live))

    def _render(self, made: Report) -> None:
        if not made.results:
            self._tell("error", ("no analysis has a result",) * 2)
            return

        self._tell("rendering", True)
        with self._timed(_RENDER):
            forms = _forms(made)
            for name in FORMS:
                file = self._order.files[name]
                os.ftruncate(file, 0)
                with (
                    writing(),
                    open(os.dup(file), "w", encoding="utf-8", errors="backslashreplace") as out,
                ):
                    out.seek(0)
                    forms[name](out)
                packed = packed_bytes(file, self._left)
                if self._left is not None and packed >= self._left:
                    self._tell("left_out", (name, f"it would exceed {SIZE}; {LIFT}"))
                    continue
                if self._left is not None:
                    self._left -= packed
                self._tell("form", name)

    # The capsule

    def _copy_capsule(self) -> None:
        from kcensus import samples

        spec = str(self._order.spec)
        path = Path(spec) if os.path.lexists(spec) else samples.capsule(spec)
        if self._left is not None and os.stat(path or spec).st_size > self._left:
            self._tell("left_out", (CAPSULE, f"it exceeds {SIZE}; {LIFT}"))
            return
        with (
            writing(),
            open(path or spec, "rb") as source,
            open(os.dup(self._order.files[CAPSULE]), "wb") as out,
        ):
            shutil.copyfileobj(source, out)
        self._tell("capsule", {"copied": True})

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        begin = time.monotonic()
        with self._progress.step(step, 0):
            yield
        self._tell("seconds", (step, round(time.monotonic() - begin, 3)))


def _forms(made: Report) -> dict[str, Callable[[Any], object]]:
    """Return the writers of all forms, which write to a file."""
    from kcensus.render.html import page_html
    from kcensus.render.json import write_json
    from kcensus.render.report import write_report
    from kcensus.render.screen import console_for

    return {
        "report.txt": lambda file: write_report(made, console_for(file), full=True),
        "report.json": lambda file: write_json(made, file),
        "report.html": lambda file: file.write(page_html(made)),
    }


def _without_tables(made: Report) -> Report:
    """Return what a capsule needs of a report: its rows can take more memory than the capsule."""
    sections = [
        replace(each, result=replace(each.result, tables={})) if each.result else each
        for each in made.sections
    ]
    return replace(made, sections=sections)
