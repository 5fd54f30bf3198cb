# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests and the queues of I/O schedulers, one drgn object at a time.

Nothing here shares code with the package.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

import drgn
from drgn import Object, Program, cast
from drgn.helpers.linux.block import (
    disk_name,
    for_each_disk,
    req_op,
    request_queue_busy_iter,
)
from drgn.helpers.linux.cpumask import for_each_possible_cpu
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.percpu import per_cpu_ptr
from drgn.helpers.linux.rbtree import rbtree_inorder_for_each_entry
from drgn.helpers.linux.slab import find_slab_cache, slab_cache_for_each_allocated_object
from drgn.helpers.linux.xarray import xa_for_each

Queues = dict[int, list[int]]
"""By address of a queue or list: the requests in it, in order."""


def disk(prog: Program, name: str) -> Object:
    """Return the ``struct gendisk *`` of a name."""
    return next(each for each in for_each_disk(prog) if disk_name(each) == name.encode())


def listed(head: Object, link: str = "queuelist") -> list[int]:
    """Return the addresses of the requests on a list."""
    return [int(rq) for rq in list_for_each_entry("struct request", head.address_of_(), link)]


def tagged(gendisk: Object) -> dict[int, Object]:
    """Return the requests of a blk-mq disk with a tag of the scheduler or the driver."""
    found = {}
    every = [request_queue_busy_iter(gendisk.queue, "driver")]
    if gendisk.queue.elevator:
        every.append(request_queue_busy_iter(gendisk.queue, "sched"))
    for rq in itertools.chain(*every):
        if rq and rq.q == gendisk.queue:
            found[int(rq)] = rq
    return found


def single(gendisk: Object) -> dict[int, Object]:
    """Return the requests of a legacy disk whose driver keeps its data behind each request."""
    prog, queue = gendisk.prog_, gendisk.queue
    groups = list_for_each_entry("struct blkcg_gq", queue.blkg_list.address_of_(), "q_node")
    lists = {int(group.rl.address_of_()): group.rl for group in groups}
    lists[int(queue.root_rl.address_of_())] = queue.root_rl
    spare = {
        int(pool.elements[i])
        for pool in (rl.rq_pool for rl in lists.values())
        if pool
        for i in range(int(pool.curr_nr))
    }
    cache = find_slab_cache(prog, "kmalloc-1024")
    found = {}
    for rq in slab_cache_for_each_allocated_object(cache, "struct request"):
        if rq.q == queue and int(rq.rl) in lists and int(rq) not in spare:
            found[int(rq)] = rq
    return found


def hardware(queue: Object) -> Iterator[Object]:
    """Yield the ``struct blk_mq_hw_ctx *`` of a queue."""
    if hasattr(queue, "hctx_table"):
        for _, entry in xa_for_each(queue.hctx_table.address_of_()):
            yield cast("struct blk_mq_hw_ctx *", entry)
    else:
        yield from queue.queue_hw_ctx[: int(queue.nr_hw_queues)]


def software_lists(gendisk: Object) -> list[int]:
    """Return the requests in the software queues."""
    found = []
    for cpu in for_each_possible_cpu(gendisk.prog_):
        context = per_cpu_ptr(gendisk.queue.queue_ctx, cpu)
        lists = context.rq_lists if hasattr(context, "rq_lists") else [context.rq_list]
        for head in lists:
            found += listed(head)
    return found


def queues(gendisk: Object) -> Queues:
    """Return the queues of the disk's scheduler that have requests."""
    readers = {
        "cfq": _cfq,
        "bfq": _bfq,
        "mq-deadline": _deadline,
        "kyber": _kyber,
    }
    elevator = gendisk.queue.elevator
    if not elevator:
        return {}
    found = readers[elevator.type.elevator_name.string_().decode()](gendisk)
    return {address: members for address, members in found.items() if members}


