# SPDX-License-Identifier: LGPL-2.1-or-later
"""The list of lookups and the declarations of global variables know the same variables."""

from __future__ import annotations

from kcensus.sources.debuginfo.globals import declarations
from kcensus.sources.debuginfo.lookups import lookups

_WITHOUT_BTF = {
    # Kernel 3.10 and vendors' kernels of that time have no BTF.
    *("cpu_online_mask", "cpu_possible_mask", "max_low_pfn", "min_low_pfn"),
    *("dcache_negative_dentry_limit_sysctl", "pid_hash", "pidhash_shift"),
}


def test_each_variable_that_is_looked_up_has_a_declaration() -> None:
    declared = {name for names in declarations().values() for name in names}
    # A variable of one source file is listed with that.
    known = {name.split()[0] for name in lookups().variables}
    assert known - declared == _WITHOUT_BTF
