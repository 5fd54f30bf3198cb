# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel that is open already, where kcensus runs inside crash or drgn.

There, a command without a target is about this kernel. Its name is ``session`` where a command
needs one, as ``kcensus diff monday.json session`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kcensus.sources.model import Request, Source, Target

SPEC = "session"

_openers: list[Callable[[Request], Target]] = []
"""How to open it, innermost last; empty where kcensus runs on its own."""


@contextmanager
def session(opener: Callable[[Request], Target]) -> Iterator[None]:
    """Make a kernel the target of commands without one, for the time of a ``with``.

    :param opener: opens it, each time that a command needs it
    """
    _openers.append(opener)
    try:
        yield
    finally:
        _openers.pop()


def is_open() -> bool:
    """Return whether kcensus runs inside a session."""
    return bool(_openers)


SOURCE = Source(lambda spec: spec == SPEC and is_open(), lambda request: _openers[-1](request))
