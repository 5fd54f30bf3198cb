# SPDX-License-Identifier: LGPL-2.1-or-later
"""The slow, obvious way to tell what a task waits for: one drgn object and stack frame at a time.

Nothing here shares code with the readers: stacks are those of drgn's own unwinder, with the debug
info of all modules, and each list of waiters is walked from the object's side.
"""

from __future__ import annotations

from collections.abc import Iterator

import drgn
from drgn import FaultError, Object, Program, StackFrame, cast
from drgn.helpers.linux.block import for_each_disk
from drgn.helpers.linux.list import list_for_each_entry
from drgn.helpers.linux.pid import for_each_task

UNINTERRUPTIBLE, NOLOAD = 2, 0x400

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
    """The state of a task, by either name."""
    return int(task.member_("__state") if hasattr(task, "__state") else task.state)


def sleepers(prog: Program) -> dict[int, Object]:
    """The tasks in state D by PID, without those on a CPU."""
    return {
        int(task.pid): task
        for task in for_each_task(prog)
        if state(task) & UNINTERRUPTIBLE and not state(task) & NOLOAD and not task.on_cpu
    }


def frames(prog: Program, task: Object) -> list[StackFrame]:
    """The frames of a sleeping task in the kernel, the innermost first; inlined ones, too."""
    found = []
    for frame in prog.stack_trace(task):
        if frame.pc < 1 << 63:
            break  # what the task does in user space
        found.append(frame)
    return found


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
    return any(int(each) == int(task) for each in _WAITERS[type_](prog, address))


def _waiters_of_buffer(prog: Program, address: int) -> Iterator[Object]:
    buffer = Object(prog, "struct xfs_buf", address=address)
    yield from _semaphore(buffer.b_sema)
    yield from _completion(buffer.b_iowait)
    yield from _queue(buffer.b_waiters)


def _semaphore(semaphore: Object) -> Iterator[Object]:
    prog = semaphore.prog_
    if hasattr(semaphore, "wait_list"):
        head = semaphore.wait_list.address_of_()
        for waiter in list_for_each_entry("struct semaphore_waiter", head, "list"):
            yield waiter.task
        return
    first = semaphore.first_waiter
    waiter = first
    while waiter:
        yield waiter.task
        waiter = drgn.container_of(waiter.list.next, prog.type("struct semaphore_waiter"), "list")
        if waiter == first:
            return


def _queue(queue: Object) -> Iterator[Object]:
    prog = queue.prog_
    for entry in list_for_each_entry("struct wait_queue_entry", queue.head.address_of_(), "entry"):
        yield cast(prog.type("struct task_struct *"), entry.private)


def _completion(completion: Object) -> Iterator[Object]:
    if hasattr(completion.wait, "task_list"):
        head = completion.wait.task_list.address_of_()
        for entry in list_for_each_entry("struct swait_queue", head, "task_list"):
            yield entry.task
    else:
        yield from _queue(completion.wait)


def _waiters_of_page(prog: Program, address: int) -> Iterator[Object]:
    try:
        table = prog["folio_wait_table"]
    except KeyError:
        table = prog["page_wait_table"]
    for queue in table:
        for entry in list_for_each_entry(
            "struct wait_queue_entry", queue.head.address_of_(), "entry"
        ):
            whole = drgn.container_of(entry, prog.type("struct wait_page_queue"), "wait")
            page = whole.folio if hasattr(whole, "folio") else whole.page
            if int(page) == address:
                yield cast(prog.type("struct task_struct *"), entry.private)


def _waiters_of_direct_io(prog: Program, address: int) -> Iterator[Object]:
    yield Object(prog, "struct iomap_dio", address=address).submit.waiter


def _waiters_of_tags(prog: Program, address: int) -> Iterator[Object]:
    assert address in {int(each) for each in tag_bitmaps(prog)}
    bitmap = Object(prog, "struct sbitmap_queue", address=address)
    for index in range(8):
        yield from _queue(bitmap.ws[index].wait)


def _waiters_of_request_queue(prog: Program, address: int) -> Iterator[Object]:
    queue = Object(prog, "struct request_queue", address=address)
    for wait in queue.root_rl.wait:
        yield from _queue(wait)


def _waiters_of_rwsem(prog: Program, address: int) -> Iterator[Object]:
    lock = Object(prog, "struct rw_semaphore", address=address)
    if hasattr(lock, "wait_list"):
        head = lock.wait_list.address_of_()
        for waiter in list_for_each_entry("struct rwsem_waiter", head, "list"):
            yield waiter.task
        return
    waiter = first = lock.first_waiter
    while waiter:
        yield waiter.task
        waiter = drgn.container_of(waiter.list.next, prog.type("struct rwsem_waiter"), "list")
        if waiter == first:
            return


