# SPDX-License-Identifier: LGPL-2.1-or-later
"""The machine that a kernel runs on, as every output names it."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable

import drgn
from drgn.helpers.linux.panic import panic_message, panic_task
from drgn.helpers.linux.timekeeping import ktime_get_real_seconds, uptime

from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.log import is_sound
from kcensus.kernel.mm.memory_use import memory_use
from kcensus.kernel.size import attempt
from kcensus.results import Machine
from kcensus.sources.model import kernel_release
from kcensus.text import printable

_NO_PANIC = "no panic: dumped while the kernel ran"
_WANTED = re.compile("sysrq", re.IGNORECASE)
"""Panics that a user asked for."""


@once
def machine(kernel: Kernel) -> Machine:
    """Return the machine of a kernel; raises nothing, what is unreadable is unknown."""
    prog = kernel.prog
    if not attempt(lambda: prog.flags & drgn.ProgramFlags.IS_LINUX_KERNEL):
        return Machine()
    name = attempt(lambda: prog["init_uts_ns"].name)
    taken_by = "" if kernel.live else attempt(lambda: _taken_by(prog)) or ""
    return Machine(
        host=_text(lambda: name.nodename) if name is not None else "",
        time=attempt(lambda: float(ktime_get_real_seconds(prog))),
        uptime_seconds=attempt(lambda: float(uptime(prog))),
        boot=attempt(lambda: boot_id(prog)) or "",
        ram_bytes=kernel.ram_bytes or None,
        cpus=kernel.size.cpus,
        nodes=kernel.size.nodes,
        kernel=attempt(lambda: kernel_release(prog)) or "",
        version=_text(lambda: name.version) if name is not None else "",
        build_id=attempt(lambda: _build_id(prog)) or "",
        taken_by=taken_by,
        memory=attempt(lambda: memory_use(prog, kernel.ram_bytes)) or {},
        is_panic=taken_by not in ("", _NO_PANIC) and not _WANTED.search(taken_by),
    )


def _build_id(prog: drgn.Program) -> str:
    """Return ``BUILD-ID`` of VMCOREINFO; where it lacks that, the one that is loaded as a note.

    Since Linux kernel commit 0935288c6e00 ("kdump: append kernel build-id string to VMCOREINFO")
    (in v5.9).
    """
    vmcoreinfo: bytes = prog["VMCOREINFO"].string_()
    for line in vmcoreinfo.split(b"\n"):
        if line.startswith(b"BUILD-ID="):
            return printable(line[len("BUILD-ID=") :])
    start, stop = (prog.symbol(f"__{end}_notes").address for end in ("start", "stop"))
    notes = prog.read(start, min(stop - start, 4096))
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<3I", notes, at)
        text = at + 12 + (name_size + 3) // 4 * 4
        if kind == 3 and notes[at + 12 : at + 16] == b"GNU\0":  # NT_GNU_BUILD_ID
            digits: str = notes[text : text + size].hex()
            return digits
        at = text + (size + 3) // 4 * 4
    return ""


def boot_id(prog: drgn.Program) -> str:
    """Return what identifies the boot; empty where the kernel has no stack protector.

    That is a digest of the canary of ``init_task``, which start_kernel() makes from random bits
    before anything else runs. The random boot ID (``sysctl_bootid``) would do as well, but is 0
    until the first process reads it.
    """
    canary = int(prog["init_task"].stack_canary)
    digest = hashlib.sha256(b"kcensus boot" + canary.to_bytes(8, "little"))
    return digest.hexdigest()[:12] if canary else ""


def _taken_by(prog: drgn.Program) -> str:
    """Return the panic message, or how else the dump came to be."""
    if not is_sound(prog):
        return ""
    if message := panic_message(prog):
        task = attempt(lambda: panic_task(prog))
        by = _text(lambda: task.comm) if task is not None and task else ""
        text = printable(message.decode("utf-8", "backslashreplace"))
        return f"{text} (task {by})" if by else text
    return _NO_PANIC


def _text(ask: Callable[[], drgn.Object]) -> str:
    return printable((attempt(lambda: ask().string_()) or b"").decode("utf-8", "backslashreplace"))
