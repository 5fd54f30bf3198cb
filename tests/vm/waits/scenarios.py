# SPDX-License-Identifier: LGPL-2.1-or-later
"""The guests with tasks that wait for each other, and the kernels on which tests usually have them.

To make them all takes some minutes; what one kernel tells about a scenario, another rarely adds to.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from _pytest.mark import ParameterSet

from kcensus.analyses import analyses
from tests.lab import kernels, usual_scenarios

MODULES = analyses()["waits"].needed_modules
"""The kernel modules whose debug info `waits` uses."""

MADE: dict[str, tuple[str, ...]] = {
    "waits-abba": ("6.1",),
    "waits-four": ("6.1", "7.3"),
    "waits-rwsem": ("7.3",),
    "waits-self": ("6.1",),
    "waits-completion": ("7.3",),
    "waits-kinds": ("6.1",),
    "waits-convoy": ("6.1",),
    "waits-rcu": ("7.3",),
}
"""Those that our module makes, and accounts for."""

FOUND: dict[str, tuple[str, ...]] = {
    "waits-freeze": ("5.10", "7.3"),
    "waits-coredump": ("6.1",),
    "waits-fuse": ("7.3",),
    "waits-futex": ("6.1",),
    "waits-log": ("7.3",),
    "waits-suspended": ("5.10", "7.3"),
    "waits-stopped": ("5.10", "7.3"),
    "waits-servers": ("5.10", "7.3"),
    "waits-scsi": ("5.10", "7.3"),
    "waits-stacked": ("5.10", "7.3"),
    "waits-stacked-disk": ("7.3",),
    "waits-mirror": ("5.10", "7.3"),
    "waits-memory": ("5.10", "7.3"),
    "waits-cpu": ("7.3",),
    "waits-writeback": ("5.10", "7.3"),
    "waits-dirty": ("7.3",),
    "waits-healthy": ("6.1",),
}
"""Those that the kernel makes without it."""

CYCLES: dict[str, list[set[str]]] = {
    "waits-abba": [{"abba-1", "abba-2"}],
    "waits-four": [{"core-reader", "crash-with", "kworker", "offline-memory"}],
    "waits-rwsem": [
        {"again-read", "again-write"},
        {"inverse-1", "inverse-2"},
        {"owner-read", "owner-write"},
    ],
    "waits-self": [{"kworker"}, {"self-mutex"}, {"self-rwsem"}, {"self-semaphore"}],
    "waits-completion": [{"event-complete", "event-wait"}, {"kworker", "work-flush"}],
    "waits-kinds": [
        {"bit-1", "bit-2"},
        {"percpu-1", "percpu-2"},
        {"rt-mutex-1", "rt-mutex-2"},
        {"semaphore-1", "semaphore-2"},
    ],
    "waits-convoy": [],
    "waits-rcu": [],
}
"""The tasks of each cycle, by name, without what follows the slash of a worker's."""


def built_elsewhere(scenario: str) -> list[str]:
    """Return the kernels of other machines that have a scenario without being asked."""
    return [name for name in kernels(every=True) if scenario in (usual_scenarios(name) or ())]


def params(scenarios: Mapping[str, tuple[str, ...]]) -> list[ParameterSet]:
    return [
        pytest.param(name, marks=pytest.mark.usually(*kernels, *built_elsewhere(name)), id=name)
        for name, kernels in scenarios.items()
    ]


def cases(scenario: str) -> pytest.MarkDecorator:
    """Run a test on the cases of a scenario."""
    kernels = {**MADE, **FOUND}[scenario]
    return pytest.mark.parametrize("case", params({scenario: kernels}), indirect=True)
