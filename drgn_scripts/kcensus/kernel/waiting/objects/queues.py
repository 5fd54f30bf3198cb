# SPDX-License-Identifier: LGPL-2.1-or-later
"""Objects of the wait queues and locks to which stacks of tasks link."""

from __future__ import annotations

import contextlib

import drgn
import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Words
from kcensus.kernel.block.hardware import maps_of_queues
from kcensus.kernel.locking.waiters import entry_link, queues_type
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.waiting.objects.queued import Queued, Shape, queued
from kcensus.kernel.waiting.objects.reading import Reading
from kcensus.sources.capsule import NotRecorded

_LIKE_A_LOCK = "rq_qos_wait"
"""Function whose ``struct rq_qos_wait_data`` has the task at the offset of lock waiters."""
_MAX_REQUEST_LISTS = 2
"""Directions of a legacy queue: asynchronous and synchronous."""
TAGS = "struct sbitmap_queue"
"""Type of the objects of waits for a tag of blk-mq."""


def queues_and_locks(reading: Reading) -> None:
    """Note the objects whose lists of waiters link to the stack of a task."""
    links = reading.links = queued(reading.kernel, reading.known, reading.rows)
    reading.torn += links.torn
    reading.faults += links.faults
    bitmaps, tag_proof = _bitmaps(reading, links)
    for index, lane in enumerate(links.lane.tolist()):
        if reading.object[lane]:
            continue
        owner = _owner(reading, links, index, int(bitmaps[index]))
        if owner is not None:
            object_, kind, type_, proof = owner
            objects = np.array([object_], np.uint64)
            reading.note(np.array([lane]), objects, kind, type_, proof or tag_proof)


def _owner(
    reading: Reading, links: Queued, index: int, bitmap: int
) -> tuple[int, WaitKind, str, str] | None:
    """Return the object with a list of waiters, its kind, type and evidence.

    :return: empty evidence for a bitmap
    :param bitmap: of tags that the task waits for, or 0
    """
    lane, head = int(links.lane[index]), int(links.head[index])
    if not head:
        return None
    prog, facts = reading.kernel.prog, reading.facts[lane]
    function, kind, lock = facts.function, facts.kind, facts.lock
    shape, is_completion = links.shape[index], facts.is_completion
    low = int(reading.known.stack[reading.rows[lane]])
    on_own_stack = low <= head < low + reading.stacks.size
    # The remains of a former wait may still look like a list, if its head was on the stack.
    if (shape is Shape.SIMPLE or on_own_stack) and not is_completion:
        return None
    if shape is Shape.LOCK and not lock and function != _LIKE_A_LOCK:
        return None
    if shape is Shape.LOCK and lock:
        # Since v7.1, and with PREEMPT_RT, locks have no such list: it belongs to no lock.
        if not prog.type(lock).has_member("wait_list"):
            return None
        start = head - drgn.offsetof(prog.type(lock), "wait_list")
        return start, kind, lock, f"{lock.removeprefix('struct ')}.wait_list"
    if shape is Shape.SIMPLE:
        inside = drgn.offsetof(prog.type("struct completion"), "wait.task_list")
        return head - inside, kind, "struct completion", "completion.wait"
    queue = head - _queue_head(prog)
    if function == "get_request":
        legacy = _request_queue(reading, queue)
        if legacy:
            return legacy, WaitKind.TAG, "struct request_queue", "request_list.wait"
    if bitmap:
        return bitmap, WaitKind.TAG, TAGS, ""
    if is_completion:
        inside = drgn.offsetof(prog.type("struct completion"), "wait")
        return queue - inside, kind, "struct completion", "completion.wait"
    if function in reading.queues:
        try:
            found = queue_owner(prog, reading.queues[function], queue)
        except (LookupError, NotRecorded):
            found, type_ = None, reading.queues[function][0]
            reading.missing += [] if type_ in reading.missing else [type_]
        if found is not None:
            address, type_, member = found
            return address, kind, type_, f"{type_.removeprefix('struct ')}.{member}"
    if kind in (WaitKind.FOLIO, WaitKind.BIT):
        # Many pages and words share a queue of a table: the queue is not the object of the wait.
        return None
    return queue, kind, queues_type(prog).type_name(), "wait_queue_entry.entry"


