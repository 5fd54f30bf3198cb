# SPDX-License-Identifier: LGPL-2.1-or-later
"""C strings at many addresses."""

from __future__ import annotations

import drgn
import numpy as np

from kcensus.engine.gather import gather_arrays, plausible
from kcensus.engine.memory import Faults, Memory, Words
from kcensus.sources.capsule.uses import Use

_LENGTHS = (64, 256, 4096)
"""Most names are short, and a long read may run into a page that is not there."""


def c_strings(memory: Memory, addresses: Words, faults: Faults) -> list[bytes | None]:
    """Return the C string of up to 4096 bytes at each address, not safe to print; None if
    unreadable."""
    strings: list[bytes | None] = [None] * len(addresses)
    rows = np.arange(len(addresses))
    for length in _LENGTHS:
        noted = faults if length == _LENGTHS[-1] else Faults()
        text, readable = gather_arrays(memory, addresses[rows], length, np.uint8, noted, None)
        ends = text == 0
        done = readable & ends.any(axis=1)
        stops = ends.argmax(axis=1)
        memory.note(addresses[rows[done]], stops[done] + 1, Use.TEXT)
        for row in np.flatnonzero(done).tolist():
            strings[rows[row]] = text[row, : stops[row]].tobytes()
        rows = rows[~done]
    for row in rows[plausible(memory, addresses[rows], _LENGTHS[-1])].tolist():
        # Near the end of a readable page, a short string may be complete.
        try:
            string = memory.prog.read_c_string(int(addresses[row]), max_size=_LENGTHS[-1])
        except drgn.FaultError as error:
            faults.note(error)
        else:
            strings[row] = string if len(string) < _LENGTHS[-1] else None
    return strings
