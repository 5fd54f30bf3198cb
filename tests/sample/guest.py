# SPDX-License-Identifier: LGPL-2.1-or-later
"""A capsule of a guest, with what its own /proc said before the dump."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.engine.memory import Faults
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.functions import plain
from kcensus.kernel.tasks.stacks import stacks
from kcensus.kernel.tasks.tasks import tasks
from kcensus.results import Result
from kcensus.sources import open_target

_SLEEPS = frozenset(
    (
        *("__schedule", "schedule", "schedule_timeout", "io_schedule", "io_schedule_timeout"),
        *("__wait_for_common", "wait_for_completion", "schedule_preempt_disabled"),
        *("mutex_lock", "__mutex_lock_slowpath", "down_write", "rwsem_down_write_slowpath"),
        *("down", "__down", "___down_common", "do_nanosleep"),
    )
)
"""Functions that /proc/PID/stack leaves out."""


class Guest:
    """A guest; each analysis runs once."""

    def __init__(self, data: Path, name: str) -> None:
        self.name = name
        target = open_target(data / f"{name}.capsule")
        self.truth: dict[str, Any] = json.loads((data / f"{name}.json").read_text())
        self.prog = target.prog
        self.kernel = Kernel(target.prog)
        context = Context.of(target)
        self.results: dict[str, Result] = {
            name: context.run(analysis) for name, analysis in analyses().items()
        }

    def value(self, analysis: str, key: str) -> Any:
        """Return a figure of the summary."""
        return self.results[analysis].summary[key].value

    def check_dentry_state(self) -> None:
        """Compare the dentries with dentry-state; processes end between it and the dump."""
        dentries, unused, *_, negative, _ = map(int, self.truth["dentry-state"].split())
        alive = self.value("dentries", "dentries") - self.value("dentries", "dead")
        assert abs(alive - dentries) <= 2
        assert abs(self.value("dentries", "on_lru") - unused) <= 1
        # The kernel counts the negative ones on LRU lists only.
        assert 0 <= self.value("dentries", "negative") - negative <= 1

    def stacks(self) -> dict[str, list[str]]:
        """Return the addresses on the stacks of the tasks in the truth, as it has them."""
        found, truth = tasks(self.kernel), self.truth["stacks"]
        rows = np.array([int(np.flatnonzero(found.pid == int(pid))[0]) for pid in truth])
        walked = stacks(self.kernel, found, rows, Faults())
        assert not walked.is_cut.any()
        ours = {}
        for stack, pid in enumerate(truth):
            places = walked.pc[walked.frames(stack)].tolist()
            while plain(walked.names[places[0]]) in _SLEEPS:
                del places[0]
            ours[pid] = [f"{place:016x}" for place in places]
        return ours
