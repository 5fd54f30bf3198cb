# SPDX-License-Identifier: LGPL-2.1-or-later
"""C strings at many addresses."""

from __future__ import annotations

import drgn
import numpy as np

from kcensus.engine.gather import gather_arrays, plausible
from kcensus.engine.memory import Faults, Memory, Words

_LENGTHS = (64, 256, 4096)
"""Most names are short, and a long read may run into a page that is not there."""


def c_strings(memory: Memory, addresses: Words, faults: Faults) -> list[bytes | None]:
    """Return the NUL-terminated string at each address.

    :return: None where it could not be read, or has no end within 4096 bytes; the bytes are what
        the kernel has, not safe to print
    """
    found: list[bytes | None] = [None] * len(addresses)
    rows = np.arange(len(addresses))
    for length in _LENGTHS:
        if not len(rows):
            break
        last = length == _LENGTHS[-1]
        text, readable = gather_arrays(
            memory, addresses[rows], length, np.uint8, faults if last else Faults()
        )
        ends = text == 0
        done = readable & ends.any(axis=1)
        stops = ends.argmax(axis=1)
        for at in np.flatnonzero(done).tolist():
            found[rows[at]] = text[at, : stops[at]].tobytes()
        rows = rows[~done]
    for at in rows[plausible(addresses[rows], _LENGTHS[-1])].tolist():
        # Near the end of a readable page a short string is all that is there.
        try:
            text_ = memory.prog.read_c_string(int(addresses[at]), max_size=_LENGTHS[-1])
        except drgn.FaultError as error:
            faults.note(error)
        else:
            found[at] = text_ if len(text_) < _LENGTHS[-1] else None
    return found
