# SPDX-License-Identifier: LGPL-2.1-or-later
"""The class of a failure: a fixed phrase, where its sentence may have names of the machine."""

from __future__ import annotations

OTHER = "failed"


def kind_of(error: BaseException) -> str:
    """Return the class of a failure, without anything of the target."""
    import drgn  # the parent of a process that reads a target does without these

    from kcensus.engine.slub.slabs import UnsupportedAllocator
    from kcensus.kernel.vfs.list_lru import NoListLru
    from kcensus.sources.capsule import NotRecorded

    cause = error.__cause__ or error
    match cause:
        case MemoryError():
            return "exceeds the memory limit"
        case drgn.FaultError():
            return "memory is unreadable or missing"
        case UnsupportedAllocator() | NoListLru():
            return "does not support this kernel"
        case NotRecorded():
            return "not in the capsule"
        case LookupError() | drgn.ObjectAbsentError():  # MissingDebugInfoError, too
            return "lacks debug info"
    return OTHER
