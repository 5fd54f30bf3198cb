# SPDX-License-Identifier: LGPL-2.1-or-later
"""What to do about copies in flight, whichever finding they make."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import drgn

from kcensus.analyses.kcopyd.census import DEFAULT_THRESHOLD
from kcensus.analyses.kcopyd.figures import Figures
from kcensus.human import human_bytes
from kcensus.results import Remedy
from kcensus.sources.capsule import NotRecorded

PARAMETER = "/sys/module/dm_snapshot/parameters/snapshot_cow_threshold"
_DIRTY_BYTES = "/proc/sys/vm/dirty_bytes"
_MODPROBE = "/etc/modprobe.d/snapshot_cow_threshold.conf"
"""Not dm_snapshot.conf, which may exist."""
_MIB = 1 << 20
_MAX_DIRTY, _MIN_DIRTY = 256 * _MIB, 4 * _MIB
"""Bounds of what to set vm.dirty_bytes to."""

FIND_SETTER = Remedy(
    effect="Find where the limit was set: 2,048 is the kernel's default",
    command=(
        "grep -rs snapshot_cow_threshold /proc/cmdline /etc/default/grub /etc/modprobe.d "
        "/run/modprobe.d /usr/lib/modprobe.d /etc/udev /usr/lib/udev /etc/tuned /usr/lib/tuned "
        "/etc/rc.local /etc/systemd"
    ),
)
SHOW_BUSY = Remedy(
    effect=(
        "Show how busy the COW devices are: a faster one is the cure, more copies in flight only "
        "defer the wait"
    ),
    command="iostat -xd 2 5",
)
PERSIST = Remedy(
    effect=(
        "Keep the limit when dm_snapshot is loaded again, unless a script sets it later; rebuild "
        "the initramfs if it loads the module"
    ),
    command=f"echo 'options dm_snapshot snapshot_cow_threshold={DEFAULT_THRESHOLD}' > {_MODPROBE}",
    undo=f"rm {_MODPROBE}",
)
SHOW_LIMIT = Remedy(
    effect="Show the limit of copies; the kernel's default is 2,048",
    command=f"cat {PARAMETER}",
    knobs=(PARAMETER,),
)
NO_FEWER = (
    "this kernel has no limit of copies, and no lower vm.dirty_bytes to offer; fewer snapshots of "
    "an origin need fewer copies"
)


def restored(figures: Figures) -> str:
    """Return the command that sets the limit of copies as it is; empty where that is unknown."""
    threshold = figures.census.threshold
    return "" if threshold is None else f"echo {threshold} > {PARAMETER}"


def write_less(figures: Figures) -> Iterator[Remedy]:
    """Yield how to have fewer dirty pages written back at once: a quarter of what may be now.

    Nothing where that is too little, or the present setting is unknown: vm.dirty_bytes above it
    would start more copies, not fewer.
    """
    limit = None
    with contextlib.suppress(LookupError, TypeError, drgn.FaultError, NotRecorded):
        prog = figures.kernel.prog
        dirty, ratio = int(prog["vm_dirty_bytes"]), int(prog["vm_dirty_ratio"])
        limit = dirty or figures.kernel.ram_bytes * ratio // 100
        undo = f"vm.dirty_bytes={dirty}" if dirty else f"vm.dirty_ratio={ratio}"
    if limit is None or limit // 4 < _MIN_DIRTY:
        return
    lower = min(limit // 4 // _MIB * _MIB, _MAX_DIRTY)
    yield Remedy(
        effect=f"Allow {human_bytes(lower)} of dirty pages instead of about {human_bytes(limit)}, "
        "so that fewer copies start at once",
        command=f"sysctl -w vm.dirty_bytes={lower}",
        risk="buffered writes of all programs on this machine wait earlier",
        undo=f"sysctl -w {undo}",
        until="reboot",
        knobs=(_DIRTY_BYTES,),
    )
