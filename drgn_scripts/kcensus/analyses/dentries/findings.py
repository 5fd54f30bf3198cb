# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a census of dentries means, in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import drgn

from kcensus.analyses.dentries.chains import IN_A_ROW
from kcensus.analyses.dentries.figures import Figures
from kcensus.human import human_bytes, human_ratio
from kcensus.results import Finding, Remedy, Severity, ratio

_NOTABLE_SHARE = 0.05
"""Of RAM in negative dentries."""
_LARGE_SHARE = 0.25
_LONG_WALK = 100_000
"""Children to visit under a spinlock: at 50 ns each that takes 5 ms."""
_LOCKUP = 10_000_000
"""Children to visit for longer than another CPU should wait; the watchdog's limit is 20 s."""
_NOTABLE_BYTES = 1 << 20
_CROWD = 0.25
"""Of all negative dentries in one directory."""
_WHO = (
    "Count failed lookups by program on the running system: "
    "bpftrace -e 'tracepoint:syscalls:sys_exit_openat /args->ret == -2/ { @[comm] = count(); }' "
    "(of open() only; stat() has tracepoints of its own)"
)


def _remedies(text: str) -> tuple[Remedy, ...]:
    return (Remedy(effect=text),) if text else ()


def _memory(size: int | None) -> dict[str, int]:
    return {"slab:dentry": size} if size else {}


def findings(figures: Figures) -> list[Finding]:
    """Return what is worth acting on, most severe first."""
    parts = _size_findings, _walk_findings, _crowd_finding, _pinned_finding
    return sorted(
        (finding for part in parts for finding in part(figures)),
        key=lambda finding: -finding.severity,
    )


def _size_findings(figures: Figures) -> Iterator[Finding]:
    share = ratio(figures.negative_bytes, figures.kernel.ram_bytes)
    if share < _NOTABLE_SHARE:
        return
    evidence = f"{figures.negative_unused:,} of them are unused"
    saved = None
    if figures.chains is not None:
        saved = figures.trimmed_bytes
        evidence += (
            f"; a {IN_A_ROW}-per-bucket run limit (posted in 2021, never merged) would keep "
            f"{figures.negative - figures.chains.trimmed:,} of them, "
            f"{human_bytes(figures.negative_bytes - saved)}"
        )
    yield Finding(
        id="dentries-negative",
        severity=Severity.WARNING if share >= _LARGE_SHARE else Severity.NOTICE,
        title=(
            f"{figures.negative:,} negative dentries use {human_bytes(figures.negative_bytes)} "
            f"({human_ratio(share)} of RAM)"
        ),
        evidence=evidence,
        remedies=_remedies(
            f"{_WHO}; the tables of directories and patterns show which names. To free the memory "
            "once: echo 2 > /proc/sys/vm/drop_caches; it drops all unused dentries and inodes, which "  # noqa: E501
            "takes long if there are millions, and later lookups are slower"
        ),
        patch="negative-dentry-hash-limit",
        memory=_memory(saved),
    )
    bounds = figures.limits[figures.limits["bounds"]]
    if not bounds["value"].any():
        # No cost: the finding above has it.
        yield Finding(
            id="dentries-unlimited",
            severity=Severity.INFO,
            title=f"no known limit applies to the {figures.negative:,} negative dentries",
            evidence=(
                f"{', '.join(bounds['setting'])} is off"
                if len(bounds)
                else "this kernel has no fs.dentry-fs-klimit; debug info does not show whether it has "  # noqa: E501
                "fs.negative-dentry-limit (RHEL 7.8 and later 7.x, and Oracle UEK only)"
            ),
            remedies=_remedies(
                "Set fs.negative-dentry-limit where /proc/sys/fs has it; elsewhere, raise "
                "vm.vfs_cache_pressure above 100: reclaim then prefers dentries and inodes, but does "  # noqa: E501
                "not start earlier. Put either into /etc/sysctl.d to survive a reboot"
            ),
            patch="negative-dentry-sysctl-limit",
        )


