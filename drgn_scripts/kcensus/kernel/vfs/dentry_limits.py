# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sysctls of a kernel that limit the number of dentries, or influence it."""

from __future__ import annotations

from contextlib import suppress

import drgn
import numpy as np
import pandas as pd

from kcensus.sources.capsule import NotRecorded

_PRESSURE = "weight of dentries and inodes in reclaim; default: 100"
_DIVISOR = "divisor of vm.vfs_cache_pressure"
_SYSCTLS = (
    # Since Linux kernel commit e6957c99dca5 ("vfs: Add a sysctl for automated deletion of dentry")
    # (in v6.13).
    ("dentry_negative_policy", "fs.dentry-negative", "1: unlink leaves no negative dentry", 1),
    # In RHEL 8.10 (commit not verified).
    ("dentry_fs_klimit_sysctl", "fs.dentry-fs-klimit", "thousands of dentries; 0: no limit", None),
    ("sysctl_vfs_cache_pressure", "vm.vfs_cache_pressure", _PRESSURE, 100_000),
    # Since Linux kernel commit e7b9cea718ee ("vfs: Add sysctl vfs_cache_pressure_denom for bulk
    # file operations") (in v6.16).
    ("sysctl_vfs_cache_pressure_denom", "vm.vfs_cache_pressure_denom", _DIVISOR, 100_000),
)
"""Variable, name, meaning, and the largest value that is not damage. The variable of
fs.negative-dentry-limit (RHEL 7.8 and later 7.x, Oracle UEK) is not known."""


def limits(prog: drgn.Program) -> tuple[pd.DataFrame, list[str]]:
    """Return the limits and mitigations that this kernel has, by their variables.

    :return: a row for each; and those left out because no kernel has such a value
    """
    known, impossible = [], []
    for symbol, name, meaning, largest in _SYSCTLS:
        with suppress(LookupError, drgn.FaultError, NotRecorded):
            try:
                value = int(prog[symbol])
            except (TypeError, ValueError):  # not a number
                value = -1
            if 0 <= value <= (value if largest is None else largest):
                known.append((name, value, meaning))
            else:
                impossible.append(f"{name} = {value}")
    frame = pd.DataFrame(known, columns=["setting", "value", "meaning"])
    return frame.astype({"value": np.int64}), impossible
