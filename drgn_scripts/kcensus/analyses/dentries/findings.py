# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about dentries, and their remedies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import drgn
import numpy as np

from kcensus.analyses.dentries.columns.bits import BUSY, DEAD, DENTRY
from kcensus.analyses.dentries.figures import Figures
from kcensus.analyses.remedies import sysctl, written
from kcensus.human import counted, human_bytes, human_ratio, human_seconds, listed
from kcensus.kernel.knobs import has_knob
from kcensus.kernel.vfs.super_blocks import MountState
from kcensus.results import Danger, Figure, Finding, Remedy, Severity, Unit, ratio
from kcensus.results.severity import MIN_BYTES, severity_of
from kcensus.text import pasteable, task_name

MAIN = "dentries-negative"
_WALKS = {Severity.CRITICAL: 10_000_000, Severity.WARNING: 1_000_000, Severity.NOTICE: 100_000}
"""Least number of children of a watched directory, by severity of visiting them all.

A visit takes 50 to 100 ns a child, under the spinlock of the directory: from 5 ms on lookups there
wait noticeably, from 50 ms on so do other CPUs, and from 0.5 s on soft lockups and RCU stalls come
into reach where several CPUs queue up for the lock.
"""
_CROWD = 0.25
"""Share of all negative dentries from which on a directory has a finding of its own."""
_MOST = 0.5
"""Share of all unused negative dentries from which on a super block or memory cgroup is worth a
remedy of its own."""
_DROP_SECONDS = 0.5e-6, 1e-6
"""To free a dentry. Measured with rmdir of a directory with 0.5 to 2 million negative children on
6.18: 0.47 to 0.81 us each."""
_LABEL = "negatives, external names included"
_UNTIL = "the names are looked up again"
_LIMIT_SHARE = 0.01
"""Share of RAM to set a limit to."""
_NOTABLE = 0.05
"""Least share of all negative dentries to name in a sentence."""
_NAMED = 3


def findings(figures: Figures) -> list[Finding]:
    main = _negative(figures)
    if main is None:
        return list(_watches(figures, None))
    parts = _crowd(figures, main), _pinned(figures, main), _watches(figures, main)
    return [main, *(finding for part in parts for finding in part)]


def _negative(figures: Figures) -> Finding | None:
    ram = figures.kernel.ram_bytes
    if (severity := severity_of(figures.negative_bytes, ram)) is None:
        return None
    share = ratio(figures.negative_bytes, ram)
    return Finding(
        id=MAIN,
        severity=severity,
        title=(
            f"{figures.negative:,} negative dentries hold {human_bytes(figures.negative_bytes)}"
            + (f" ({human_ratio(share)} of RAM)" if ram else "")
        ),
        evidence="; ".join(_evidence(figures)),
        figures={
            "negative": Figure(figures.negative, label="negative dentries"),
            "negative_unused": Figure(figures.negative_unused, label="negative and unused"),
            "negative_bytes": Figure(figures.negative_bytes, Unit.BYTES, _LABEL),
            "share_of_ram": Figure(share, Unit.RATIO, "share of RAM"),
        },
        memory=figures.memory,
        remedies=tuple(_remedies(figures)),
        no_remedy=(
            ""
            if _returned(figures)
            else "No page can be freed now: every slab also holds dentries in use. Prevent new "
            "negative dentries: find the programs that look up missing names"
        ),
        patch="negative-dentry-hash-limit",
    )


def _evidence(figures: Figures) -> Iterator[str]:
    yield f"{figures.negative_unused:,} are unused: reclaim can free them"
    if (own := _super_block(figures)) is not None:
        blocks, share = figures.super_blocks, ratio(own.unused, figures.negative_unused)
        place = blocks.mount[own.row] or blocks.id[own.row]
        yield f"{human_ratio(share)} of the unused dentries are on {place} ({blocks.type[own.row]})"
    if figures.most_negative is not None:
        rest = figures.most_negative
        rest = rest[rest["address"] != 0]
        if names := _named(figures, rest["directory"], rest["negative"]):
            yield f"most in {names}"
    known = figures.patterns
    if known is not None and (names := _named(figures, known.texts, known.sums[:, 0])):
        yield f"most frequent names: {names}"
    if figures.processes is not None:
        if not len(figures.processes):
            yield "no process has a working directory or open files in these directories"
        else:
            rows: Any = figures.processes.itertuples(index=False)
            who = [f"{task_name(row.comm, row.pid)} in {row.directory}" for row in rows]
            yield f"processes with a working directory or open files there: {listed(who, _NAMED)}"


