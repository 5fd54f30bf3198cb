# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commands that run Python in a process of its own."""

from __future__ import annotations

import os
import sys

_WITHOUT_DIRECTORY = "import sys; sys.path[:] = filter(None, sys.path); "
"""Python statements after which nothing is imported from the current directory: as that of a
customer's dump, it may have a ``drgn.py`` of its own."""


def python(statements: str) -> list[str]:
    """Return a command that runs statements, without imports from the current directory."""
    return [sys.executable, "-c", _WITHOUT_DIRECTORY + statements]


def environment() -> dict[str, str]:
    """Return an environment in which the process imports what this one can."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
