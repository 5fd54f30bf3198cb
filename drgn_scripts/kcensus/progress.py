# SPDX-License-Identifier: LGPL-2.1-or-later
"""Progress as the lower layers report it: a protocol, and a silent implementation.

The engine reports steps; the command decides whether and how to show them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Step(Protocol):
    """One running piece of work of a known size."""

    def advance(self, amount: int = 1) -> None:
        """Report that ``amount`` more units of the total are done."""

    def skip(self, amount: int = 1) -> None:
        """Report that ``amount`` more units were done before; they do not count for the speed."""


class Progress(Protocol):
    """Takes the steps of an analysis."""

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Step]:
        """Announce a step of ``total`` units, 0 where unknown; it ends with the context."""
        ...


class SilentProgress:
    """Shows nothing; it is its own step."""

    @contextmanager
    def step(self, title: str, total: int) -> Iterator[Step]:
        yield self

    def advance(self, amount: int = 1) -> None:
        pass

    def skip(self, amount: int = 1) -> None:
        pass
