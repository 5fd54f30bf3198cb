# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel that is open already, where kcensus runs inside crash or drgn.

There, a command without a target is about this kernel. Its name is ``session`` where a command
needs one, as ``kcensus validate PATCH monday.vmcore session`` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from kcensus.sources.model import Request, Source, Target

SPEC = "session"


@dataclass(frozen=True)
class _Session:
    opener: Callable[[Request], Target]
    keep: Callable[[Any], None]
    paths: Sequence[str]


_sessions: list[_Session] = []
"""Innermost last; empty where kcensus runs on its own."""


def _forget(result: Any) -> None:
    """Discard a result."""


@contextmanager
def session(
    opener: Callable[[Request], Target],
    keep: Callable[[Any], None] = _forget,
    paths: Sequence[str] = (),
) -> Iterator[None]:
    """Make a kernel the target of commands without one, for the time of a ``with``.

    :param opener: opens it, each time that a command needs it
    :param keep: gets each result and report that a command shows
    :param paths: files that it was opened from; a command that names one is about this kernel
    """
    _sessions.append(_Session(opener, keep, paths))
    try:
        yield
    finally:
        _sessions.pop()


def is_open() -> bool:
    """Return whether kcensus runs inside a session."""
    return bool(_sessions)


def is_session(spec: str | os.PathLike[str] | None) -> bool:
    """Return whether a target is the kernel that is open: by its name, or by a file of it."""
    if spec is None or not is_open():
        return False
    if spec == SPEC:
        return True
    for path in _sessions[-1].paths:
        with suppress(OSError, ValueError):
            if os.path.samefile(spec, path):
                return True
    return False


def keep(result: Any) -> None:
    """Give the session a result or report that is shown; does nothing without one."""
    for each in _sessions[-1:]:
        each.keep(result)


SOURCE = Source(is_session, lambda request: _sessions[-1].opener(request))