def _cfq(gendisk: Object) -> Queues:
    data = cast("struct cfq_data *", gendisk.queue.elevator.elevator_data)
    found = {}
    groups = rbtree_inorder_for_each_entry(
        "struct cfq_group", data.grp_service_tree.rb.rb_root.address_of_(), "rb_node"
    )
    for group in groups:
        trees = [group.service_tree_idle]
        trees += [group.service_trees[i][j] for i in range(2) for j in range(3)]
        for tree in trees:
            root = tree.rb.rb_root.address_of_()
            for queue in rbtree_inorder_for_each_entry("struct cfq_queue", root, "rb_node"):
                found[int(queue)] = listed(queue.fifo)
    return found


def _bfq(gendisk: Object) -> Queues:
    data = cast("struct bfq_data *", gendisk.queue.elevator.elevator_data)
    lists = [data.active_list]
    if data.active_list.type_.kind == drgn.TypeKind.ARRAY:
        lists = [data.active_list[i] for i in range(int(data.num_actuators))]
    found = [
        queue
        for head in lists
        for queue in list_for_each_entry("struct bfq_queue", head.address_of_(), "bfqq_list")
    ]
    if data.in_service_queue:
        found.append(data.in_service_queue)
    return {int(queue): listed(queue.fifo) for queue in found}


def _deadline(gendisk: Object) -> Queues:
    prog = gendisk.prog_
    pointer = prog.pointer_type(prog.type("struct deadline_data", "mq-deadline.c"))
    data = cast(pointer, gendisk.queue.elevator.elevator_data)
    parts = [data.per_prio[i] for i in range(3)] if hasattr(data, "per_prio") else [data]
    heads = [part.fifo_list[way] for part in parts for way in range(2)]
    return {int(head.address_of_()): listed(head) for head in heads}


def _kyber(gendisk: Object) -> Queues:
    found = {}
    for context in hardware(gendisk.queue):
        data = cast("struct kyber_hctx_data *", context.sched_data)
        for domain, head in enumerate(data.rqs):
            members = listed(head)
            for i in range(int(context.nr_ctx)):
                members += listed(data.kcqs[i].rq_list[domain])
            found[int(head.address_of_())] = members
    return found


def operations(found: dict[int, Object]) -> Counter[tuple[str, bool]]:
    """Count requests by operation, and whether they are synchronous."""
    return Counter((operation(rq), is_sync(rq)) for rq in found.values())


def operation(rq: Object) -> str:
    """Return the name of an operation in lower case."""
    op = req_op(rq)
    names: Iterator[str] = (
        each.name.removeprefix("REQ_OP_").lower()
        for each in op.type_.enumerators
        if each.value == op.value_()
    )
    return next(names)


def is_sync(rq: Object) -> bool:
    """Return whether a request is synchronous, as ``op_is_sync()`` does."""
    prog = rq.prog_
    bits = sum(1 << prog.constant(f"__REQ_{name}") for name in ("SYNC", "FUA", "PREFLUSH"))
    return operation(rq) == "read" or bool(int(rq.cmd_flags) & bits)


def bios(rq: Object) -> list[Object]:
    """Return the bios of a request."""
    found, bio = [], rq.bio
    while bio:
        found.append(bio)
        bio = bio.bi_next
    return found


def origin(bio: Object) -> Object:
    """Return the bio that device mapper cloned, or that was split, to make this one."""
    prog = bio.prog_
    while True:
        name = prog.symbol(int(bio.bi_end_io)).name
        if name == "bio_chain_endio":
            bio = cast("struct bio *", bio.bi_private)
        elif name == "clone_endio":
            bio = drgn.container_of(bio, "struct dm_target_io", "clone").io.orig_bio
        else:
            return bio


def pages(bio: Object) -> set[int]:
    """Return the pages that a bio has still to read or write."""
    size = int(bio.bi_iter.bi_size)
    index = int(bio.bi_iter.bi_idx)
    old = hasattr(bio.bi_iter, "bi_bvec_done")
    done = int(bio.bi_iter.bi_bvec_done if old else bio.bi_iter.bi_offset)
    found: set[int] = set()
    while size > 0:
        vector = bio.bi_io_vec[index]
        length = min(int(vector.bv_len) - done, size)
        start = int(vector.bv_offset) + done
        for number in range(start >> 12, (start + length - 1 >> 12) + 1):
            found.add(int(vector.bv_page + number))
        size, done, index = size - length, 0, index + 1
    return found
