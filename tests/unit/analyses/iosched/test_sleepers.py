# SPDX-License-Identifier: LGPL-2.1-or-later
"""How long tasks have waited."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from kcensus.analyses.iosched.kernel.sleepers import since_submitted
from kcensus.kernel.tasks.functions import WaitKind


class Waits(SimpleNamespace):
    """Tasks with what they wait for, and for how long they have been off their CPU."""

    def __len__(self) -> int:
        return len(self.kind)


def test_a_task_that_woke_up_has_waited_since_its_last_request() -> None:
    waits: Any = Waits(
        kind=[WaitKind.REQUEST, WaitKind.XFS_BUF, WaitKind.REQUEST, WaitKind.REQUEST],
        since_ns=np.array([5, 5, 50, 7]),
    )
    joins: Any = SimpleNamespace(
        wait=np.array([0, 0, 1, 2, 3]),
        request=np.array([0, 1, 0, 1, 2]),
        is_proven=np.array([True, True, True, True, True]),
    )
    since = since_submitted(waits, joins, np.array([61, 60, -1]))
    # Two requests; another's request; asleep for longer than its request has existed; unknown.
    assert since.tolist() == [60, 5, 60, 7]