def _clears_lazily(prog: drgn.Program) -> bool:
    """Return whether the kernel visits children only when a directory is first watched.

    Since Linux kernel commit 172e422ffea2 ("fsnotify: clear PARENT_WATCHED flags lazily")
    (in v6.11), the function that sets their flags has this name.
    """
    try:
        prog.symbol("fsnotify_set_children_dentry_flags")
    except LookupError:
        return False
    return True


def _walk_findings(figures: Figures) -> Iterator[Finding]:
    if figures.walk_cost is None:
        return
    children, negative = figures.walk_cost["children"], figures.walk_cost["negative"]
    costly = figures.walk_cost[(children >= _LONG_WALK) & (negative * 2 >= children)]
    row: Any
    for row in costly.itertuples(index=False):
        if row.watched:
            lazily = _clears_lazily(figures.kernel.prog)
            when = "its first watch is added" if lazily else "a watch is added or removed"
            if row.damaged:
                order = "the list of children is damaged, so their order is unknown"
            elif row.at_tail:
                order = "all negative children are at the tail, where a walk could stop"
            else:
                order = f"{row.sweeps:,} runs of negative children precede positive ones"
            yield Finding(
                id=f"dentries-watch:{row.directory}",
                severity=Severity.CRITICAL if row.children >= _LOCKUP else Severity.WARNING,
                title=(
                    f"{row.directory} is watched: {row.children:,} children ({row.negative:,} "
                    f"negative) are visited under a spinlock whenever {when}"
                ),
                evidence=order,
                remedies=_remedies(
                    "Remove the watch, or move the lookups of missing names to another directory"
                ),
                patch="negative-dentry-sibling-tail",
            )
        elif row.children >= _LOCKUP:
            yield Finding(
                id=f"dentries-watchable:{row.directory}",
                severity=Severity.NOTICE,
                title=f"watching {row.directory} would visit {row.children:,} children under a spinlock",  # noqa: E501
                evidence=f"{row.negative:,} of them are negative",
                remedies=_remedies(
                    "Drop its negative dentries before a program watches it "
                    "(echo 2 > /proc/sys/vm/drop_caches drops all unused dentries and inodes)"
                ),
                patch="negative-dentry-dir-limit",
            )


def _crowd_finding(figures: Figures) -> Iterator[Finding]:
    if figures.most_negative is None or figures.negative_bytes < _NOTABLE_BYTES:
        return
    row: Any
    for row in figures.most_negative.head(1).itertuples(index=False):
        # The row of a remainder has no address.
        if row.address and row.negative >= _CROWD * figures.negative:
            yield Finding(
                id="dentries-directory",
                severity=Severity.INFO,
                title=(
                    f"{row.directory} holds {row.negative:,} negative dentries "
                    f"({human_ratio(ratio(row.negative, figures.negative))} of all)"
                ),
                evidence=f"they use {human_bytes(row.negative_bytes)}",
                remedies=_remedies(_WHO),
            )


def _pinned_finding(figures: Figures) -> Iterator[Finding]:
    if figures.fragmentation is None or figures.pages_freeable is None:
        return
    freeable = human_bytes(figures.pages_freeable << figures.kernel.memory.page_shift)
    pinned = figures.fragmentation[figures.fragmentation["pinned_by"] > 0]
    kept = int(pinned["negative_unused"].sum())
    if kept * 2 < figures.negative_unused or figures.unused_bytes < _NOTABLE_BYTES:
        return
    yield Finding(
        id="dentries-pinned",
        severity=Severity.NOTICE,
        title=(
            f"{kept:,} of {figures.negative_unused:,} unused negative dentries share slabs with "
            f"dentries that stay: dropping all of them frees only {freeable}"
        ),
        evidence=f"{human_bytes(int(pinned['bytes'].sum()))} of slab pages hold a dentry that stays",  # noqa: E501
        remedies=_remedies(
            "Do not expect these pages back before the dentries that stay are freed; nothing frees "
            "those safely"
        ),
        patch="negative-dentry-hash-limit",
    )
