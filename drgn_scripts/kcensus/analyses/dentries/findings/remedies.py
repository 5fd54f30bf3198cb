# SPDX-License-Identifier: LGPL-2.1-or-later
"""Remedies for negative dentries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kcensus.analyses.dentries.columns.bits import BUSY, DEAD, DENTRY
from kcensus.analyses.dentries.figures import Figures
from kcensus.analyses.dentries.findings.owners import (
    MOST,
    largest,
    own_bytes,
    returned,
    super_block,
)
from kcensus.analyses.remedies import sysctl, written
from kcensus.human import human_ratio, human_seconds
from kcensus.kernel.knobs import has_knob
from kcensus.kernel.vfs.super_blocks import MountState
from kcensus.results import Remedy, ratio
from kcensus.text import pasteable

_DROP_SECONDS = 0.5e-6, 1e-6
"""To free a dentry. Measured with rmdir of a directory with 0.5 to 2 million negative children on
6.18: 0.47 to 0.81 us each."""
_UNTIL = "the names are looked up again"
_LIMIT_SHARE = 0.01
"""Share of RAM to set a limit to."""


def remedies(figures: Figures) -> Iterator[Remedy]:
    """Yield remedies for negative dentries, the safest first."""
    returns = returned(figures)
    if returns:
        yield from _remount(figures, returns)
        yield from _reclaim(figures, returns)
        yield _drop(figures, returns)
    if figures.most_negative is not None:
        for path in figures.most_negative["directory"].head(1):
            yield from _who(figures, path)
    yield from _limits(figures)


def _remount(figures: Figures, returns: int) -> Iterator[Remedy]:
    own = super_block(figures)
    if own is None or figures.super_blocks.state[own.row] is not MountState.MOUNTED:
        return
    mount = figures.super_blocks.mount[own.row]
    if path := pasteable(mount, "/"):
        yield Remedy(
            effect=(
                f"Drop the unused dentries of {mount} alone ({own.unused:,} negative); "
                "inodes and page cache stay"
            ),
            command=f"mount -o remount {path}",
            risk=_joined(
                _duration(own.dentries),
                "sync and unmount of this file system wait meanwhile",
                "most file systems write all their dirty data first",
                "options changed in /etc/fstab since the mount take effect",
            ),
            until=_UNTIL,
            returns=min(returns, own_bytes(figures, own)),
            is_upper_bound=True,
        )


def _reclaim(figures: Figures, returns: int) -> Iterator[Remedy]:
    """Yield the remedy for dentries charged to one memory cgroup, unless that is the root."""
    groups = figures.groups
    if groups is None:
        return
    own = largest(figures.owner_rows, figures.census.sums("owner"), len(groups))
    if own is None or own.unused < MOST * figures.negative_unused or own.row == 0:
        return
    blocks = zip(figures.super_blocks.type, figures.super_blocks.mount, strict=True)
    if ("cgroup2", "/sys/fs/cgroup") not in blocks or not groups.online[own.row]:
        return
    group = groups.path[own.row]
    file = f"/sys/fs/cgroup{group}/memory.reclaim"
    size = own_bytes(figures, own)
    if path := pasteable(file, "/"):
        share = human_ratio(ratio(own.unused, figures.negative_unused))
        yield written(
            f"Reclaim memory of the cgroup {group} alone: {share} of the negative dentries are "
            "charged to it",
            path,
            size,
            risk="reclaims page cache of the cgroup as well, and swaps if there is swap; fails "
            "with EAGAIN if less can be reclaimed",
            until=_UNTIL,
            returns=min(returns, size),
            is_upper_bound=True,
            knobs=(file,),
        )


def _drop(figures: Figures, returns: int) -> Remedy:
    unused = figures.census.count(DENTRY, BUSY | DEAD)
    return written(
        f"Drop all unused dentries ({unused:,}) and inodes of all file systems",
        "/proc/sys/vm/drop_caches",
        2,
        risk=_joined(
            _duration(unused),
            "lookups and reclaim on other CPUs wait for LRU locks meanwhile",
            "directories and inodes are read from disk again",
            "page cache of dropped inodes is lost",
        ),
        until=_UNTIL,
        returns=returns,
        is_upper_bound=figures.census.tally.unused_name_bytes > 0,
    )


def _limits(figures: Figures) -> Iterator[Remedy]:
    values = dict(zip(figures.limits["setting"], figures.limits["value"], strict=True))
    most = int(_LIMIT_SHARE * figures.kernel.ram_bytes) // figures.slot_size
    if most and values.get("fs.dentry-fs-klimit") == 0:
        yield _setting(
            f"Limit the unused dentries of each file system and NUMA node to {most:,} (1 % of RAM)",
            "fs.dentry-fs-klimit",
            max(most // 1000, 1),
            0,
            "workloads with more files read them from disk more often",
        )
    yield from _negative_limit(figures, values.get("fs.negative-dentry-limit"))
    if values.get("fs.dentry-negative") == 0:
        yield _setting(
            "Free the dentry of a removed file instead of making it negative; dentries of names "
            "that never existed stay",
            "fs.dentry-negative",
            1,
            0,
            "re-creating the same names is slower",
        )
    pressure = values.get("vm.vfs_cache_pressure")
    if pressure is not None and pressure <= 100:
        yield _setting(
            "Let reclaim prefer dentries and inodes over page cache; reclaim does not start "
            "earlier",
            "vm.vfs_cache_pressure",
            200,
            pressure,
            "directories and inodes are read from disk more often",
        )


def _negative_limit(figures: Figures, value: int | None) -> Iterator[Remedy]:
    """Yield the limit of all negative dentries, unless a lower one is set.

    :param value: of fs.negative-dentry-limit; None where unknown
    """
    name, wanted = "fs.negative-dentry-limit", round(1000 * _LIMIT_SHARE)
    # proc_dcache_negative_dentry_limit() of RHEL 7.9 (disassembled): this share of the pages of
    # RAM, times the dentries of a page.
    shift = figures.kernel.memory.page_shift
    per_page = (1 << shift) // figures.slot_size
    most = (figures.kernel.ram_bytes >> shift) * per_page * wanted // 1000
    # In Oracle UEK, its variable is not known.
    is_there = value is not None or has_knob(figures.kernel, "/proc/sys/fs/negative-dentry-limit")
    if not is_there or not most or 0 < (value or 0) <= wanted:
        return
    unused = figures.negative_unused
    now = (
        f"the kernel frees {unused - most:,} unused ones in the background"
        if unused > most
        else f"this changes nothing now, with {unused:,} unused ones"
    )
    remedy = _setting(
        f"Limit negative dentries to {most:,} (1 % of RAM); {now}",
        name,
        wanted,
        value or 0,
        "names beyond the limit are looked up on disk again",
    )
    yield replace(remedy, undo="") if value is None else remedy


def _setting(effect: str, name: str, value: int, before: int, risk: str) -> Remedy:
    until = f"reboot; to keep it, write {name} = {value} to /etc/sysctl.d/90-dentries.conf"
    return sysctl(effect, name, value, before, risk=risk, until=until)


def _who(figures: Figures, directory: str) -> Iterator[Remedy]:
    """Yield a command to count, by program, the lookups that add a dentry to a directory."""
    path = pasteable(directory, "/")
    # A lookup of a name that is not cached calls d_alloc_parallel() since 4.7 (commit not
    # verified), as kernels with DCACHE_PAR_LOOKUP do. Older ones have no BTF, and few have BPF.
    if not path or directory == "/" or not figures.census.flags.par_lookup:
        return
    yield Remedy(
        effect=(
            "On the running machine, count by program the lookups in "
            f"{directory} that add a dentry (Ctrl-C ends the count)"
        ),
        command=(
            "bpftrace -e 'kprobe:d_alloc_parallel "
            "/((struct dentry *)arg0)->d_inode->i_ino == $1/ { @[comm, pid] = count(); }' "
            f'"$(stat -c %i {path})"'
        ),
        risk=(
            "needs bpftrace and kernel BTF; costs below 1 us per uncached lookup; counts "
            "directories with the same inode number on other file systems, too"
        ),
    )


def rmdir(figures: Figures, row: Any) -> Iterator[Remedy]:
    """Yield the removal of a directory whose cached children are all negative."""
    returns = min(returned(figures), row.negative_bytes)
    path = pasteable(row.directory, "/")
    if path and returns and row.state == MountState.MOUNTED.value and not row.others:
        yield Remedy(
            effect=f"Ask the owner of {path}: is the directory still needed? Its removal (rmdir) "
            "drops its cached children",
            risk=_joined(
                _duration(row.negative),
                "fails unless the directory is empty",
                "a new directory needs its owner, mode and SELinux context restored",
            ),
            returns=returns,
            is_upper_bound=True,
        )


def _duration(dentries: int) -> str:
    low, high = (dentries * each for each in _DROP_SECONDS)
    return f"{human_seconds(low)} to {human_seconds(high)} of CPU time" if low >= 1 else ""


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
