# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the functions on a stack say, for stacks that real kernels printed."""

from __future__ import annotations

import pytest

from kcensus.kernel.tasks.functions import WaitKind, entered_by, kind_of, lock_type, waits_in

_STACKS = {
    # 4.19, XFS on CFQ
    "xfs_buf_iowait": (
        "schedule schedule_timeout wait_for_common wait_for_completion xfs_buf_iowait "
        "__xfs_buf_submit xfs_bwrite xfs_reclaim_inode ksys_write __x64_sys_write do_syscall_64",
        WaitKind.XFS_BUF,
        "write",
        "",
    ),
    "xfs_buf_lock": (
        "__schedule schedule schedule_timeout __down_common __down down xfs_buf_lock xfs_buf_find "
        "xfs_buf_get_map xfs_lookup path_openat do_sys_open __x64_sys_openat do_syscall_64",
        WaitKind.XFS_BUF,
        "openat",
        "struct semaphore",
    ),
    "get_request": (
        "__schedule schedule io_schedule get_request blk_queue_bio submit_bio wb_writeback "
        "wb_workfn process_one_work worker_thread kthread ret_from_fork",
        WaitKind.TAG,
        "wb_workfn",
        "",
    ),
    "xfs_reclaim_inodes_ag": (
        "__schedule schedule schedule_preempt_disabled __mutex_lock __mutex_lock_slowpath "
        "mutex_lock xfs_reclaim_inodes_ag super_cache_scan ksys_write __x64_sys_write",
        WaitKind.LOCK,
        "write",
        "struct mutex",
    ),
    # 6.1, XFS on mq-deadline and BFQ
    "blk_mq_get_tag": (
        "__schedule schedule io_schedule blk_mq_get_tag __blk_mq_alloc_requests blk_mq_submit_bio "
        "iomap_dio_bio_iter __iomap_dio_rw iomap_dio_rw vfs_read __x64_sys_pread64",
        WaitKind.TAG,
        "pread64",
        "",
    ),
    "__iomap_dio_rw": (
        "__schedule schedule schedule_timeout io_schedule_timeout __iomap_dio_rw iomap_dio_rw "
        "xfs_file_dio_read vfs_read __x64_sys_pread64 do_syscall_64",
        WaitKind.REQUEST,
        "pread64",
        "",
    ),
    "folio_wait_bit_common": (
        "__schedule schedule io_schedule folio_wait_bit_common filemap_get_pages filemap_read",
        WaitKind.FOLIO,
        "",
        "",
    ),
    "rq_qos_wait": (
        "__schedule schedule io_schedule rq_qos_wait wbt_wait __rq_qos_throttle xfsaild kthread "
        "ret_from_fork",
        WaitKind.THROTTLE,
        "xfsaild",
        "",
    ),
    "path_openat": (
        "__schedule schedule schedule_preempt_disabled rwsem_down_read_slowpath down_read "
        "path_openat do_filp_open do_sys_openat2 __x64_sys_openat do_syscall_64",
        WaitKind.LOCK,
        "openat",
        "struct rw_semaphore",
    ),
    "do_renameat2": (
        "__schedule schedule rwsem_down_write_slowpath.isra.0 do_renameat2 __x64_sys_rename",
        WaitKind.LOCK,
        "rename",
        "struct rw_semaphore",
    ),
    "xfsaild": (
        "__schedule schedule schedule_timeout xfsaild kthread ret_from_fork",
        WaitKind.TIMER,
        "xfsaild",
        "",
    ),
    "wait_for_in_progress": (
        "__schedule schedule io_schedule wait_for_in_progress.part.0 do_origin wb_workfn",
        WaitKind.OTHER,
        "",
        "",
    ),
}


@pytest.mark.parametrize("function", _STACKS)
def test_function_kind_entry_and_lock(function: str) -> None:
    stack, kind, entry, lock = _STACKS[function]
    functions = stack.split()
    assert waits_in(functions) == function
    assert kind_of(functions) is kind
    assert entered_by(functions) == entry
    assert lock_type(functions) == lock


def test_an_unreadable_stack_says_nothing() -> None:
    assert (waits_in([]), entered_by([]), lock_type([])) == ("", "", "")
    assert kind_of([]) is WaitKind.OTHER
    # A stack of primitives alone was cut.
    assert waits_in(["__schedule", "schedule"]) == ""