def _named(figures: Figures, names: Iterable[str], counts: Iterable[int]) -> str:
    pairs = islice(zip(names, counts, strict=True), _NAMED)
    least = _NOTABLE * figures.negative
    return ", ".join(f"{name} ({count:,})" for name, count in pairs if count >= least)


class _Share(NamedTuple):
    """The owner of most unused negative dentries."""

    row: int
    """Row of the super block or memory cgroup."""
    dentries: int
    unused: int
    """Unused negative dentries."""


def _largest(rows: Any, sums: Any, size: int) -> _Share | None:
    """Return the owner of most unused negative dentries, or None without a known owner."""
    known = rows >= 0
    dentries, unused = (
        np.bincount(rows[known], column[known], size).astype(np.int64)
        for column in (sums.values[0], sums.values[2])
    )
    if not unused.any():
        return None
    row = int(np.argmax(unused))
    return _Share(row, int(dentries[row]), int(unused[row]))


def _super_block(figures: Figures) -> _Share | None:
    """Return the super block of most unused negative dentries, if it has :data:`_MOST` of them."""
    sums, blocks = figures.census.sums("super_block"), figures.super_blocks
    own = _largest(blocks.rows(sums.key.astype(np.uint64)), sums, len(blocks))
    return own if own and own.unused >= _MOST * figures.negative_unused else None


def _returned(figures: Figures) -> int:
    """Return the bytes of negative dentries that dropping all unused dentries frees."""
    freed = (figures.negative_unused - figures.kept) * figures.slot_size
    return freed + figures.census.tally.unused_name_bytes if freed else 0


def _duration(dentries: int) -> str:
    low, high = (dentries * each for each in _DROP_SECONDS)
    return f"{human_seconds(low)} to {human_seconds(high)} of CPU time" if low >= 1 else ""


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def _remedies(figures: Figures) -> Iterator[Remedy]:
    returns = _returned(figures)
    if returns:
        yield from _remount(figures, returns)
        yield from _reclaim(figures, returns)
        yield _drop(figures, returns)
    if figures.most_negative is not None:
        for path in figures.most_negative["directory"].head(1):
            yield from _who(figures, path)
    yield from _limits(figures)


def _remount(figures: Figures, returns: int) -> Iterator[Remedy]:
    own = _super_block(figures)
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
                "options changed in /etc/fstab since the mount take effect",
            ),
            until=_UNTIL,
            returns=min(returns, _own_bytes(figures, own)),
            is_upper_bound=True,
        )


def _own_bytes(figures: Figures, own: _Share) -> int:
    names = figures.census.tally.unused_name_bytes * ratio(own.unused, figures.negative_unused)
    return own.unused * figures.slot_size + int(names)


def _reclaim(figures: Figures, returns: int) -> Iterator[Remedy]:
    """Yield the remedy for dentries charged to one memory cgroup, unless that is the root."""
    groups = figures.groups
    if groups is None:
        return
    own = _largest(figures.owner_rows, figures.census.sums("owner"), len(groups))
    if own is None or own.unused < _MOST * figures.negative_unused or own.row == 0:
        return
    blocks = zip(figures.super_blocks.type, figures.super_blocks.mount, strict=True)
    if ("cgroup2", "/sys/fs/cgroup") not in blocks or not groups.online[own.row]:
        return
    group = groups.path[own.row]
    file = f"/sys/fs/cgroup{group}/memory.reclaim"
    size = _own_bytes(figures, own)
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
    # Its variable is not known, so the table of limits lacks it.
    if has_knob(figures.kernel, "/proc/sys/fs/negative-dentry-limit"):
        yield _setting(
            "Limit negative dentries to 1 % of RAM",
            "fs.negative-dentry-limit",
            round(1000 * _LIMIT_SHARE),
            0,
            "names beyond the limit are looked up on disk again",
        )
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


