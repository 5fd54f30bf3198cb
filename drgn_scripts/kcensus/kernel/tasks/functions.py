# SPDX-License-Identifier: LGPL-2.1-or-later
"""Waits of sleeping tasks, by the functions on their stacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import takewhile

from kcensus.arch import KNOWN


class WaitKind(Enum):
    """Kind of a task's wait: its name in tables, and its words in sentences."""

    words: str

    XFS_BUF = "xfs_buf", "a buffer of XFS"
    """A metadata buffer of XFS: its lock, its I/O, or until it is unpinned."""
    FOLIO = "folio", "a page"
    """A bit of a page or folio: its lock, or writeback."""
    BIT = "bit", "a bit"
    """A bit of another word, such as a buffer head's or an inode's."""
    TAG = "tag", "a free tag or request"
    """A tag of blk-mq, or a free request of a legacy queue."""
    LOG = "log", "the log of a file system"
    """A file system's log or journal."""
    REQUEST = "request", "submitted I/O"
    """I/O submitted by the task itself: direct I/O, or a bio."""
    THROTTLE = "throttle", "write throttling"
    """Permission to write more: writeback throttling, I/O control, or dirty page limits."""
    MEMORY = "memory", "free memory"
    """Free memory: of a memory cgroup, or of the machine."""
    LOCK = "lock", "a lock"
    """A mutex, an rwsem or a semaphore."""
    PIPE = "pipe", "a pipe"
    """The other end of a pipe or FIFO."""
    TIMER = "timer", "time"
    """Time: no object keeps the task."""
    OTHER = "other", "an object of another kind"

    def __new__(cls, value: str, words: str) -> WaitKind:
        kind = object.__new__(cls)
        kind._value_, kind.words = value, words
        return kind


_PRIMITIVE_NAMES = """
    __schedule schedule __schedule_loop schedule_preempt_disabled schedule_timeout
    schedule_hrtimeout schedule_timeout_uninterruptible schedule_timeout_killable
    schedule_timeout_idle schedule_hrtimeout_range schedule_hrtimeout_range_clock schedule_rtlock
    io_schedule io_schedule_timeout io_schedule_prepare blk_io_schedule preempt_schedule_common
    __cond_resched preempt_schedule_irq
    __wait_for_common wait_for_common do_wait_for_common wait_for_common_io wait_for_completion
    wait_for_completion_io wait_for_completion_timeout wait_for_completion_io_timeout
    wait_for_completion_killable wait_for_completion_state
    __down __down_common ___down_common __down_killable __down_timeout __down_interruptible down
    down_killable down_timeout
    __mutex_lock __mutex_lock_common __mutex_lock_slowpath mutex_lock mutex_lock_io __mutex_lock_io
    __mutex_lock_killable_slowpath mutex_lock_killable __mutex_lock_interruptible_slowpath
    mutex_lock_interruptible __ww_mutex_lock ww_mutex_lock
    rwsem_down_read_slowpath rwsem_down_write_slowpath __rwsem_down_read_failed_common
    __rwsem_down_write_failed_common rwsem_down_read_failed rwsem_down_write_failed
    rwsem_down_read_failed_killable rwsem_down_write_failed_killable call_rwsem_down_read_failed
    call_rwsem_down_write_failed call_rwsem_down_read_failed_killable
    call_rwsem_down_write_failed_killable down_read down_write __down_read __down_write
    down_read_killable down_write_killable __down_read_killable __down_write_killable
    __down_read_common __down_write_common down_read_nested down_write_nested
    down_write_killable_nested
    rt_mutex_schedule rt_mutex_slowlock_block __rt_mutex_slowlock __rt_mutex_slowlock_locked
    rt_mutex_slowlock __rt_mutex_lock rt_mutex_lock rwbase_rtmutex_lock_state rwbase_schedule
    __rwbase_read_lock rwbase_read_lock rwbase_write_lock rtlock_slowlock_locked rtlock_slowlock
    rt_spin_lock rt_read_lock rt_write_lock
    bit_wait bit_wait_io bit_wait_timeout bit_wait_io_timeout __wait_on_bit __wait_on_bit_lock
    out_of_line_wait_on_bit out_of_line_wait_on_bit_lock out_of_line_wait_on_bit_timeout wait_on_bit
    wait_on_bit_io
"""
"""Functions of wake-ups, completions, semaphores, mutexes, rwsems, rt_mutexes (all locks of
PREEMPT_RT), and bits, a line or more each."""
_PRIMITIVES = frozenset(_PRIMITIVE_NAMES.split()).union(*(each.switches for each in KNOWN))
"""Functions that sleep for any caller."""

