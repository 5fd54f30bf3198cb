# SPDX-License-Identifier: LGPL-2.1-or-later
"""Debug info from debuginfod servers, if the user asks for it.

The client is imported only then: it takes as long as a seventh of the start of kcensus.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from kcensus.progress import Progress

if TYPE_CHECKING:
    from kcensus.sources.debuginfo.debuginfod.client import Servers

_servers: ContextVar[Servers | None] = ContextVar("servers", default=None)


@contextmanager
def allowed(progress: Progress) -> Iterator[None]:
    """Let targets that are opened meanwhile, and their modules, have their debug info downloaded.

    :raises RequestError: ``DEBUGINFOD_URLS`` is not set, or has something else than URLs
    """
    from kcensus.sources.debuginfo.debuginfod.client import Servers

    token = _servers.set(Servers(progress))
    try:
        yield
    finally:
        _servers.reset(token)


def current() -> Servers | None:
    """Return the servers to use; None if the user did not ask for any."""
    return _servers.get()
