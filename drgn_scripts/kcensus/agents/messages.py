# SPDX-License-Identifier: LGPL-2.1-or-later
"""Messages between the server and the processes that read targets, as JSON."""

from __future__ import annotations

from typing import Any

import msgspec

MAX_ERROR = 2000
"""Characters of a sentence about an error."""
MAX_PROCESSES = 3
"""Processes that read targets at once."""


class Settings(msgspec.Struct, frozen=True):
    """What the server was started with, for the processes that read targets."""

    roots: tuple[str, ...] = ()
    allow_live: bool = False
    symbols: tuple[str, ...] = ()
    allow_truncated: bool = False
    memory: int | None = None
    """Bytes of private memory; None for a share of what is available."""


class Question(msgspec.Struct, frozen=True):
    """A call of a tool."""

    work: str
    arguments: dict[str, Any]


class Reply(msgspec.Struct, frozen=True):
    """A message to the server: a step, the end of a call with an answer, or with an error."""

    step: str = ""
    answer: dict[str, Any] | None = None
    error: str = ""
    is_last: bool = False
    """Whether the process ends with it."""
