# SPDX-License-Identifier: LGPL-2.1-or-later
"""Victims of the OOM killer that cannot end: they sleep in state D."""

from __future__ import annotations

import numpy as np

from kcensus.arch import architecture_of
from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Numbers
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.tasks import tasks

_OOM_SKIP = np.uint64(1 << 21)
"""MMF_OOM_SKIP, a macro, since v4.9 (commit not verified): the victim's memory is reaped."""


def victims(kernel: Kernel, faults: Faults) -> Numbers:
    """Return the rows of tasks that the OOM killer has killed, and that sleep in state D.

    Victims whose memory the OOM reaper has freed are left out: no task waits for their end.

    :raises LookupError: the debug info lacks a type
    """
    prog, memory, known = kernel.prog, kernel.memory, tasks(kernel)
    blocked = np.flatnonzero(known.is_blocked & ~known.has_exited)
    task = layout(prog, "struct task_struct", ["signal"], {"flags": "thread_info.flags"})
    read = gather(memory, known.address[blocked], task, faults)
    # Since Linux kernel commit 26db62f179d1 ("oom: keep mm of the killed task available") (in
    # v4.10). Before, only a flag of the thread marks a victim.
    if not prog.type("struct signal_struct").has_member("oom_mm"):
        flags = read.columns.get("flags", np.zeros(len(blocked), np.uint64))
        arch = architecture_of(prog.platform)
        if arch is None or arch.memdie is None:
            return blocked[:0]
        mark = np.uint64(1 << arch.memdie)
        return np.asarray(blocked[(flags.astype(np.uint64) & mark) != 0])
    signal = layout(prog, "struct signal_struct", ["oom_mm"])
    spaces = gather(memory, read["signal"], signal, faults)["oom_mm"]
    is_victim = spaces != 0
    # Since Linux kernel commit bb6525f2f8c4 ("mm: add bitmap mm->flags field") (in v6.18).
    space = layout(prog, "struct mm_struct", {"flags": ("flags.__mm_flags[0]", "flags")})
    words = gather(memory, spaces[is_victim], space, faults)["flags"].astype(np.uint64)
    return np.asarray(blocked[is_victim][(words & _OOM_SKIP) == 0])
