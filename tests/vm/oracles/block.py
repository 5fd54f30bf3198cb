# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests and the queues of I/O schedulers, one drgn object at a time."""

from __future__ import annotations

from itertools import chain

import drgn
from drgn import Object, Program, cast
from drgn.helpers.linux.block import disk_name, for_each_disk, req_op, request_queue_busy_iter

from tests.vm.oracles import entries, hardware_queues

Queues = dict[int, list[int]]
"""By address of a queue or list: the requests in it, in order."""


def disk(prog: Program, name: str) -> Object:
    return next(each for each in for_each_disk(prog) if disk_name(each) == name.encode())


def listed(head: Object, link: str = "queuelist") -> list[int]:
    return [int(rq) for rq in entries(head, "struct request", link)]


def tagged(gendisk: Object) -> dict[int, Object]:
    """Return the requests of a blk-mq disk with a tag of the scheduler or the driver."""
    every = [request_queue_busy_iter(gendisk.queue, "driver")]
    if gendisk.queue.elevator:
        every.append(request_queue_busy_iter(gendisk.queue, "sched"))
    return {int(rq): rq for rq in chain(*every) if rq and rq.q == gendisk.queue}


def queues(gendisk: Object) -> Queues:
    readers = {"bfq": _bfq, "mq-deadline": _deadline, "kyber": _kyber}
    elevator = gendisk.queue.elevator
    if not elevator:
        return {}
    found = readers[elevator.type.elevator_name.string_().decode()](gendisk)
    return {address: members for address, members in found.items() if members}


def _bfq(gendisk: Object) -> Queues:
    data = cast("struct bfq_data *", gendisk.queue.elevator.elevator_data)
    lists = [data.active_list]
    if data.active_list.type_.kind == drgn.TypeKind.ARRAY:
        lists = [data.active_list[i] for i in range(int(data.num_actuators))]
    found = [queue for head in lists for queue in entries(head, "struct bfq_queue", "bfqq_list")]
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
    for context in hardware_queues(gendisk.queue):
        data = cast("struct kyber_hctx_data *", context.sched_data)
        for domain, head in enumerate(data.rqs):
            members = listed(head)
            for i in range(int(context.nr_ctx)):
                members += listed(data.kcqs[i].rq_list[domain])
            found[int(head.address_of_())] = members
    return found


def operation(rq: Object) -> str:
    op = req_op(rq)
    names: dict[int, str] = {each.value: each.name for each in op.type_.enumerators}
    return names[op.value_()].removeprefix("REQ_OP_").lower()


def is_sync(rq: Object) -> bool:
    """Return whether a request is synchronous, as ``op_is_sync()`` does."""
    prog = rq.prog_
    bits = sum(1 << prog.constant(f"__REQ_{name}") for name in ("SYNC", "FUA", "PREFLUSH"))
    return operation(rq) == "read" or bool(int(rq.cmd_flags) & bits)


def bios(rq: Object) -> list[Object]:
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
