# SPDX-License-Identifier: LGPL-2.1-or-later
"""The memory cgroups of tasks."""

from __future__ import annotations

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Words
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.memcg.memcgs import memcgs


def paths_of(kernel: Kernel, tasks: Words, faults: Faults) -> list[str]:
    """Return the path of the memory cgroup of each task; empty if unknown.

    :param tasks: ``struct task_struct *``
    :return: Unicode, not safe to print
    :raises LookupError: the kernel has no memory cgroups, or the debug info lacks a type
    """
    prog, groups = kernel.prog, memcgs(kernel)
    number = int(prog.constant("memory_cgrp_id"))
    sets = gather(kernel.memory, tasks, layout(prog, "struct task_struct", ["cgroups"]), faults)
    # A cgroup_subsys_state is the first member of a mem_cgroup.
    word = layout(prog, "struct css_set", {"state": f"subsys[{number}]"})
    state = gather(kernel.memory, sets["cgroups"], word, faults)["state"]
    return [groups.path[row] if row >= 0 else "" for row in groups.rows(state).tolist()]
