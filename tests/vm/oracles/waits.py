# SPDX-License-Identifier: LGPL-2.1-or-later
"""The slow, obvious way to tell what a task waits for: one drgn object and stack frame at a time.

Stacks are those of drgn's own unwinder, with the debug info of all modules; lists of waiters are
walked from the object's side.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, takewhile

import drgn
from drgn import FaultError, Object, Program, StackFrame, cast
from drgn.helpers.linux.block import for_each_disk
from drgn.helpers.linux.pid import for_each_task

from tests.vm.oracles import entries, hardware_queues

UNINTERRUPTIBLE, NOLOAD = 2, 0x400
_PAGE, _STACK = 4096, 4 * 4096
"""Bytes of a page, and of a stack."""

_VARIABLES = {
    # function: (variable, type of what it points to)
    "xfs_buf_lock": ("bp", "struct xfs_buf"),
    "xfs_buf_iowait": ("bp", "struct xfs_buf"),
    "__xfs_buf_submit": ("bp", "struct xfs_buf"),
    "folio_wait_bit_common": ("folio", "struct folio"),
    "wait_on_page_bit_common": ("page", "struct page"),
    "__iomap_dio_rw": ("dio", "struct iomap_dio"),
    "iomap_dio_rw": ("dio", "struct iomap_dio"),
}


def state(task: Object) -> int:
    return int(task.member_("__state") if hasattr(task, "__state") else task.state)


def sleepers(prog: Program) -> dict[int, Object]:
    return {
        int(task.pid): task
        for task in for_each_task(prog)
        if state(task) & UNINTERRUPTIBLE and not state(task) & NOLOAD and not task.on_cpu
    }


def frames(prog: Program, task: Object) -> list[StackFrame]:
    """The frames of a sleeping task in the kernel, the innermost first; inlined ones, too."""
    return [*takewhile(lambda frame: frame.pc >> 63, prog.stack_trace(task))]


def places(prog: Program, task: Object) -> list[int]:
    """Where the functions of a sleeping task go on, without inlined ones."""
    return [frame.pc for frame in frames(prog, task) if not frame.is_inline]


def named(prog: Program, task: Object) -> tuple[str, int] | None:
    """The type and address of what the innermost known function of a task waits for.

    None where the compiler has optimized the variable away.
    """
    for frame in frames(prog, task):
        if frame.name in _VARIABLES:
            variable, type_ = _VARIABLES[frame.name]
            try:
                value = frame[variable]
            except KeyError:
                return None
            return None if value.absent_ else (type_, int(value))
    return None


def is_waiter(prog: Program, type_: str, address: int, task: Object) -> bool:
    """Whether a task is among those that an object says wait for it."""
    return any(each == task for each in waiters(Object(prog, type_, address=address)))


def waiters(thing: Object) -> Iterable[Object]:
    return _WAITERS[f"struct {thing.type_.tag}"](thing)


def _lock(lock: Object) -> Iterator[Object]:
    kind = lock.type_.tag.replace("rw_semaphore", "rwsem")
    waiter_type = lock.prog_.type(f"struct {kind}_waiter")
    if hasattr(lock, "wait_list"):
        for waiter in entries(lock.wait_list, waiter_type, "list"):
            yield waiter.task
        return
    waiter = first = lock.first_waiter
    while waiter:
        yield waiter.task
        waiter = drgn.container_of(waiter.list.next, waiter_type, "list")
        if waiter == first:
            return


def _queue(queue: Object) -> Iterator[Object]:
    task_type = queue.prog_.type("struct task_struct *")
    for entry in entries(queue.head, "struct wait_queue_entry", "entry"):
        if entry.private:
            yield cast(task_type, entry.private)
        else:
            # That of rq_qos_wait(), which the task follows.
            yield Object(queue.prog_, task_type, address=int(entry) + drgn.sizeof(entry[0]))


def _completion(completion: Object) -> Iterator[Object]:
    if hasattr(completion.wait, "task_list"):
        for entry in entries(completion.wait.task_list, "struct swait_queue", "task_list"):
            yield entry.task
    else:
        yield from _queue(completion.wait)


def _page(page: Object) -> Iterator[Object]:
    prog = page.prog_
    for queue in prog["folio_wait_table" if "folio_wait_table" in prog else "page_wait_table"]:
        for entry in entries(queue.head, "struct wait_queue_entry", "entry"):
            whole = drgn.container_of(entry, prog.type("struct wait_page_queue"), "wait")
            if (whole.folio if hasattr(whole, "folio") else whole.page) == page.address_of_():
                yield cast(prog.type("struct task_struct *"), entry.private)


def _tags(bitmap: Object) -> Iterator[Object]:
    assert bitmap.address_ in {int(each) for each in _tag_bitmaps(bitmap.prog_)}
    return chain.from_iterable(_queue(bitmap.ws[index].wait) for index in range(8))


def _checkpoint(cil: Object) -> Iterator[Object]:
    names = ("xc_push_wait", "xc_commit_wait", "xc_start_wait")
    return chain.from_iterable(_queue(cil.member_(name)) for name in names if hasattr(cil, name))


def _bio(bio: Object) -> Iterator[Object]:
    prog = bio.prog_
    assert prog.symbol(int(bio.bi_end_io)).name == "blkdev_bio_end_io_simple"
    yield cast(prog.type("struct task_struct *"), bio.bi_private)


def _dirty(domain: Object) -> Iterator[Object]:
    """Yield the tasks whose stacks name a device's flusher: no list has those of this limit."""
    prog = domain.prog_
    assert domain.address_ == prog["global_wb_domain"].address_
    devices = entries(prog["bdi_list"], "struct backing_dev_info", "bdi_list")
    return _named_by(prog, {int(device.wb.address_of_()) for device in devices})


