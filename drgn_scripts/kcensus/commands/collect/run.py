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

from kcensus.commands.collect.archive import File, write
from kcensus.commands.collect.order import CAPSULE, FORMS, LIFT, TIME, Account, Order
from kcensus.commands.collect.versions import versions
from kcensus.commands.shared.options import Reading
from kcensus.limits import is_own_process
from kcensus.limits.children import connected
from kcensus.outputs import replacing
from kcensus.progress import Progress

_PACKING = 0.06
"""Share of the time that is left for packing the archive, and the seconds it is at least."""
_MIN_PACKING = 1.0
_ANALYSES = 0.62
"""Share of a target's time after which its analyses stop."""
_REPORTED = 0.8
"""Share after which a process without a report is killed, so that one is made of its parts."""
_RECORDED, _REREAD = 0.75, 0.9
"""Shares after which a redacted capsule must be complete, and the analyses of it stop."""
_OVERHEAD = 64 << 10
"""Bytes of the archive for the README, the manifest and headers."""
_POLL = 0.2
_BUSY = 0.5
"""Share of a CPU below which other programs have kept this one from it."""
_PROGRAM = "from kcensus.commands.collect.child import main; main()"


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


def collect(case: Case, out: Path, progress: Progress) -> tuple[list[Account], float, int]:
    """Write the archive; return what became of each target, the seconds, and its size.

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
            account = Account(spec, _name(spec, number + 1, case))
            accounts.append(account)
            opened = {
                name: stack.enter_context(tempfile.TemporaryFile(dir=out.parent)).fileno()
                for name in (*FORMS, CAPSULE, "sections", "pages")
            }
            with progress.step(f"{number + 1} of {len(case.targets)}: {account.name}", 0):
                _Target(case, account, opened, share, now, end, progress).collect()
            made = [File(number + 1, name, opened[name]) for name in (*FORMS, CAPSULE)]
            made = [each for each in made if each.bytes]
            files += made
            for name in ("sections", "pages"):
                os.ftruncate(opened[name], 0)
            if left is not None:
                left = max(left - _stored(made), 0)
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
            size = write(part, files, _redacted(accounts, case), facts)
    return accounts, time.monotonic() - begin, size


def _begin() -> float:
    """Return when this process started, as of :func:`time.monotonic`: imports count, too."""
    if not is_own_process():
        return time.monotonic()
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age


def _name(spec: str | None, number: int, case: Case) -> str:
    """Return the name of a target; its path may have the name of a host."""
    from kcensus.text import printable

    if spec is None:
        return "the running kernel"
    return f"dump {number}" if case.redact else printable(spec)


def _redacted(accounts: Sequence[Account], case: Case) -> list[Account]:
    """Return accounts without sentences that may have names."""
    if not case.redact:
        return list(accounts)
    hidden = "failed; the command showed why, with names that are not for this file"
    return [
        replace(
            each,
            error=each.error and hidden,
            analyses={
                name: why if why == "done" or TIME in why else hidden
                for name, why in each.analyses.items()
            },
        )
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
        from kcensus.commands.shared.target import default_limit
        from kcensus.sources import TargetError

        try:
            if self._case.reading.max_memory is None:
                default_limit()
        except TargetError as error:  # before a process takes memory to say so
            self._account.error = str(error)
            return
        if self._case.redact:
            self._collect_redacted()
        else:
            self._collect()
        account = self._account
        if not account.capsule and os.fstat(self._files[CAPSULE]).st_size:  # not complete
            os.ftruncate(self._files[CAPSULE], 0)
            if not any(what == CAPSULE for what, _ in account.left_out):
                account.left_out.append((CAPSULE, f"writing it exceeds {TIME}; {LIFT}"))
        if not account.has_report:
            for name in FORMS:
                os.ftruncate(self._files[name], 0)
            account.error = account.error or self._late()

    def _late(self) -> str:
        account = self._account
        sentence = f"{account.step} exceeds {TIME}; {LIFT}"
        took = time.monotonic() - self._begin
        if account.cpu_seconds < _BUSY * took:
            sentence += (
                f", and --max-time 10m raises it: other programs kept the CPUs busy, to which "
                f"kcensus yields: it got {account.cpu_seconds:.0f} s of CPU time in {took:.0f} s"
            )
        return sentence

    def _collect(self) -> None:
        self._run(self._order("record", _ANALYSES, 1.0), _REPORTED)
        account = self._account
        if not account.has_report and os.fstat(self._files["sections"]).st_size:
            account.error, error = "", account.error
            self._run(self._order("rescue", 1.0, 1.0), None)
            account.error = account.error or ("" if account.has_report else error)

    def _collect_redacted(self) -> None:
        """Report on the redacted capsule alone, so that no name comes from elsewhere."""
        account = self._account
        self._run(self._order("record", _ANALYSES * _RECORDED, _RECORDED), None)
        if account.has_report or not account.capsule:  # the target is a redacted capsule
            return
        failed = {name: why for name, why in account.analyses.items() if why != "done"}
        own = account.kernel, account.format
        order = replace(
            self._order("report", _REREAD, 1.0),
            spec=f"/proc/self/fd/{self._files[CAPSULE]}",
            reading=replace(self._case.reading, symbols=(), vmcoreinfo=None, allow_truncated=False),
            redact=(),
        )
        if order.max_bytes is not None:
            rest = order.max_bytes - os.fstat(self._files[CAPSULE]).st_size
            order = replace(order, max_bytes=max(rest, 0))
        self._run(order, None)
        account.kernel, account.format = own
        account.analyses |= failed

    def _order(self, work: str, analyses: float, end: float) -> Order:
        return Order(
            work=work,
            parent=os.getpid(),
            spec=self._account.spec,
            reading=self._case.reading,
            files=self._files,
            redact=self._case.redact,
            keep=self._case.keep,
            key=self._case.key,
            analyses_until=self._at(analyses),
            until=self._at(end),
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
        report_until = None if reported is None else self._at(reported)
        # Ctrl-C is for this process; the mask is inherited.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process, connection = connected(_PROGRAM, *self._files.values())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        used, has_ended = resource.getrusage(resource.RUSAGE_CHILDREN), False
        cpu = used.ru_utime + used.ru_stime - account.cpu_seconds
        try:
            connection.send(order)
            with _steps(self._progress) as show:
                while not has_ended:
                    if connection.poll(_POLL):
                        key, value = connection.recv()
                        has_ended = key == "end"
                        _note(account, key, value)
                        show(account.step)
                    now = time.monotonic()
                    is_late = order.until is not None and now > order.until
                    is_stuck = report_until is not None and now > report_until
                    if is_late or (is_stuck and not account.has_report):
                        break
        except (EOFError, OSError):
            if not account.error:
                account.error = (
                    f"the process was killed ({account.step}), probably for lack of memory"
                )
        finally:
            process.kill()
            process.wait()
            connection.close()
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            account.cpu_seconds = round(used.ru_utime + used.ru_stime - cpu, 2)


def _note(account: Account, key: str, value: Any) -> None:
    """Note what a process has told."""
    match key:
        case "analysis":
            name, why, seconds = value
            account.analyses[name] = why
            account.seconds[name] = seconds
        case "seconds":
            account.seconds[value[0]] = value[1]
        case "left_out":
            account.left_out.append(value)
        case "error" if account.has_report:
            account.left_out.append((CAPSULE, value))
        case "end":
            pass
        case _:
            setattr(account, key, value)


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
