# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs that suspend, freeze or repair devices, recognized by the names of their processes.

A name is a hint, no proof: a program may have any name.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults
from kcensus.human import listed
from kcensus.kernel.kernel import Kernel, once
from kcensus.kernel.tasks.tasks import Tasks
from kcensus.text import task_name

_MOST_TOLD = 3
_COMM = 15
"""Most characters of a task's name."""
_LVM = frozenset(
    {"lvm", "lvcreate", "lvremove", "lvconvert", "lvextend", "lvreduce", "lvresize", "lvchange"}
    | {"lvrename", "lvpoll", "lvmpolld", "lvmdbusd", "vgchange", "vgcreate", "vgextend", "vgremove"}
    | {"vgreduce", "vgrename", "vgsplit", "vgmerge", "pvmove", "pvchange", "pvresize"}
)


@dataclass(frozen=True)
class Programs:
    """Programs of one purpose."""

    label: str
    """The best known names, for a sentence."""
    names: frozenset[str]
    parts: tuple[str, ...] = ()
    """Parts of names that hint at the purpose."""

    def include(self, name: str) -> bool:
        """Return whether a task's name is one of them."""
        return name in self.names or any(part in name for part in self.parts)


def _cut(*names: str) -> frozenset[str]:
    return frozenset(name[:_COMM] for name in names)


DEVICE_MAPPER = Programs(
    "lvm, dmsetup or the like",
    _LVM
    | _cut("dmsetup", "dmeventd", "dmstats", "blkdeactivate", "multipath", "multipathd", "kpartx")
    | _cut("cryptsetup", "cryptsetup-reencrypt", "veritysetup", "integritysetup", "stratisd")
    | _cut("snapper", "timeshift", "udisksd", "dockerd"),
)
"""They suspend devices of device mapper."""
FREEZERS = Programs(
    "fsfreeze, lvm, qemu-ga or the like",
    _LVM
    | _cut("dmsetup", "dmeventd", "qemu-ga", "vmtoolsd", "hv_vss_daemon", "google_guest_agent")
    | _cut("waagent", "xe-daemon", "prl_tools", "rubrikagents", "cvd", "bpbkar", "dsmc"),
    ("freeze", "snapshot", "snapper", "backup", "veeam"),
)
"""They freeze file systems, often for a snapshot or backup."""
REPAIRERS = Programs("dmeventd", frozenset({"dmeventd", "lvconvert", "lvm"}))
"""They repair mirrors."""


@once
def _known(kernel: Kernel) -> dict[Programs, dict[int, str]]:
    """Return what :func:`processes` has found: each of many findings asks for the same."""
    return {}


def processes(kernel: Kernel, known: Tasks, programs: Programs) -> dict[int, str]:
    """Return the names of processes that may be of some programs, by PID; printable.

    :raises LookupError: the debug info lacks a type or member
    """
    found = _known(kernel)
    if programs not in found:
        found[programs] = _processes(kernel, known, programs)
    return found[programs]


def _processes(kernel: Kernel, known: Tasks, programs: Programs) -> dict[int, str]:
    is_alive = ~np.broadcast_to(known.has_exited | known.is_kthread, len(known))
    rows = [row for row in np.flatnonzero(is_alive).tolist() if programs.include(known.comm[row])]
    if not rows:
        return {}
    members = layout(kernel.prog, "struct task_struct", ["tgid"])
    tgid = gather(kernel.memory, known.address[rows], members, Faults())["tgid"]
    found: dict[int, str] = {}
    for row, pid in zip(rows, tgid.tolist(), strict=True):
        found.setdefault(int(pid), task_name(known.comm[row], int(pid)))
    return found


def condition(
    kernel: Kernel,
    known: Tasks,
    programs: Programs,
    done: str,
    waiters: Container[int] = (),
    but: Container[int] = (),
) -> str:
    """Return the end of a sentence such as "Resume the device": when to do so.

    :param done: what the programs have done, such as ``suspended``
    :param waiters: PIDs of tasks that wait for the end of that
    :param but: PIDs of tasks that have not done it
    :raises LookupError: the debug info lacks a type or member
    """
    if kernel.has_pseudonyms:
        return (
            f" once no program is at work that may have {done} it ({programs.label}; this capsule "
            "has other names)"
        )
    every = processes(kernel, known, programs)
    found = {pid: name for pid, name in every.items() if pid not in but}
    others = [name for pid, name in found.items() if pid not in waiters]
    if others:
        need = "needs" if len(others) == 1 else "need"
        return f", unless {listed(others, _MOST_TOLD)} still {need} it {done}"
    if found:
        names = listed([*found.values()], _MOST_TOLD)
        waits = "waits" if len(found) == 1 else "wait"
        return f": {names} may have {done} it, but {waits} for the end of that, too"
    return (
        f": no process has a name like {programs.label}; the program that has {done} it has "
        "probably ended"
    )
