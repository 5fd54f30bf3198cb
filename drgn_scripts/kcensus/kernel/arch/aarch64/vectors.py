# SPDX-License-Identifier: LGPL-2.1-or-later
"""The vector and matrix registers of arm64's programs that are outside of ``task_struct``."""

from __future__ import annotations

import numpy as np

from kcensus.engine.gather import gather
from kcensus.engine.layout import layout
from kcensus.engine.memory import Faults, Memory, Words

_MAX_LENGTH = 256
"""Bytes of the longest vectors that the architecture allows."""
_QUAD, _QUADS = 16, 32 * 16 + 17 * 2
"""Bytes of the shortest vector, and of 32 registers with vectors of it, 16 with a bit for each byte
and the first-fault register."""
_TABLE = 64
"""Bytes of ZT0, behind the square of ZA."""


def vectors(memory: Memory, tasks: Words, faults: Faults) -> tuple[Words, Words]:
    """Return the start and the end of the registers of SVE and SME of all tasks that have some.

    :param tasks: addresses of the ``struct task_struct``
    """
    optional = {
        # Since Linux kernel commit bc0ee4760364 ("arm64/sve: Core task context handling") (in
        # v4.15).
        "sve": "thread.sve_state",
        # Since Linux kernel commit 0033cd933964 ("arm64/sme: Implement ZA context switching") (in
        # v5.19); renamed by Linux kernel commit ce514000da4f ("arm64/sme: Rename za_state to
        # sme_state") (in v6.3).
        "sme": ("thread.sme_state", "thread.za_state"),
        "length": ("thread.vl[0]", "thread.sve_vl"),
        "streaming": "thread.vl[1]",
    }
    members = layout(memory.prog, "struct task_struct", [], optional)
    read = gather(memory, tasks, members, faults).columns
    none = np.zeros(len(tasks), np.uint64)
    most = np.uint64(_MAX_LENGTH)
    length, streaming = (
        np.minimum(read.get(name, none).astype(np.uint64), most) for name in ("length", "streaming")
    )
    quads = np.maximum(np.maximum(length, streaming) // np.uint64(_QUAD), np.uint64(1))
    starts, ends = [none[:0]], [none[:0]]
    sizes = {"sve": quads * np.uint64(_QUADS), "sme": streaming * streaming + np.uint64(_TABLE)}
    for name, size in sizes.items():
        start = read.get(name, none)
        starts.append(start[start != 0])
        ends.append((start + size)[start != 0])
    return np.concatenate(starts), np.concatenate(ends)
