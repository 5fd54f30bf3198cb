# SPDX-License-Identifier: LGPL-2.1-or-later
"""Collect from targets, one after the other, each in a process that is killed after its time."""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from kcensus.analyses import analyses
from kcensus.analyses.failures import OTHER
from kcensus.commands.collect.archive import File, write
from kcensus.commands.collect.files import NO_OUTPUT, packed_bytes
from kcensus.commands.collect.order import (
    CAPSULE,
    FORMS,
    LIFT,
    RECORDED,
    SIZE,
    TIME,
    Account,
    Order,
)
from kcensus.commands.collect.reasons import NO_ROOM
from kcensus.commands.collect.versions import versions
from kcensus.commands.shared.options import Reading
from kcensus.limits import is_own_process, memory
from kcensus.limits.children import connected, end
from kcensus.outputs import OutputError, replacing
from kcensus.progress import Progress
from kcensus.text import printable

_PACKING = 0.06
"""Share of the time that is left for packing the archive, and the seconds it is at least."""
_MIN_PACKING = 1.0
_ANALYSES = 0.75
"""Share of a target's time after which its analyses stop."""
_REPORTED = 0.88
"""Share after which a process without a report is killed, so that one is made of its parts."""
_REREAD, _RENDERED = 0.92, 0.95
"""The same two shares for the report on a redacted capsule."""
_LEAST_MEMORY = 320 << 20
"""Bytes that must be available: the processes take 230 MiB on a small machine, and all programs
wait where the page cache has no room."""
_OVERHEAD = 64 << 10
"""Bytes of the archive for the README, the manifest and headers."""
_POLL = 0.2
_MAX_MESSAGE = 1 << 20
_BUSY = 0.5
"""Share of a CPU below which other programs have kept this one from it."""
_PROGRAM = (
    # Before imports, which take seconds on a busy machine.
    "from kcensus.limits.children import end_with; end_with({}); "
    "from kcensus.commands.collect.child import main; main()"
)


@dataclass(frozen=True)
class Case:
    """What to collect, and how."""

    targets: Sequence[str | None]
    reading: Reading = field(default_factory=Reading)
    redact: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    key: bytes | None = None
    seconds: float | None = None
    """None without a limit."""
    max_bytes: int | None = None


class NothingError(Exception):
    """There is nothing to write; the targets' accounts say why."""

    def __init__(self, accounts: Sequence[Account]) -> None:
        super().__init__("there is nothing to write")
        self.accounts = accounts


def collect(case: Case, out: Path, progress: Progress) -> tuple[list[Account], float, int]:
    """Write the archive; return what became of each target, the seconds, and its size.

    :raises NothingError: there is nothing to write; then there is no archive, or the old one, too
    :raises OutputError: it cannot be written; then there is none, or the old one
    """
    begin = _begin()
    until = None
    if case.seconds is not None:
        until = begin + case.seconds - max(_PACKING * case.seconds, _MIN_PACKING)
    left = None if case.max_bytes is None else case.max_bytes - _OVERHEAD
    accounts: list[Account] = []
    # The archive is readable for its owner only, as capsules are.
    with replacing(out, 0o600) as part, ExitStack() as stack:
        files: list[File] = []
        for number, spec in enumerate(case.targets):
            others = len(case.targets) - number
            share = None if left is None else left // others
            now = time.monotonic()
            end = None if until is None else now + (until - now) / others
            account = Account(spec, *_names(spec, number + 1, case), bool(case.redact))
            accounts.append(account)
            opened = {
                name: stack.enter_context(tempfile.TemporaryFile(dir=out.parent)).fileno()
                for name in (*FORMS, CAPSULE, "sections", "pages")
            }
            with progress.step(f"{number + 1} of {len(case.targets)}: {account.shown}", 0):
                _Target(case, account, opened, share, now, end, progress).collect()
            made = [File(number + 1, name, opened[name]) for name in (*FORMS, CAPSULE)]
            if account.no_room:
                why = account.no_room.removeprefix(NO_OUTPUT)
                raise OutputError(f"cannot write '{printable(str(out))}'{why}")
            made = [each for each in made if each.bytes]
            files += made
            for name in ("sections", "pages"):
                os.ftruncate(opened[name], 0)
            if left is not None:
                left = max(left - _stored(made), 0)
        if not any(each.has_report or each.capsule for each in accounts):
            raise NothingError(accounts)
        with progress.step("packing the archive", 0):
            facts = {
                "made_by": "kcensus collect",
                "versions": versions(),
                "collected_at": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
                "seconds": round(time.monotonic() - begin, 1),
                "limits": {"seconds": case.seconds, "bytes": case.max_bytes},
                "redacted": list(case.redact),
                "kept": list(case.keep),
            }
            size = write(part, files, _redacted(accounts), facts)
    return accounts, time.monotonic() - begin, size