def _waiters_of_mutex(prog: Program, address: int) -> Iterator[Object]:
    lock = Object(prog, "struct mutex", address=address)
    head = lock.wait_list.address_of_()
    for waiter in list_for_each_entry("struct mutex_waiter", head, "list"):
        yield waiter.task


def _waiters_of_queue(prog: Program, address: int) -> Iterator[Object]:
    queue = Object(prog, "struct wait_queue_head", address=address)
    prog = queue.prog_
    for entry in list_for_each_entry("struct wait_queue_entry", queue.head.address_of_(), "entry"):
        if entry.private:
            yield cast(prog.type("struct task_struct *"), entry.private)
        else:
            # That of rq_qos_wait(), which the task follows.
            yield cast(
                prog.type("struct task_struct *"),
                Object(prog, "unsigned long", address=int(entry) + drgn.sizeof(entry[0])),
            )


def _waiters_of_completion(prog: Program, address: int) -> Iterator[Object]:
    yield from _completion(Object(prog, "struct completion", address=address))


def _waiters_of_semaphore(prog: Program, address: int) -> Iterator[Object]:
    yield from _semaphore(Object(prog, "struct semaphore", address=address))


def _waiters_of_log(prog: Program, address: int) -> Iterator[Object]:
    log = Object(prog, "struct xlog_in_core", address=address)
    yield from _queue(log.ic_force_wait)
    yield from _queue(log.ic_write_wait)


def _waiters_of_flush(prog: Program, address: int) -> Iterator[Object]:
    yield from _queue(Object(prog, "struct xlog", address=address).l_flush_wait)


def _waiters_of_checkpoint(prog: Program, address: int) -> Iterator[Object]:
    cil = Object(prog, "struct xfs_cil", address=address)
    for member in ("xc_push_wait", "xc_commit_wait", "xc_start_wait"):
        if hasattr(cil, member):
            yield from _queue(cil.member_(member))


def _waiters_of_ticket(prog: Program, address: int) -> Iterator[Object]:
    yield Object(prog, "struct xlog_ticket", address=address).t_task


def _waiters_of_bio(prog: Program, address: int) -> Iterator[Object]:
    bio = Object(prog, "struct bio", address=address)
    assert prog.symbol(int(bio.bi_end_io)).name == "blkdev_bio_end_io_simple"
    yield cast(prog.type("struct task_struct *"), bio.bi_private)


_WAITERS = {
    "struct completion": _waiters_of_completion,
    "struct xlog_in_core": _waiters_of_log,
    "struct xfs_cil": _waiters_of_checkpoint,
    "struct xlog": _waiters_of_flush,
    "struct xlog_ticket": _waiters_of_ticket,
    "struct bio": _waiters_of_bio,
    "struct xfs_buf": _waiters_of_buffer,
    "struct folio": _waiters_of_page,
    "struct page": _waiters_of_page,
    "struct iomap_dio": _waiters_of_direct_io,
    "struct sbitmap_queue": _waiters_of_tags,
    "struct request_queue": _waiters_of_request_queue,
    "struct rw_semaphore": _waiters_of_rwsem,
    "struct mutex": _waiters_of_mutex,
    "struct semaphore": _waiters_of_semaphore,
    "struct wait_queue_head": _waiters_of_queue,
}


def tag_bitmaps(prog: Program) -> Iterator[Object]:
    """The bitmaps of tags of all hardware queues, as ``struct sbitmap_queue *``."""
    for disk in for_each_disk(prog):
        queue = disk.queue
        for index in range(int(queue.nr_hw_queues)):
            try:
                hctx = _hardware_queue(prog, queue, index)
                maps = [hctx.tags, hctx.sched_tags]
            except FaultError:
                continue
            for tags in maps:
                if tags:
                    for bitmap in (tags.bitmap_tags, tags.breserved_tags):
                        is_pointer = bitmap.type_.kind == drgn.TypeKind.POINTER
                        yield bitmap if is_pointer else bitmap.address_of_()


def _hardware_queue(prog: Program, queue: Object, index: int) -> Object:
    if hasattr(queue, "hctx_table"):
        from drgn.helpers.linux.xarray import xa_load

        return cast("struct blk_mq_hw_ctx *", xa_load(queue.hctx_table.address_of_(), index))
    return queue.queue_hw_ctx[index]
