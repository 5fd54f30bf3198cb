# SPDX-License-Identifier: LGPL-2.1-or-later
"""What this process may take of the machine that it runs on: CPU time, memory, priority.

Limits are those of the whole process, so there are none unless it is kcensus's own: inside crash
and drgn, and where a program imports :mod:`kcensus`, the process belongs to that program.
"""

from __future__ import annotations

_owned = False


def own_process() -> None:
    """Declare that this process is the command ``kcensus``, so that limits may be set."""
    global _owned
    _owned = True


def is_own_process() -> bool:
    """Return whether this process is the command ``kcensus``."""
    return _owned
