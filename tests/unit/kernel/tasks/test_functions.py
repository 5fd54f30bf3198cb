# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the functions on a stack say, for stacks that real kernels printed."""

from __future__ import annotations

import re

import pytest

from kcensus.kernel.tasks.functions import (
    WaitKind,
    entered_by,
    kind_of,
    kinds_by_function,
    lock_type,
    waits_in,
)
from kcensus.kernel.waiting.finders import finders
from kcensus.kernel.waiting.frames import interrupted_in

_STACKS = """
4.19 xfs_buf_iowait XFS_BUF write -
    schedule schedule_timeout wait_for_common wait_for_completion xfs_buf_iowait __xfs_buf_submit
    xfs_bwrite xfs_reclaim_inode ksys_write __x64_sys_write do_syscall_64
4.19 xfs_buf_lock XFS_BUF openat struct semaphore
    __schedule schedule schedule_timeout __down_common __down down xfs_buf_lock xfs_buf_find
    xfs_buf_get_map xfs_lookup path_openat do_sys_open __x64_sys_openat do_syscall_64
4.19 get_request TAG wb_workfn -
    __schedule schedule io_schedule get_request blk_queue_bio submit_bio wb_writeback wb_workfn
    process_one_work worker_thread kthread ret_from_fork
4.19 xfs_reclaim_inodes_ag LOCK write struct mutex
    __schedule schedule schedule_preempt_disabled __mutex_lock __mutex_lock_slowpath mutex_lock
    xfs_reclaim_inodes_ag super_cache_scan ksys_write __x64_sys_write
6.1 blk_mq_get_tag TAG pread64 -
    __schedule schedule io_schedule blk_mq_get_tag __blk_mq_alloc_requests blk_mq_submit_bio
    iomap_dio_bio_iter __iomap_dio_rw iomap_dio_rw vfs_read __x64_sys_pread64
6.1 __iomap_dio_rw REQUEST pread64 -
    __schedule schedule schedule_timeout io_schedule_timeout __iomap_dio_rw iomap_dio_rw
    xfs_file_dio_read vfs_read __x64_sys_pread64 do_syscall_64
6.1 folio_wait_bit_common FOLIO - -
    __schedule schedule io_schedule folio_wait_bit_common filemap_get_pages filemap_read
6.1 rq_qos_wait THROTTLE xfsaild -
    __schedule schedule io_schedule rq_qos_wait wbt_wait __rq_qos_throttle xfsaild kthread
    ret_from_fork
6.1 path_openat LOCK openat struct rw_semaphore
    __schedule schedule schedule_preempt_disabled rwsem_down_read_slowpath down_read path_openat
    do_filp_open do_sys_openat2 __x64_sys_openat do_syscall_64
6.1 do_renameat2 LOCK rename struct rw_semaphore
    __schedule schedule rwsem_down_write_slowpath.isra.0 do_renameat2 __x64_sys_rename
3.10 xfs_flush_inodes OTHER pwrite64 -
    __schedule schedule schedule_timeout __wait_for_common wait_for_completion xfs_flush_inodes
    vfs_write SyS_pwrite64 system_call
6.1 xfsaild TIMER xfsaild -
    __schedule schedule schedule_timeout xfsaild kthread ret_from_fork
6.1 wait_for_in_progress OTHER - -
    __schedule schedule io_schedule wait_for_in_progress.part.0 do_origin wb_workfn
"""
"""The release (4.19 with CFQ, 6.1 with mq-deadline and BFQ; all have XFS), the innermost function,
its kind of wait, the entry, and the lock; below them the stack."""


@pytest.mark.parametrize("line", re.split(r"\n(?=\d)", _STACKS)[1:])
def test_function_kind_entry_and_lock(line: str) -> None:
    head, _, stack = line.partition("\n")
    _, function, kind, entry, lock = (word.replace("-", "") for word in head.split(" ", 4))
    functions = stack.split()
    assert waits_in(functions) == function
    kinds = kinds_by_function(finder.sleeps for finder in finders())
    assert kind_of(functions, kinds) is WaitKind[kind]
    assert entered_by(functions) == entry
    assert lock_type(functions) == lock


def test_what_a_preempted_task_goes_on_in() -> None:
    by_timer = ["__schedule", "preempt_schedule_irq", "asm_sysvec_apic_timer_interrupt"]
    assert interrupted_in([*by_timer, "rcu_reader", "kthread"]) == "rcu_reader"
    old = ["__schedule", "preempt_schedule_irq", "retint_kernel"]
    assert interrupted_in([*old, "__offline_pages", "kthread"]) == "__offline_pages"
    assert interrupted_in(["__schedule", "__cond_resched", "scan_pages.isra.0"]) == "scan_pages"
    assert interrupted_in([]) == ""


def test_an_unreadable_stack_says_nothing() -> None:
    assert (waits_in([]), entered_by([]), lock_type([])) == ("", "", "")
    assert kind_of([], {}) is WaitKind.OTHER
    # A stack of primitives alone was cut.
    assert waits_in(["__schedule", "schedule"]) == ""


def test_each_kind_of_wait_has_words_of_its_own() -> None:
    words = [kind.words for kind in WaitKind]
    assert all(words)
    assert len(set(words)) == len(WaitKind)
