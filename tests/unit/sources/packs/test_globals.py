# SPDX-License-Identifier: LGPL-2.1-or-later
"""The list of lookups and the declarations of global variables know the same variables."""

from __future__ import annotations

from kcensus.sources.debuginfo.globals import declarations
from kcensus.sources.debuginfo.lookups import lookups

_OTHERS = {
    # Kernel 3.10 and vendors' kernels of that time have no BTF.
    *("cpu_online_mask", "cpu_possible_mask", "pid_hash", "pidhash_shift", "mem_hotplug"),
    *("mem_cgroup_subsys", "roots"),
    # Only whether they exist is asked.
    *("dcache_negative_dentry_limit_sysctl", "dentry_fs_klimit_sysctl"),
}
_OF_DRGN = {
    *("PAGE_SHIFT", "PAGE_SIZE", "SECTION_SIZE_BITS", "THREAD_SIZE", "UTS_RELEASE", "VMCOREINFO"),
    *("SECTIONS_PER_ROOT", "vmemmap"),
}


def test_each_variable_that_is_looked_up_has_a_declaration() -> None:
    declared = {name for names in declarations().values() for name in names}
    asked = lookups()
    # A variable of one source file is listed with that; of others, no recorded kernel had any.
    known = {name.split()[0] for name in asked.variables | asked.objects}
    assert known - declared - _OF_DRGN == _OTHERS
