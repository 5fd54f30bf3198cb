# SPDX-License-Identifier: LGPL-2.1-or-later
"""The open kernel of crash or drgn, if kcensus runs inside of these.

There, commands without a target are about it; other commands call it ``session``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from kcensus.sources.model import Request, Source, Target

SPEC = "session"


class _Session(NamedTuple):
    opener: Callable[[Request], Target]
    keep: Callable[[Any], None] | None
    paths: Sequence[str]


_sessions: list[_Session] = []
"""Innermost last; empty if kcensus runs on its own."""


@contextmanager
def session(
    opener: Callable[[Request], Target],
    keep: Callable[[Any], None] | None = None,
    paths: Sequence[str] = (),
) -> Iterator[None]:
    """Make a kernel the target of commands without one, for the time of a ``with``.

    :param opener: opens it for each command that needs it
    :param keep: gets each result and report that a command shows
    :param paths: files of the kernel; a command that names one is about this kernel
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
    """Return whether a target is the open kernel: by its name, or by one of its files."""
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
    """Give the session a result or report; do nothing without one."""
    if _sessions and (give := _sessions[-1].keep):
        give(result)


SOURCE = Source(is_session, lambda request: _sessions[-1].opener(request))
