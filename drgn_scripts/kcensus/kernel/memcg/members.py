# SPDX-License-Identifier: LGPL-2.1-or-later
"""The memory cgroups of tasks."""

from __future__ import annotations

from drgn import Object

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Words
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.names import kernfs_path


def states_of(kernel: Kernel, tasks: Words, faults: Faults) -> Words:
    """Return the ``struct cgroup_subsys_state`` of memory of each task; 0 if unknown.

    :param tasks: ``struct task_struct *``
    :raises LookupError: the kernel has no memory cgroups, or the debug info lacks a type
    """
    prog = kernel.prog
    number = int(prog.constant("memory_cgrp_id"))
    sets = gather(kernel.memory, tasks, layout(prog, "struct task_struct", ["cgroups"]), faults)
    word = layout(prog, "struct css_set", {"state": f"subsys[{number}]"})
    return gather(kernel.memory, sets["cgroups"], word, faults)["state"]


def path_of(kernel: Kernel, state: int) -> str:
    """Return the path of the cgroup of a state; Unicode, not safe to print.

    :raises LookupError: the debug info lacks a type
    :raises drgn.FaultError: a part is not in the dump
    """
    css = Object(kernel.prog, "struct cgroup_subsys_state *", value=state)
    return kernfs_path(css.cgroup.kn)