def _crowd(figures: Figures, main: Finding) -> Iterator[Finding]:
    if figures.most_negative is None:
        return
    row: Any
    for row in figures.most_negative.head(1).itertuples(index=False):
        # The row of a remainder has no address.
        if not row.address or row.negative < _CROWD * figures.negative:
            continue
        slots = row.negative * figures.slot_size
        places = {next(iter(main.memory)): slots, "external names": row.negative_bytes - slots}
        children = row.negative + row.others
        walk = (
            f"; adding an inotify watch on the directory would visit {children:,} children under a "
            "spinlock"
            if children >= _WALKS[Severity.WARNING]
            else ""
        )
        yield Finding(
            id=f"dentries-directory:{row.directory}",
            severity=min(main.severity, Severity.NOTICE),
            title=(
                f"{row.directory} has {row.negative:,} negative dentries "
                f"({human_ratio(row.share)} of all), which hold {human_bytes(row.negative_bytes)}"
            ),
            evidence=f"{_cached(row.others)}{walk}",
            figures={
                "negative": Figure(row.negative, label="negative dentries"),
                "others": Figure(row.others, label="other children"),
                "share": Figure(row.share, Unit.RATIO, "share of all negatives"),
                "negative_bytes": Figure(row.negative_bytes, Unit.BYTES, _LABEL),
            },
            memory={place: size for place, size in places.items() if size},
            remedies=tuple(_rmdir(figures, row)),
            part_of=MAIN,
        )


def _cached(others: int) -> str:
    if not others:
        return "no other children are cached"
    children = counted(others, "other child", plural="other children")
    return f"{children} {'is' if others == 1 else 'are'} cached"


def _rmdir(figures: Figures, row: Any) -> Iterator[Remedy]:
    returns = min(_returned(figures), row.negative_bytes)
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


def _pinned(figures: Figures, main: Finding) -> Iterator[Finding]:
    size = figures.kept * figures.slot_size
    if figures.kept * 2 < figures.negative_unused or size < MIN_BYTES:
        return
    yield Finding(
        id="dentries-pinned",
        severity=min(main.severity, Severity.NOTICE),
        title=(
            f"{figures.kept:,} of {figures.negative_unused:,} unused negative dentries "
            f"({human_bytes(size)}) share their slabs with dentries in use"
        ),
        evidence=(
            "a slab page is freed with its last object: dropping these dentries returns no page"
        ),
        figures={
            "kept": Figure(figures.kept, label="negatives on shared slabs"),
            "negative_unused": Figure(figures.negative_unused, label="negative and unused"),
            "kept_bytes": Figure(size, Unit.BYTES, "negatives on shared slabs"),
        },
        memory={next(iter(main.memory)): size},
        no_remedy="The pages return when the dentries in use are released: close their files, or "
        "end the processes with a working directory there (`lsof` lists both)",
        part_of=MAIN,
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


def _watches(figures: Figures, main: Finding | None) -> Iterator[Finding]:
    if figures.walk_cost is None:
        return
    frame = figures.walk_cost
    frame = frame[frame["watched"] & (frame["negative"] * 2 >= frame["children"])]
    seen: Counter[str] = Counter()
    row: Any
    for row in frame.itertuples(index=False):
        severity = next((each for each, least in _WALKS.items() if row.children >= least), None)
        if severity is None:
            continue
        seen[row.directory] += 1
        # The same path in two mount namespaces is two directories.
        again = f"@{seen[row.directory]}" if seen[row.directory] > 1 else ""
        lazily = _clears_lazily(figures.kernel.prog)
        yield Finding(
            id=f"dentries-watch:{row.directory}{again}",
            severity=severity,
            title=(
                f"{row.directory} is watched: the kernel visits {row.children:,} children "
                f"({row.negative:,} negative) under a spinlock whenever "
                f"{'its first watch is added' if lazily else 'a watch is added or removed'}"
            ),
            evidence=_order(row),
            figures={
                "children": Figure(row.children, label="children"),
                "negative": Figure(row.negative, label="negative children"),
            },
            danger=Danger.STALL,
            remedies=tuple(_watchers(row.directory, lazily)),
            patch="" if lazily else "fsnotify-lazy-parent-watched",
            # A danger is not folded into a less severe finding.
            part_of=MAIN if main is not None and main.severity >= severity else "",
        )


def _order(row: Any) -> str:
    if row.damaged:
        return "the list of children is damaged: their order is unknown"
    if row.at_tail:
        return "all negative children are at the tail of the list"
    return f"{row.sweeps:,} runs of negative children precede positive ones"


def _watchers(directory: str, lazily: bool) -> Iterator[Remedy]:
    if path := pasteable(directory, "/"):
        yield Remedy(
            effect=(
                "Find the processes that watch the directory (their PIDs are in the printed "
                "paths); stop them, or let them watch another directory"
            ),
            command=(f'grep -s "ino:$(printf %x "$(stat -c %i {path})") " /proc/[0-9]*/fdinfo/*'),
            risk="" if lazily else "removing the watch visits all children once more",
        )
    yield Remedy(
        effect="Drop the negative children before the next watch is added or removed, and move the "
        "lookups of missing names to another directory"
    )