def queue_owner(
    prog: drgn.Program, owner: tuple[str, tuple[str, ...]], queue: int
) -> tuple[int, str, str] | None:
    """Return address, type and member of the object around a wait queue.

    :param owner: its type and the names of its member, as in :data:`Queues`
    :raises LookupError: the debug info lacks the type
    """
    whole = prog.type(owner[0])
    member = next(filter(whole.has_member, owner[1]), "")
    return (queue - drgn.offsetof(whole, member), owner[0], member) if member else None


def _request_queue(reading: Reading, queue: int) -> int:
    """Return the legacy request queue of a wait queue for requests, or 0."""
    prog, memory = reading.kernel.prog, reading.kernel.memory
    with contextlib.suppress(LookupError):
        members, type_ = layout(prog, "struct request_list", ["q"]), "struct request_list"
        own = drgn.offsetof(prog.type("struct request_queue"), "root_rl")
        for direction in range(_MAX_REQUEST_LISTS):
            start = queue - drgn.offsetof(prog.type(type_), f"wait[{direction}]")
            read = gather(memory, np.array([start], np.uint64), members, reading.faults)
            owner = int(read["q"][0])
            # The queue's own request list is a member of it, others belong to its cgroups.
            if owner and start == owner + own:
                return owner
    return 0


def _bitmaps(reading: Reading, links: Queued) -> tuple[Words, str]:
    """Return the bitmap of tags that the task at each link waits for, or 0, and the evidence."""
    bitmaps = np.zeros(len(links.lane), np.uint64)
    facts = [reading.facts[lane] for lane in links.lane.tolist()]
    # Legacy queues have request lists instead.
    is_tag = [
        shape is Shape.QUEUE and each.kind is WaitKind.TAG and each.function != "get_request"
        for shape, each in zip(links.shape, facts, strict=True)
    ]
    some = np.flatnonzero((links.head != 0) & np.array(is_tag, np.bool_))
    if not len(some):
        return bitmaps, ""
    queue = links.head[some] - np.uint64(_queue_head(reading.kernel.prog))
    # Since Linux kernel commit 5d2ee7122c73 ("sbitmap: optimize wakeup check") (in v5.0), a waiter
    # names its bitmap.
    with contextlib.suppress(LookupError):
        bitmaps[some] = _named_bitmaps(reading, links.node[some], queue)
        return bitmaps, "sbq_wait.sbq"
    with contextlib.suppress(LookupError):
        bitmaps[some] = maps_of_queues(reading.kernel, queue)
    return bitmaps, "sbitmap_queue.ws"


def _named_bitmaps(reading: Reading, node: Words, queue: Words) -> Words:
    """Return the bitmap named by each ``struct sbq_wait`` on the wait queues, or 0.

    :raises LookupError: the debug info lacks a type
    """
    prog, memory = reading.kernel.prog, reading.kernel.memory
    wait = prog.type("struct sbq_wait")
    inside = entry_link(prog) + drgn.offsetof(wait, "wait")
    members = layout(prog, wait, ["sbq"])
    bitmap = layout(prog, TAGS, ["ws"])
    state = drgn.sizeof(prog.type("struct sbq_wait_state"))
    owner = gather(memory, node - np.uint64(inside), members, reading.faults)["sbq"]
    first = gather(memory, owner, bitmap, reading.faults)["ws"]
    # SBQ_WAIT_QUEUES is 8.
    holds = (owner != 0) & (queue >= first) & (queue - first < np.uint64(8 * state))
    return np.where(holds, owner, np.uint64(0))


def _queue_head(prog: drgn.Program) -> int:
    head = layout(prog, queues_type(prog), {"next": ("head.next", "task_list.next")})
    return head.fields["next"].offset
