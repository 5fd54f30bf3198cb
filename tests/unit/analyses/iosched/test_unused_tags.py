# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests whose tag in the driver is free, of *synthetic* queues."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from kcensus.analyses.iosched.kernel.checks import _unused_tags
from kcensus.kernel.block.hardware import Tags

_MAPS = np.array([16, 16, 32], np.uint64)
"""The first two tags share a map."""


def _figures(*requests: tuple[int, int], live: bool = False) -> Any:
    """Return requests with queue and tag; the first one is a flush. Tags 1 and 2 are in use."""
    queue, tag = np.array(requests).T
    tags = Tags(
        address=np.array([1, 2, 3], np.uint64), depth=np.full(3, 8), reserved=np.zeros(3, int),
        rqs=_MAPS, static_rqs=_MAPS, map=_MAPS, reserved_map=_MAPS, used=np.full(3, 2),
        bit_row=np.repeat(np.arange(3), 2), bit_tag=np.tile([1, 2], 3),
    )  # fmt: skip
    return SimpleNamespace(
        kernel=SimpleNamespace(live=live),
        hardware=SimpleNamespace(tags=tags.address, tag_sets=tags),
        requests=SimpleNamespace(
            hardware_queue=queue,
            tag=tag,
            operation=np.arange(len(tag)) == 0,
            operations=SimpleNamespace(is_flush=lambda operation: operation),
        ),
    )


def test_tags_in_use() -> None:
    # One before it has a tag, and one of a legacy queue.
    assert _unused_tags(_figures((0, 7), (0, 1), (1, 2), (2, 1), (2, -1), (-1, 5))) == 0


def test_tags_that_are_free() -> None:
    lost = (0, 7), (1, 3), (2, 0), (2, 2)
    assert _unused_tags(_figures(*lost)) == 2
    assert _unused_tags(_figures(*lost, live=True)) == 0