_MUTEX, _RWSEM, _SEMAPHORE = "struct mutex", "struct rw_semaphore", "struct semaphore"
_LOCKS = {"mutex": _MUTEX, "ww_mutex": _MUTEX, "rwsem": _RWSEM, "down": _SEMAPHORE}

_RW_LOCKS, RW_LOCK = frozenset({"rt_read_lock", "rt_write_lock"}), "struct rwbase_rt"
"""Functions of rwlocks, which sleep with PREEMPT_RT, in the functions of its rwsems, and the first
member of an rwlock, whose own type has no name."""

_FLUSHES = frozenset(["__flush_workqueue", "flush_workqueue", "__flush_work", "flush_work"])
"""Functions that wait for work items of their caller."""

_WITHOUT_OBJECT = {
    WaitKind.THROTTLE: """
        rq_qos_wait wbt_wait ioc_rqos_throttle iolatency_throttle blkcg_iolatency_throttle
        blkcg_maybe_throttle_current balance_dirty_pages
        """,
    WaitKind.TIMER: "msleep usleep_range usleep_range_state xfsaild",
}
"""Functions that wait for permission to write, or for time; finders name those that wait for their
objects."""
ON_TIMERS = frozenset(
    ["msleep", "usleep_range", "usleep_range_state", "xfsaild", "balance_dirty_pages"]
)
"""Functions that sleep until a timer fires, whatever else happens."""
_SYSCALLS = tuple(prefix for each in KNOWN for prefix in each.syscalls)
# Up to v4.16, SYSCALL_DEFINE() made an alias of each: ``SyS_``.
_ENTRIES = (*_SYSCALLS, "__se_sys_", "__do_sys_", "ksys_", "sys_", "SyS_", "compat_SyS_")
_THREADS = frozenset({"kthread", "ret_from_fork", "ret_from_fork_asm", "kernel_thread_helper"})


def plain(name: str) -> str:
    """Return the name of a function in the source, without suffixes such as ``.isra.0``."""
    return name.split(".")[0]


def common(name: str) -> str:
    """Return the name of a function as on all architectures: ``sys_…`` for a system call."""
    prefix = next((each for each in _SYSCALLS if name.startswith(each)), "")
    return f"sys_{name.removeprefix(prefix)}" if prefix else name


def waits_in(functions: Sequence[str]) -> str:
    """Return the innermost function of a sleeping task that is not in :data:`_PRIMITIVES`.

    :param functions: the innermost first
    """
    names = (plain(name) for name in functions)
    return next((name for name in names if name not in _PRIMITIVES), "")


def entered_by(functions: Sequence[str]) -> str:
    """Return the system call of a task, or the function of its thread or work item.

    :param functions: the innermost first
    """
    names = [plain(name) for name in functions]
    for name in reversed(names):
        for prefix in _ENTRIES:
            if name.startswith(prefix):
                return name.removeprefix(prefix)
    if "process_one_work" in names[1:]:
        return names[names.index("process_one_work") - 1]
    threads = [at for at, name in enumerate(names) if name in _THREADS]
    return names[threads[0] - 1] if threads and threads[0] else ""


def kinds_by_function(named: Iterable[Mapping[WaitKind, str]] = ()) -> dict[str, WaitKind]:
    """Return the kind of wait of functions, by name.

    :param named: functions that wait for objects, by kind, separated by spaces
    """
    every = (*named, _WITHOUT_OBJECT)
    pairs = ((kind, names) for each in every for kind, names in each.items())
    return {name: kind for kind, names in pairs for name in names.split()}


def kind_of(functions: Sequence[str], kinds: Mapping[str, WaitKind]) -> WaitKind:
    """Return the kind of a task's wait, by the usual object of the functions on its stack.

    It is no proof.

    :param functions: the innermost first
    :param kinds: kinds of wait by function, of :func:`kinds_by_function`
    """
    function = waits_in([name for name in functions if plain(name) not in _FLUSHES])
    # A system call for direct I/O that allocates a request waits for a tag, not for its I/O.
    if function in kinds:
        return kinds[function]
    if lock_type(functions):
        return WaitKind.LOCK
    return WaitKind.OTHER


def lock_type(functions: Sequence[str]) -> str:
    """Return the type of the lock that a task waits for; empty without one.

    :param functions: the innermost first
    """
    names = list(takewhile(_PRIMITIVES.__contains__, map(plain, functions)))
    if any(name in _RW_LOCKS for name in names):
        return RW_LOCK
    for name in names:
        for word, type_ in _LOCKS.items():
            stem = name.strip("_")
            if stem.startswith(word) and not stem.startswith(("down_read", "down_write")):
                return type_
        if (
            "rwsem" in name
            or "rwbase" in name
            or name.strip("_").startswith(("down_read", "down_write"))
        ):
            return _RWSEM
    return ""
