# SPDX-License-Identifier: LGPL-2.1-or-later
"""Published deadlocks by the functions on stacks."""

from __future__ import annotations

from kcensus.analyses.waits.findings.known import KNOWN, patch_behind, patch_of
from tests.catalogue import PATCHES

# The four threads of the posting of 2020-08-12, from the outermost function inwards.
_SEED = (
    "device_offline memory_subsys_offline offline_pages __offline_pages",
    "css_killed_work_fn mem_cgroup_css_offline memcg_offline_kmem.part.0 "
    "memcg_deactivate_kmem_caches get_online_mems",
    "do_coredump elf_core_dump dump_emit __kernel_write pipe_write pipe_wait",
    "ksys_read vfs_read seq_read proc_single_show proc_cgroup_show",
)


def test_the_deadlock_of_four_threads() -> None:
    stacks = [names.split() for names in _SEED]
    assert patch_of(stacks) == "slab-objcg-controller"
    assert patch_of(list(reversed(stacks))) == "slab-objcg-controller"
    assert patch_of(stacks[2:]) == ""
    assert patch_of(stacks[:1]) == ""


def test_each_needs_a_task_of_its_own() -> None:
    for known in KNOWN:
        together = [name for names in known.tasks for name in names]
        assert patch_of([together]) == ""
        assert patch_of([[next(iter(names))] for names in known.tasks]) == known.patch


def test_the_catalogue_has_their_patches_and_postings() -> None:
    assert len(KNOWN) >= 7
    for known in KNOWN:
        assert PATCHES[known.patch].postings, known.patch


def test_a_task_that_loops_and_those_behind_it() -> None:
    # offline_pages() does not sleep until pages are migrated: it tries again and again.
    offline = ["preempt_schedule_common", "migrate_pages.part.0", "__offline_pages"]
    killer = ["percpu_down_read", "memcg_deactivate_kmem_caches", "process_one_work"]
    assert patch_behind(offline, [["vfs_read"], killer]) == "slab-objcg-controller"
    assert patch_behind(["vfs_read"], [offline, killer]) == ""
    assert patch_behind(offline, [["vfs_read"]]) == ""
