# SPDX-License-Identifier: LGPL-2.1-or-later
"""The machine of a kernel, as every output names it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable

import drgn
from drgn.helpers.linux.panic import panic_message, panic_task
from drgn.helpers.linux.timekeeping import ktime_get_real_seconds, uptime

from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.log import is_sound
from kcensus.kernel.mm.vmstat import memory_use
from kcensus.kernel.size import attempt
from kcensus.results import Machine
from kcensus.sources.formats.elf import NT_GNU_BUILD_ID, notes
from kcensus.sources.model import kernel_release
from kcensus.text import printable

_NO_PANIC = "no panic: dumped while the kernel ran"
_WANTED = re.compile("sysrq", re.IGNORECASE)
"""Panics requested by a user."""


@once
def machine(kernel: Kernel) -> Machine:
    """Return the machine of a kernel, without exceptions: unreadable members are unknown."""
    prog = kernel.prog
    if not attempt(lambda: prog.flags & drgn.ProgramFlags.IS_LINUX_KERNEL):
        return Machine()
    taken_by = "" if kernel.live else attempt(lambda: _taken_by(prog)) or ""
    return Machine(
        host=_text(lambda: prog["init_uts_ns"].name.nodename),
        time=attempt(lambda: float(ktime_get_real_seconds(prog))),
        uptime_seconds=attempt(lambda: float(uptime(prog))),
        boot=attempt(lambda: boot_id(prog)) or "",
        ram_bytes=kernel.ram_bytes or None,
        cpus=kernel.size.cpus,
        nodes=kernel.size.nodes,
        kernel=attempt(lambda: kernel_release(prog)) or "",
        version=_text(lambda: prog["init_uts_ns"].name.version),
        build_id=attempt(lambda: _build_id(prog)) or "",
        taken_by=taken_by,
        memory=attempt(lambda: memory_use(prog, kernel.ram_bytes)) or {},
        is_panic=taken_by not in ("", _NO_PANIC) and not _WANTED.search(taken_by),
    )


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
    for owner, kind, content in notes(prog.read(start, min(stop - start, 4096))):
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


def _taken_by(prog: drgn.Program) -> str:
    if not is_sound(prog):
        return ""
    if message := panic_message(prog):
        by = _text(lambda: panic_task(prog).comm)
        text = printable(message.decode("utf-8", "backslashreplace"))
        return f"{text} (task {by})" if by else text
    return _NO_PANIC


def _text(ask: Callable[[], drgn.Object]) -> str:
    return printable((attempt(lambda: ask().string_()) or b"").decode("utf-8", "backslashreplace"))
