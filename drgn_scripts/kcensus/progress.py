# SPDX-License-Identifier: LGPL-2.1-or-later
"""Progress as the lower layers see it: a protocol, and the silent one.

The engine reports steps; a face decides whether and how to show them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Step(Protocol):
    """One running piece of work of a known size."""

    def advance(self, amount: int = 1) -> None:
        """``amount`` more units of the step's total are done."""


class Progress(Protocol):
    """Receives the steps of an analysis."""

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Step]:
        """Announce a step of ``total`` units; it is over when the context ends."""
        ...


class _SilentStep:
    def advance(self, amount: int = 1) -> None:
        pass


class SilentProgress:
    """Shows nothing."""

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Step]:
        yield _SilentStep()
