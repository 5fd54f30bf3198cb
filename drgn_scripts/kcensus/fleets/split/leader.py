# SPDX-License-Identifier: LGPL-2.1-or-later
"""Divide the tasks of :meth:`Memory.each` among workers; what they do not do is done here."""

from __future__ import annotations

import os
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import drgn

from kcensus.engine.workers import killed
from kcensus.fleets.split import Outcome, travel

LEAST_TASKS = 64
"""Tasks from which on they are divided: fewer take less than the way to the workers and back, which
is 0.2 to 0.4 seconds; a task takes 7 ms."""
_MOST_TASKS = 16
"""Of a share: each task returns up to 6 MB."""
_SHARES = 8
"""Per process, so that all end at nearly the same time."""
_WAITING = 3
"""Shares per process that are under way; their answers wait in memory for their turn."""


class Hands(Protocol):
    """Workers that have opened the target."""

    processes: int
    """Number of shares that are done at a time."""

    def send(self, content: bytes) -> Any:
        """Send a packed function to all workers, and return its handle; None if they are lost."""
        ...

    def submit(self, work: str, handle: Any, tasks: range) -> Any:
        """Begin a share."""
        ...

    def outcome(self, share: Any) -> Outcome:
        """Wait for a share; what was lost with its worker has an empty outcome."""
        ...

    def drop(self, shares: list[Any]) -> None:
        """Forget shares that are under way."""
        ...


class Divider:
    """Does tasks on workers, with the interface of :func:`kcensus.engine.workers.each`."""

    def __init__(self, hands: Hands, least: int = LEAST_TASKS) -> None:
        self._hands = hands
        self.least = least
        self.divided = 0
        """Tasks that workers did."""
        self.redone = 0
        """Tasks that workers were to do, but that were done here."""
        self.longest = 0
        """Tasks of the longest run that was too short to be divided."""
        self.reason = ""
        """Why tasks were done here."""

    def each(self, work: Callable[[int], Any], tasks: int, jobs: int) -> Iterator[Any]:
        """Yield the results of all tasks in order; ``jobs`` is of no account here.

        :raises WorkersKilled: the file shrank while a worker read it
        """
        if tasks < self.least:
            self.longest = max(self.longest, tasks)
            yield from map(work, range(tasks))
            return
        try:
            content, columns = travel.packed(work)
        except (pickle.PicklingError, TypeError, drgn.ObjectAbsentError) as error:
            yield from self._here(work, range(tasks), f"the work cannot travel: {error}")
            return
        handle = self._hands.send(content)
        if handle is None:
            yield from self._here(work, range(tasks), "the workers are lost")
            return
        del content
        name = os.urandom(8).hex()
        size = min(max(tasks // (self._hands.processes * _SHARES), 1), _MOST_TASKS)
        left = deque(range(start, min(start + size, tasks)) for start in range(0, tasks, size))
        waiting: deque[tuple[range, Any]] = deque()
        try:
            while left or waiting:
                while left and len(waiting) < _WAITING * self._hands.processes:
                    share = left.popleft()
                    waiting.append((share, self._hands.submit(name, handle, share)))
                share, future = waiting.popleft()
                outcome = self._hands.outcome(future)
                del future
                if outcome.content:
                    self.divided += len(share)
                    yield from travel.taken(outcome.content, columns)
                elif outcome.signal == signal.SIGBUS:  # it would kill this process, too
                    raise killed(outcome.signal)
                else:
                    yield from self._here(work, share, outcome.error or "the worker is lost")
        finally:
            if waiting:
                self._hands.drop([future for _, future in waiting])

    def _here(self, work: Callable[[int], Any], tasks: range, reason: str) -> Iterator[Any]:
        self.redone += len(tasks)
        self.reason = self.reason or reason
        yield from map(work, tasks)
