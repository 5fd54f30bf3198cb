# SPDX-License-Identifier: LGPL-2.1-or-later
"""Futexes that are locks, and those that idle threads wait for, in *synthetic* graphs."""

from __future__ import annotations

import pytest

from kcensus.analyses.waits.findings import findings
from kcensus.kernel.locking.owners import Strength
from kcensus.kernel.waiting.graph import NodeKind
from tests.unit.analyses.waits.making import Scene

_WAITING = dict.fromkeys(range(200), 0)


@pytest.mark.parametrize(
    ("kind", "holder", "found"),
    [
        (NodeKind.MUTEX, None, ["waits-unheld"]),
        (NodeKind.FUTEX, None, []),
        (NodeKind.FUTEX, Strength.POSSIBLE, ["waits-unheld"]),
        (NodeKind.FUTEX, Strength.DERIVED, ["waits-behind"]),
    ],
)
def test_threads_that_are_idle(kind: NodeKind, holder: Strength | None, found: list[str]) -> None:
    held = {} if holder is None else {0: (200, holder)}
    scene = Scene(201, _WAITING, held, interruptible=set(range(200)), kind=kind)
    assert [each.kind for each in findings(scene.figures())] == found
