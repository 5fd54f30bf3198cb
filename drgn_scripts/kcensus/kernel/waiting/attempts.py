# SPDX-License-Identifier: LGPL-2.1-or-later
"""Parts of a read that fail one by one: a subject without debug info costs only its own figures."""

from __future__ import annotations

from collections.abc import Callable

import drgn

from kcensus.engine.memory import Faults
from kcensus.engine.slub.slabs import UnsupportedAllocator
from kcensus.sources.capsule import NotRecorded


class Attempts:
    """A read of several subjects."""

    def __init__(self) -> None:
        self.missing: list[str] = []
        """Subjects without debug info, such as ``XFS buffers``."""
        self.faults = Faults()

    def attempt(self, what: str, work: Callable[[], None]) -> None:
        """Call a function; note ``what`` as missing if the dump or debug info lacks a part."""
        try:
            work()
        except (LookupError, NotRecorded, UnsupportedAllocator):
            self.missing.append(what)
        except drgn.FaultError as error:
            self.faults.note(error)
            self.missing.append(what)
