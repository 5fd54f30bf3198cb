# SPDX-License-Identifier: LGPL-2.1-or-later
"""The memory cgroups of tasks."""

from __future__ import annotations

from drgn import Object, cast

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Words
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.names import name_at

_MAX_DEPTH = 64
"""Most names of a path."""


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
    node = Object(kernel.prog, "struct cgroup_subsys_state *", value=state).cgroup.kn
    # Since Linux kernel commit 633488947ef6 ("kernfs: Use RCU to access kernfs_node::parent.") (in
    # v6.15), the member is __parent.
    above = (
        "__parent" if kernel.prog.type("struct kernfs_node").has_member("__parent") else "parent"
    )
    names: list[str] = []
    while node.member_(above) and len(names) < _MAX_DEPTH:
        names.append(name_at(cast("char *", node.name)))
        node = node.member_(above)
    return "/" + "/".join(reversed(names))