def _named_by(prog: Program, flushers: set[int]) -> Iterator[Object]:
    for task in for_each_task(prog):
        if flushers & set(_stack(task)):
            yield task


def _stack(task: Object) -> Iterator[int]:
    for page in range(int(task.stack), int(task.stack) + _STACK, _PAGE):
        try:
            yield from struct.unpack(f"<{_PAGE // 8}Q", task.prog_.read(page, _PAGE))
        except FaultError:
            continue  # a capsule has the used pages


_WAITERS: dict[str, Callable[[Object], Iterable[Object]]] = {
    "struct completion": _completion,
    "struct xlog_in_core": lambda log: chain(_queue(log.ic_force_wait), _queue(log.ic_write_wait)),
    "struct xfs_cil": _checkpoint,
    "struct xlog": lambda log: _queue(log.l_flush_wait),
    "struct xlog_ticket": lambda ticket: [ticket.t_task],
    "struct bio": _bio,
    "struct xfs_buf": lambda buffer: chain(
        _lock(buffer.b_sema), _completion(buffer.b_iowait), _queue(buffer.b_waiters)
    ),
    "struct folio": _page,
    "struct page": _page,
    "struct iomap_dio": lambda dio: [dio.submit.waiter],
    "struct sbitmap_queue": _tags,
    "struct request_queue": lambda queue: chain.from_iterable(map(_queue, queue.root_rl.wait)),
    "struct rw_semaphore": _lock,
    "struct mutex": _lock,
    "struct semaphore": _lock,
    "struct dm_snapshot": lambda snapshot: (
        _lock(snapshot.cow_count)
        if hasattr(snapshot, "cow_count")
        else _queue(snapshot.in_progress_wait)
    ),
    "struct wait_queue_head": _queue,
    "struct backing_dev_info": lambda device: _queue(device.wb_waitq),
    "struct wb_domain": _dirty,
    "struct bdi_writeback": lambda flusher: _named_by(flusher.prog_, {flusher.address_}),
    "struct ioc_gq": lambda group: _queue(group.waitq),
}


def _tag_bitmaps(prog: Program) -> Iterator[Object]:
    """Yield the bitmaps of tags of all hardware queues, as ``struct sbitmap_queue *``."""
    for disk in for_each_disk(prog):
        for hctx in hardware_queues(disk.queue):
            try:
                maps = [each for each in (hctx.tags, hctx.sched_tags) if each]
            except FaultError:
                continue
            for tags in maps:
                for bitmap in (tags.bitmap_tags, tags.breserved_tags):
                    is_pointer = bitmap.type_.kind == drgn.TypeKind.POINTER
                    yield bitmap if is_pointer else bitmap.address_of_()
