# SPDX-License-Identifier: LGPL-2.1-or-later
"""The machine of a kernel, as every output names it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable

import drgn
from drgn.helpers.linux.panic import panic_message, panic_task
from drgn.helpers.linux.sched import loadavg
from drgn.helpers.linux.timekeeping import ktime_get_real_seconds, uptime

from kcensus.arch import name_of
from kcensus.engine.layout import is_little_endian
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.log import OOPS, PLACE, Line, is_sound, read_log
from kcensus.kernel.mm.pressure import pressures
from kcensus.kernel.mm.vmstat import memory_use
from kcensus.kernel.size import attempt
from kcensus.kernel.symbols import described
from kcensus.results import Machine
from kcensus.sources.formats.elf import NT_GNU_BUILD_ID, notes
from kcensus.sources.model import kernel_release
from kcensus.text import printable

_NO_PANIC = "no panic: dumped while the kernel ran"
_RUNS = -1
"""PANIC_CPU_INVALID."""
_TAINT_DIE = 1 << 7
_WANTED = re.compile(f"^{_NO_PANIC}|sysrq", re.IGNORECASE)
"""Dumps without a panic, or with one that a user requested."""
_LOADS = ("minutes_1", "minutes_5", "minutes_15")
_AFTER_OOPS = 16
"""Lines after an oops that may have its registers."""
_OF_OOPS = re.compile(r"^(?!Kernel panic).|Fatal exception|Attempted to kill")
"""Messages of an oops, and of a panic that follows one at once; others may come days later."""


@once
def machine(kernel: Kernel) -> Machine:
    """Return the machine of a kernel, without exceptions: unreadable members are unknown."""
    prog = kernel.prog
    if not attempt(lambda: prog.flags & drgn.ProgramFlags.IS_LINUX_KERNEL):
        return Machine()
    taken_by = "" if kernel.live else attempt(lambda: _taken_by(kernel)) or ""
    return Machine(
        host=_text(lambda: prog["init_uts_ns"].name.nodename),
        time=attempt(lambda: float(ktime_get_real_seconds(prog)))
        or attempt(lambda: _clock(prog)[0]),
        uptime_seconds=attempt(lambda: float(uptime(prog))) or attempt(lambda: _clock(prog)[1]),
        boot=attempt(lambda: boot_id(prog)) or "",
        architecture=name_of(prog.platform),
        page_size_bytes=attempt(lambda: int(prog["PAGE_SIZE"])),
        ram_bytes=kernel.ram_bytes or None,
        cpus=kernel.size.cpus,
        nodes=kernel.size.nodes,
        kernel=attempt(lambda: kernel_release(prog)) or "",
        version=_text(lambda: prog["init_uts_ns"].name.version),
        build_id=attempt(lambda: _build_id(prog)) or "",
        taken_by=taken_by,
        memory=attempt(lambda: memory_use(prog, kernel.ram_bytes)) or {},
        pressure=pressures(kernel),
        load=attempt(lambda: dict(zip(_LOADS, loadavg(prog), strict=True))) or {},
        is_panic=bool(taken_by) and not _WANTED.search(taken_by),
    )


def _clock(prog: drgn.Program) -> tuple[float, float]:
    """Return the time of day and the uptime, in seconds, of kernels without ``tk_core``.

    Before "timekeeping: Cache optimize struct timekeeper" (commit not verified) (in v3.17), the
    timekeeper is a variable of its own, also in RHEL 7.
    """
    keeper = prog.object("timekeeper", drgn.FindObjectFlags.VARIABLE, "timekeeping.c")
    time = int(keeper.xtime_sec)
    asleep = int(keeper.total_sleep_time.tv_sec)
    return float(time), float(time + int(keeper.wall_to_monotonic.tv_sec) + asleep)


def _build_id(prog: drgn.Program) -> str:
    """Return ``BUILD-ID`` of VMCOREINFO, or without it the note in memory.

    Since Linux kernel commit 0935288c6e00 ("kdump: append kernel build-id string to VMCOREINFO")
    (in v5.9).
    """
    vmcoreinfo: bytes = prog["VMCOREINFO"].string_()
    for line in vmcoreinfo.split(b"\n"):
        if line.startswith(b"BUILD-ID="):
            return printable(line[len("BUILD-ID=") :])
    start, stop = (prog.symbol(f"__{end}_notes").address for end in ("start", "stop"))
    read = prog.read(start, min(stop - start, 4096))
    for owner, kind, content in notes(read, is_little=is_little_endian(prog)):
        if (owner, kind) == (b"GNU", NT_GNU_BUILD_ID):
            return content.hex()
    return ""


def boot_id(prog: drgn.Program) -> str:
    """Return a digest that identifies the boot; empty where the kernel has no stack protector.

    Its source is the canary of ``init_task``, which start_kernel() makes first of all from random
    bits; ``sysctl_bootid`` is 0 until a process reads it.
    """
    canary = int(prog["init_task"].stack_canary)
    digest = hashlib.sha256(b"kcensus boot" + canary.to_bytes(8, "little"))
    return digest.hexdigest()[:12] if canary else ""


def _taken_by(kernel: Kernel) -> str:
    prog = kernel.prog
    is_known = is_sound(prog)
    message = panic_message(prog) if is_known else None
    text = printable(message.decode("utf-8", "backslashreplace")) if message else ""
    if _OF_OOPS.search(text) and (function := attempt(lambda: faulting(read_log(kernel).lines))):
        text += f" in {function}"
    # -1 until panic() or crash_kexec() ends the kernel on a CPU, since Linux kernel commit
    # 1717f2096b54 ("panic, x86: Fix re-entrance problem due to panic on NMI") (in v4.5).
    if attempt(lambda: int(prog["panic_cpu"].counter)) == _RUNS:
        has_oops = text or (attempt(lambda: int(prog["tainted_mask"])) or 0) & _TAINT_DIE
        oops = ", after an oops" if has_oops else ""
        return f"{_NO_PANIC}{oops}{': ' if text else ''}{text}"
    if not text:
        return _NO_PANIC if is_known else ""
    by = _text(lambda: panic_task(prog).comm)
    return f"{text} (task {by})" if by else text


def faulting(lines: Iterable[Line]) -> str:
    """Return the function of the first oops in a log; empty without one.

    The message of a panic after an oops often has only the kind of access. Of several, drgn's
    helper returns the first, too.
    """
    near = 0
    for _, line in lines:
        near = _AFTER_OOPS if OOPS.search(line) else near - 1
        if near > 0 and (match := PLACE.search(line)):
            return described(match[1], match[2] or "")
    return ""


def _text(ask: Callable[[], drgn.Object]) -> str:
    return printable((attempt(lambda: ask().string_()) or b"").decode("utf-8", "backslashreplace"))
