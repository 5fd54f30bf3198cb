# SPDX-License-Identifier: LGPL-2.1-or-later
"""Published deadlocks, recognized by the functions on the stacks of the tasks in a cycle.

Their fixes are in the catalogue, each with its posting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kcensus.kernel.tasks.functions import plain


@dataclass(frozen=True)
class Known:
    """A published deadlock."""

    patch: str
    """Identifier of its fix in the catalogue."""
    tasks: tuple[frozenset[str], ...]
    """Per task, functions of which one is on its stack; the cycle may have more tasks."""


def _known(patch: str, *tasks: str) -> Known:
    return Known(patch, tuple(frozenset(names.split()) for names in tasks))


KNOWN = (
    _known(
        "slab-objcg-controller",
        "offline_pages __offline_pages",
        "mem_cgroup_css_offline memcg_offline_kmem memcg_deactivate_kmem_caches",
    ),
    _known(
        "cgroup-threadgroup-cpus-lock",
        "cpuset_attach",
        "_cpu_up _cpu_down cpu_up cpu_down cpuhp_thread_fun smpboot_create_threads",
    ),
    _known(
        "mem-hotplug-percpu-rwsem",
        "mem_hotplug_begin online_pages __offline_pages",
        "get_online_mems kmem_cache_create kmem_cache_destroy",
    ),
    _known(
        "dm-thin-bufio-reset",
        "dm_pool_abort_metadata",
        "shrink_slab do_shrink_slab shrink_slab_memcg",
    ),
    _known(
        "dm-bufio-loop-trylock",
        "dm_bufio_shrink_scan",
        "loop_queue_work loop_kthread_worker_fn lo_rw_aio loop_thread",
    ),
    _known(
        "xfs-rename-whiteout-order",
        "xfs_rename",
        "xfs_read_agi xfs_ialloc_read_agi xfs_read_agf xfs_alloc_read_agf",
    ),
    _known(
        "group-cpus-hotplug-lock",
        "blk_mq_hctx_notify_offline",
        "group_cpus_evenly irq_create_affinity_masks",
    ),
)


def patch_of(stacks: Sequence[Iterable[str]]) -> str:
    """Return the patch against the deadlock of tasks with these stacks; empty if unknown.

    :param stacks: functions on the stacks of the tasks of a cycle
    """
    names = [frozenset(map(plain, functions)) for functions in stacks]
    return next((known.patch for known in KNOWN if _fits(known.tasks, names)), "")


def patch_behind(subject: Iterable[str], behind: Sequence[Iterable[str]]) -> str:
    """Return the patch against the deadlock of a task that runs, or loops, and its waiters.

    :param subject: functions on the stack of the awaited task
    :param behind: functions on the stacks of the waiters
    """
    own, names = frozenset(map(plain, subject)), [frozenset(map(plain, each)) for each in behind]
    for known in KNOWN:
        for at, wanted in enumerate(known.tasks):
            if wanted & own and _fits([*known.tasks[:at], *known.tasks[at + 1 :]], names):
                return known.patch
    return ""


def _fits(wanted: Sequence[frozenset[str]], names: Sequence[frozenset[str]]) -> bool:
    """Return whether each set of functions matches a task of its own."""
    if not wanted:
        return True
    return any(
        wanted[0] & each and _fits(wanted[1:], [*names[:at], *names[at + 1 :]])
        for at, each in enumerate(names)
    )
