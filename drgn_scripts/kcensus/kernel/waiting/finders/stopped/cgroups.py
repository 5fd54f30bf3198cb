# SPDX-License-Identifier: LGPL-2.1-or-later
"""Frozen cgroups, whose tasks hold what others wait for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import drgn
import numpy as np
from drgn import Object

from kcensus.engine.memory import Words
from kcensus.human import counted
from kcensus.kernel.memcg.cgroup_mounts import cgroup_mount
from kcensus.kernel.names import MISSING, cgroup_path
from kcensus.kernel.tasks.tasks import TRAPS
from kcensus.kernel.waiting.finder import Draft, Finder, Stall
from kcensus.kernel.waiting.graph import TASK, EdgeKind, NodeKind
from kcensus.results import Figure, Finding, Remedy, Severity
from kcensus.text import pasteable, printable

CGROUP = NodeKind("frozen cgroup", ("struct cgroup",))
FROZEN = EdgeKind("frozen with", "freezes")
_FREEZING_SELF = 1 << 1
"""CGROUP_FREEZING_SELF: the cgroup itself is frozen, and not only one above it."""
_MAX_LEVELS = 1 << 10
"""Most cgroups above one."""
_MAX_SETS = 1 << 12
"""Most ``struct css_set`` of frozen tasks: kinds of places in all hierarchies."""


class FrozenCgroups(Finder):
    """Finds the frozen cgroups of tasks."""

    about = "frozen cgroups"
    kinds = (CGROUP,)

    def __init__(self, draft: Draft) -> None:
        super().__init__(draft)
        self.frozen: dict[int, set[int]] = {}
        """PIDs of the tasks in each frozen cgroup."""

    def find(self) -> None:
        """Add edges from frozen tasks to the topmost frozen cgroup above them.

        :raises LookupError: the debug info lacks a type or member
        """
        known = self.known
        is_frozen = np.broadcast_to(known.is_frozen, len(known)) & ~known.is_kthread
        self._add(known.address[is_frozen], "freezer.state")
        is_trapped = np.broadcast_to(known.is_trapped, len(known))
        functions = zip(self.rows.tolist(), self.waits.function, strict=True)
        rows = [row for row, function in functions if is_trapped[row] and function in TRAPS]
        self._add(known.address[rows], "cgroup.freezer.freeze")

    def _add(self, tasks: Words, evidence: str) -> None:
        if not len(tasks):
            return
        owners = self._member("struct task_struct", "cgroups", tasks)
        sets = np.unique(owners[owners != 0])[:_MAX_SETS]
        is_v2 = evidence.startswith("cgroup")
        frozen = {each: self._topmost(each, is_v2=is_v2) for each in sets.tolist()}
        cgroup = np.array([frozen.get(each, 0) for each in owners.tolist()], np.uint64)
        kept = cgroup != 0
        self.build.edges(
            FROZEN, (TASK, tasks[kept]), (CGROUP, cgroup[kept]), evidence, place=cgroup[kept]
        )
        for each in np.unique(cgroup[kept]).tolist():
            self.names[CGROUP, each] = "".join(self._place(each)[:2])
            pids = self.known.pid[self.known.rows(tasks[cgroup == each])].tolist()
            self.frozen.setdefault(each, set()).update(pids)

    def _topmost(self, css_set: int, *, is_v2: bool) -> int:
        """Return the topmost frozen ``struct cgroup`` of a ``struct css_set``; 0 for none."""
        found = 0
        try:
            for cgroup, is_frozen in self._above(css_set, is_v2=is_v2):
                found = int(cgroup) if is_frozen else found
        except drgn.FaultError as error:
            self.faults.note(error)
        return found

    def _above(self, css_set: int, *, is_v2: bool) -> Iterator[tuple[Object, bool]]:
        """Yield the cgroups of a ``struct css_set``, upwards, and whether each is frozen."""
        prog = self.kernel.prog
        places = Object(prog, "struct css_set *", value=css_set)
        if is_v2:
            css = places.dfl_cgrp.self.address_of_()
        else:
            css = places.subsys[int(prog.constant("freezer_cgrp_id"))]
        for _ in range(_MAX_LEVELS):
            if not css:
                return
            if is_v2:
                yield css.cgroup, bool(css.cgroup.freezer.freeze)
            else:
                freezer = drgn.container_of(css, "struct freezer", "css")
                yield css.cgroup, bool(int(freezer.state) & _FREEZING_SELF)
            css = css.parent.read_()

    def _place(self, address: int) -> tuple[str, str, bool]:
        """Return mount point and path of a cgroup, and whether it is of version 2.

        The mount point and the path are empty if unknown, and not safe to print.
        """
        path = ""
        with contextlib.suppress(*MISSING):
            path = cgroup_path(Object(self.kernel.prog, "struct cgroup *", value=address))
        mount = cgroup_mount(self.kernel, address)
        return mount.path, path, mount.is_unified

    def finding(self, kind: NodeKind, address: int, stall: Stall) -> Finding | None:
        """Return the finding about a frozen cgroup, with the command to thaw it."""
        if kind is not CGROUP:
            return None
        mount, path, is_v2 = self._place(address)
        whole = f"{mount}{path}"
        shown = printable(whole) or f"0x{address:x}"
        frozen = self.frozen[address]
        waiters = stall.tasks - frozen
        # Programs without a task in state D may wait for a paused container on purpose.
        blocked = frozenset(self.known.pid[self.known.is_blocked].tolist())
        most = Severity.WARNING if blocked & waiters else Severity.NOTICE
        file = (
            pasteable(f"{whole}/{'cgroup.freeze' if is_v2 else 'freezer.state'}") if mount else ""
        )
        thaw = Remedy(
            effect="Thaw the cgroup, unless a tool that is about to end has frozen it (pause of a "
            "container, a checkpoint)",
            command=f"echo {'0' if is_v2 else 'THAWED'} > {file}",
            risk="all tasks of a paused container continue",
            undo=f"echo {'1' if is_v2 else 'FROZEN'} > {file}",
        )
        return replace(stall, count=len(waiters)).finding(
            "waits-frozen-cgroup",
            shown,
            f"{counted(len(frozen), 'task')} of the frozen cgroup {shown}",
            "cgroup.freezer.freeze is set" if is_v2 else "freezer.state has CGROUP_FREEZING_SELF",
            (thaw,) * bool(file),
            "Thaw the cgroup (cgroup.freeze, or freezer.state with version 1), or continue its "
            "container",
            severity=min(stall.severity(), most),
            figures={"frozen": Figure(len(frozen))},
        )


FINDER = FrozenCgroups
