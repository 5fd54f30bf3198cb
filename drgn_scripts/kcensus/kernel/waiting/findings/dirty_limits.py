# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about limits of dirty pages."""

from __future__ import annotations

from kcensus.kernel.waiting.finder import Stall
from kcensus.results import Finding, Severity
from kcensus.text import printable

_MORE = (
    "The tasks go on as the disk takes their pages. A larger memory.max, or vm.dirty_ratio, lets "
    "them write more before they wait, but not faster"
)


def dirty_limit(cgroup: str, name: str, stall: Stall) -> Finding:
    """Return the finding about the limit of a memory cgroup.

    :param cgroup: its path; ``name`` is that of the limit; neither is safe to print
    """
    return stall.finding(
        "waits-dirty-limit",
        printable(cgroup),
        printable(f"the limit of dirty pages of memory cgroup {cgroup}"),
        printable(f"limit of dirty pages {name}"),
        advice=_MORE,
        severity=min(stall.severity(), Severity.NOTICE),
    )
