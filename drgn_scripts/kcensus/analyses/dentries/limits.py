# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sysctls of a kernel that limit the number of dentries, or influence it."""

from __future__ import annotations

from contextlib import suppress

import drgn
import numpy as np
import pandas as pd

_PRESSURE = "weight of dentries and inodes in reclaim; default: 100"
_DIVISOR = "divisor of vm.vfs_cache_pressure"
_SYSCTLS = (
    # Since Linux kernel commit e6957c99dca5 ("vfs: Add a sysctl for automated deletion of dentry")
    # (in v6.13).
    ("dentry_negative_policy", "fs.dentry-negative", "1: unlink leaves no negative dentry", False),
    # In RHEL 8.10 (commit not verified).
    ("dentry_fs_klimit_sysctl", "fs.dentry-fs-klimit", "thousands of dentries; 0: no limit", True),
    ("sysctl_vfs_cache_pressure", "vm.vfs_cache_pressure", _PRESSURE, False),
    # Since Linux kernel commit e7b9cea718ee ("vfs: Add sysctl vfs_cache_pressure_denom for bulk
    # file operations") (in v6.16).
    ("sysctl_vfs_cache_pressure_denom", "vm.vfs_cache_pressure_denom", _DIVISOR, False),
)
"""Variable, name, meaning, whether it bounds the number of dentries if it is not 0. The variable of
fs.negative-dentry-limit (RHEL 7.8 and later 7.x, Oracle UEK) is not known."""


def limits(prog: drgn.Program) -> pd.DataFrame:
    """Return the limits and mitigations that this kernel has, by their variables."""
    known = []
    for symbol, name, meaning, bounds in _SYSCTLS:
        with suppress(LookupError, drgn.FaultError):
            known.append((name, int(prog[symbol]), meaning, bounds))
    frame = pd.DataFrame(known, columns=["setting", "value", "meaning", "bounds"])
    return frame.astype({"value": np.int64, "bounds": np.bool_})