def _begin() -> float:
    """Return when this process started, as of :func:`time.monotonic`: imports count, too."""
    if not is_own_process():
        return time.monotonic()
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age


def _names(spec: str | None, number: int, case: Case) -> tuple[str, str]:
    """Return the names of a target in the archive and on screen; its path may name a host."""
    if spec is None:
        return ("the running kernel",) * 2
    return f"dump {number}" if case.redact else printable(spec), printable(spec)


def _redacted(accounts: Sequence[Account]) -> list[Account]:
    """Return accounts without sentences that may have names."""
    return [
        replace(each, error=each.error_kind or (each.error and OTHER), analyses=each.kinds)
        if each.is_redacted
        else each
        for each in accounts
    ]


def _stored(files: Sequence[File]) -> int:
    """Return about how many bytes files take in the archive: reports shrink to a fifth or less."""
    return sum(each.bytes if each.name == CAPSULE else each.bytes // 5 for each in files)


class _Target:
    """One target, its processes, and their time."""

    def __init__(
        self,
        case: Case,
        account: Account,
        files: dict[str, int],
        max_bytes: int | None,
        begin: float,
        end: float | None,
        progress: Progress,
    ) -> None:
        self._case, self._account, self._files, self._max_bytes = case, account, files, max_bytes
        self._begin, self._end, self._progress = begin, end, progress

    def collect(self) -> None:
        try:
            if self._case.reading.max_memory is None:
                memory.affordable(least=_LEAST_MEMORY)
        except memory.Shortage as error:  # before a process takes memory to say so
            self._account.error = str(error)
            self._account.error_kind = "too little memory"
            return
        if self._case.redact:
            self._collect_redacted()
        else:
            self._collect()
        self._conclude()

    def _conclude(self) -> None:
        """Drop what is not complete, and note what is missing."""
        account = self._account
        is_told = any(what.startswith(CAPSULE) for what, _ in account.left_out)
        if not account.capsule:
            os.ftruncate(self._files[CAPSULE], 0)
            if account.has_report and not is_told:
                account.left_out.append((CAPSULE, f"writing it exceeds {TIME}; {LIFT}"))
        told = {what for what, _ in account.left_out}
        for name in FORMS:
            if name not in account.forms:
                os.ftruncate(self._files[name], 0)
                if account.has_report and name not in told:
                    account.left_out.append((name, f"rendering it exceeds {TIME}; {LIFT}"))
        if not account.has_report and not account.error:
            account.error = account.error_kind = self._why()
        if account.kernel:
            why = account.error_kind or f"not run before {TIME}; {LIFT}"
            for name in (*analyses(), "patches"):
                account.analyses.setdefault(name, why)
                account.kinds.setdefault(name, why)

    def _why(self) -> str:
        """Return why there is no report although nothing failed."""
        account = self._account
        for what, why in account.left_out:
            if what in (CAPSULE, FORMS[0]):
                return why
        sentence = f"{TIME} ended at the step '{account.step}'; {LIFT}"
        took = time.monotonic() - self._begin
        if account.cpu_seconds < _BUSY * took:
            sentence += (
                f", and --max-time 10m raises it: other programs kept the CPUs busy, and kcensus"
                f" got {account.cpu_seconds:.0f} s of CPU time in {took:.0f} s"
            )
        return sentence

    def _collect(self) -> None:
        self._reported(self._order("record", _ANALYSES, 1.0), _REPORTED)

    def _reported(self, order: Order, share: float) -> None:
        """Run a process that reports; if it does not in time, report what it has kept."""
        self._run(order, share)
        account = self._account
        if not account.has_report and os.fstat(self._files["sections"]).st_size:
            error = account.error, account.error_kind
            account.error = account.error_kind = ""
            self._run(replace(order, work="rescue", until=self._at(1.0)), None)
            if not account.error and not account.has_report:
                account.error, account.error_kind = error

    def _collect_redacted(self) -> None:
        """Report on the redacted capsule alone, so that no name comes from elsewhere."""
        account = self._account
        self._run(self._order("record", RECORDED, 1.0), None)
        if account.has_report or not account.capsule:  # the target is a redacted capsule
            return
        account.error = account.error_kind = ""
        has = account.capsule.get("analyses", ())
        why = next((why for what, why in account.left_out if what.startswith(CAPSULE)), "")
        failed = {name: each for name, each in account.analyses.items() if each != "done"}
        kinds = {name: each for name, each in account.kinds.items() if each != "done"}
        lacking = {
            name: kinds.get(name) or f"not in the capsule: {why}"
            for name in analyses()
            if name not in has
        }
        own = account.kernel, account.format
        order = replace(
            self._order("report", _REREAD, 1.0),
            spec=f"/proc/self/fd/{self._files[CAPSULE]}",
            reading=replace(self._case.reading, symbols=(), vmcoreinfo=None, allow_truncated=False),
            lacking=lacking,
            redact=(),
        )
        # The list of analyses says it.
        account.left_out = [each for each in account.left_out if not each[0].startswith(CAPSULE)]
        account.analyses, account.kinds = {}, {}
        self._reported(order, _RENDERED)
        capsule = self._files[CAPSULE]
        if self._max_bytes is not None and account.forms:
            taken = sum(packed_bytes(self._files[name], 1) for name in account.forms)
            if os.fstat(capsule).st_size > self._max_bytes - taken:
                os.ftruncate(capsule, 0)
                account.capsule = {}
                account.left_out.append((CAPSULE, f"it exceeds {SIZE}; {LIFT}"))
        account.kernel, account.format = own
        failed.pop("patches", "")  # these are of the second process
        account.analyses |= failed
        account.kinds |= {name: kinds[name] for name in failed}

    def _order(self, work: str, analyses: float, end: float) -> Order:
        return Order(
            work=work,
            spec=self._account.spec,
            reading=self._case.reading,
            files=self._files,
            redact=self._case.redact,
            keep=self._case.keep,
            key=self._case.key,
            analyses_until=self._at(analyses),
            until=self._at(end),
            started=time.monotonic(),
            max_bytes=self._max_bytes,
            is_debugging="--debug" in sys.argv
            or os.environ.get("KCENSUS_DEBUG", "") not in ("", "0"),
        )

    def _at(self, share: float) -> float | None:
        if self._end is None:
            return None
        return self._begin + share * (self._end - self._begin)

    def _run(self, order: Order, reported: float | None) -> None:
        """Run a process until it is done, or its time is over.

        :param reported: share of the time after which there must be a report
        """
        account = self._account
        account.is_rendering = False
        report_until = None if reported is None else self._at(reported)
        # Ctrl-C is for this process; the mask is inherited.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process, connection = connected(_PROGRAM.format(os.getpid()), *self._files.values())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        used, has_ended = resource.getrusage(resource.RUSAGE_CHILDREN), False
        cpu = used.ru_utime + used.ru_stime - account.cpu_seconds
        try:
            connection.send(order)
            with _steps(self._progress) as show:
                while not has_ended:
                    if connection.poll(_POLL):
                        key, value = msgspec.json.decode(connection.recv_bytes(_MAX_MESSAGE))
                        has_ended = key == "end"
                        _note(account, key, value)
                        show(account.step)
                    now = time.monotonic()
                    is_late = order.until is not None and now > order.until
                    is_stuck = report_until is not None and now > report_until
                    has_none = not (account.has_report or account.is_rendering)
                    if is_late or (is_stuck and has_none):
                        break
        except (EOFError, OSError, ValueError):  # of msgspec, too
            if not account.error:
                account.error_kind = "the process was killed, probably for lack of memory"
                account.error = f"{account.error_kind} ({account.step})"
        finally:
            end(process)
            connection.close()
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            account.cpu_seconds = round(used.ru_utime + used.ru_stime - cpu, 2)


def _note(account: Account, key: str, value: Any) -> None:
    """Note what a process has told."""
    match key, value:
        case "analysis", (str(name), str(why), str(kind), seconds):
            account.analyses[name], account.kinds[name] = why, kind
            account.seconds[name] = float(seconds)
        case "seconds", (str(step), seconds):
            account.seconds[step] = round(account.seconds.get(step, 0.0) + float(seconds), 3)
        case "left_out", (str(what), str(why)):
            account.left_out.append((what, why))
        case "error", (str(why), str(kind)):
            if kind == NO_ROOM:
                account.no_room = why
            if account.has_report:
                account.left_out.append((CAPSULE, kind if account.is_redacted else why))
            else:
                account.error, account.error_kind = why, kind
        case "rendering", True:
            account.is_rendering = True
        case "form", str(name) if name in FORMS and name not in account.forms:
            account.forms.append(name)
        case "capsule", dict(capsule):
            account.capsule = capsule
        case (("kernel" | "format" | "step"), str(text)):
            setattr(account, key, text)


@contextmanager
def _steps(progress: Progress) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a title in place of the one before."""
    with ExitStack() as stack:
        shown = ""

        def show(title: str) -> None:
            nonlocal shown
            if title != shown:
                stack.close()
                stack.enter_context(progress.step(title, 0))
                shown = title

        yield show
