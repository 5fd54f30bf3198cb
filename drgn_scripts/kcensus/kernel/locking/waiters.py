# SPDX-License-Identifier: LGPL-2.1-or-later
"""Waiters on wait queues, completions and semaphores, for many of them at once.

These primitives list their waiters, so they prove the object of a wait without the task's stack.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import drgn
import numpy as np

from kcensus.engine.chase import Damage, Lanes, collect, pointer_step
from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Numbers, Words
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.lists import in_order, list_members

_MAX_WAITERS = 1 << 22
"""Most waiters on one queue: PID_MAX_LIMIT."""


@dataclass(frozen=True)
class Waiters:
    """Waiters as columns, queue by queue, in their order."""

    lane: Lanes
    """Index of the queue of each waiter, ascending."""
    task: Words
    """``struct task_struct *``; for a waiter that is no task, its own private pointer."""
    node: Words
    """Address of the ``list_head`` in the waiter, which is usually on the task's stack."""
    torn: Numbers = field(default_factory=lambda: np.empty(0, np.int64))
    """Queues that could not be followed to their end."""


def queue_waiters(kernel: Kernel, queues: Words, faults: Faults) -> Waiters:
    """Return the waiters on each ``wait_queue_head_t``.

    :raises LookupError: the debug info lacks a type
    """
    prog = kernel.prog
    # Since Linux kernel commit 2055da97389a ("sched/wait: Disambiguate wq_entry->task_list and
    # wq_head->task_list naming") (in v4.13), members have these names; types since then, too.
    head = _member_offset(prog, queues_type(prog), ("head", "task_list"))
    return _listed(kernel, queues + np.uint64(head), entry_type(prog), faults)


def queues_type(prog: drgn.Program) -> drgn.Type:
    """Return ``struct wait_queue_head`` under its name in this kernel."""
    return _first_type(prog, "struct wait_queue_head", "struct __wait_queue_head")


def entry_type(prog: drgn.Program) -> drgn.Type:
    """Return ``struct wait_queue_entry`` under its name in this kernel."""
    return _first_type(prog, "struct wait_queue_entry", "struct __wait_queue")


def entry_link(prog: drgn.Program) -> int:
    """Return the offset of the ``list_head`` in a ``struct wait_queue_entry``."""
    return _member_offset(prog, entry_type(prog), ("entry", "task_list"))


def completion_waiters(kernel: Kernel, completions: Words, faults: Faults) -> Waiters:
    """Return the waiters for each ``struct completion``.

    :raises LookupError: the debug info lacks a type
    """
    prog = kernel.prog
    type_ = prog.type("struct completion")
    wait = completions + np.uint64(drgn.offsetof(type_, "wait"))
    # Since Linux kernel commit a5c6234e1028 ("completion: Use simple wait queues") (in v5.7). Until
    # v4.12, the other queues have a task_list, too.
    if type_.member("wait").type.type_name() == "struct swait_queue_head":
        simple = layout(prog, "struct swait_queue_head", {"next": "task_list.next"})
        heads = wait + np.uint64(simple.fields["next"].offset)
        return _listed(kernel, heads, prog.type("struct swait_queue"), faults)
    return queue_waiters(kernel, wait, faults)


def semaphore_waiters(kernel: Kernel, semaphores: Words, faults: Faults) -> Waiters:
    """Return the waiters for each ``struct semaphore``.

    :raises LookupError: the debug info lacks a type
    """
    prog = kernel.prog
    type_, waiter = prog.type("struct semaphore"), prog.type("struct semaphore_waiter")
    if type_.has_member("wait_list"):
        heads = semaphores + np.uint64(drgn.offsetof(type_, "wait_list"))
        return _listed(kernel, heads, waiter, faults)
    # Since Linux kernel commit b9bdd4b68404 ("locking/semaphore: Remove the list_head from struct
    # semaphore") (in v7.1), the waiters form a ring without a head.
    first = gather(kernel.memory, semaphores, layout(prog, type_, ["first_waiter"]), faults)
    lanes = np.flatnonzero(first["first_waiter"])
    starts = first["first_waiter"][lanes] + np.uint64(drgn.offsetof(waiter, "list"))
    link, damage = layout(prog, "struct list_head", ["next"]), Damage()
    step = pointer_step(kernel.memory, link, "next", faults)
    second = gather(kernel.memory, starts, link, faults)
    lane, node = collect(
        np.where(second.readable, second["next"], np.uint64(0)),
        step,
        limit=_MAX_WAITERS,
        damage=damage,
        ends=starts,
    )
    every = np.concatenate([np.arange(len(lanes)), lane]), np.concatenate([starts, node])
    lane, node = in_order(*every)
    torn = np.concatenate([damage.lanes(), np.flatnonzero(~second.readable)])
    return _read(kernel, lanes[lane], node, waiter, np.unique(lanes[torn]), faults)


def _listed(kernel: Kernel, heads: Words, waiter: drgn.Type, faults: Faults) -> Waiters:
    # Most queues are empty, and an uninitialized head is zero.
    ends = gather(kernel.memory, heads, layout(kernel.prog, "struct list_head", ["next"]), faults)
    used = np.flatnonzero((ends["next"] != heads) & (ends["next"] != 0))
    lane, node, torn = list_members(
        kernel.memory, heads[used], faults, limit=_MAX_WAITERS, verify=not kernel.live
    )
    return _read(kernel, used[lane], node, waiter, used[torn], faults)


def _read(
    kernel: Kernel, lane: Lanes, node: Words, waiter: drgn.Type, torn: Numbers, faults: Faults
) -> Waiters:
    link = _member_offset(kernel.prog, waiter, ("list", "entry", "task_list"))
    members = layout(kernel.prog, waiter, {"task": ("task", "private")})
    read = gather(kernel.memory, node - np.uint64(link), members, faults)
    kept = read.readable
    return Waiters(
        lane=lane[kept],
        task=read["task"][kept],
        node=node[kept],
        torn=np.unique(np.concatenate([torn, lane[~kept]])),
    )


def _first_type(prog: drgn.Program, *names: str) -> drgn.Type:
    for name in names[:-1]:
        try:
            return prog.type(name)
        except LookupError:
            continue
    return prog.type(names[-1])


def _member_offset(prog: drgn.Program, type_: drgn.Type, names: tuple[str, ...]) -> int:
    """Return the offset of the first ``list_head`` with one of the names."""
    members = layout(prog, type_, {"list": tuple(f"{name}.next" for name in names)})
    return members.fields["list"].offset
