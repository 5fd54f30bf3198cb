# SPDX-License-Identifier: LGPL-2.1-or-later
"""The workers of a Dask cluster that read one target."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import dask
import distributed

from kcensus.fleets import FleetError, clients
from kcensus.fleets.split import Opened, Order, Outcome, follower, identity, versions
from kcensus.text import printable

_ANSWER = 5.0
"""Seconds for the scheduler to answer."""
_OPEN = 60.0
"""Seconds for workers to open the target."""
_LOOK = 10.0
"""Seconds between two looks at whether the workers are still there; a lost one is noticed when the
connection to it fails, after half of that."""
_MOST_PROCESSES = 64
"""The leader takes the answers of more no faster."""


class Cluster:
    """The workers of a scheduler, which begin to open a target at once.

    :param most: processes to use
    :param least: threads of workers below which the target is not opened
    :raises FleetError: the scheduler does not answer, or has no workers
    """

    def __init__(
        self, address: str, order: Order, most: int = _MOST_PROCESSES, least: int = 1
    ) -> None:
        clients.silence()
        # It would try to reach a lost worker for 30 seconds.
        dask.config.set({"distributed.comm.timeouts.connect": f"{_ANSWER:.0f}s"})
        self._order = order
        most = min(most, _MOST_PROCESSES)
        self.processes = 0
        self._client = clients.client(address, direct_to_workers=True, set_as_default=False)
        self._workers: list[str] = []
        self._opening: dict[str, Any] = {}
        self._threads: dict[str, int] = {}
        every = self._client.nthreads()
        self.threads = sum(every.values())
        """Of all workers."""
        for worker, threads in sorted(every.items()) if self.threads >= least else ():
            number = min(threads, most - sum(self._threads.values()))
            if number > 0:
                self._threads[worker] = number
                self._opening[worker] = self._client.submit(
                    follower.prepare, order, number, workers=[worker], pure=False, priority=1
                )
        if not every:
            self.close()
            raise FleetError(
                f"the scheduler '{printable(address)}' has no workers; start some with "
                f"`dask worker {printable(address)}`"
            )

    def opened(self, paths: tuple[str, ...]) -> list[str]:
        """Wait until the workers have opened the target, and compare it with the files here.

        :param paths: all files of the target, absolute
        :return: a sentence for each worker that is left out
        :raises FleetError: none is left
        """
        ours, own = identity(paths), versions()
        deadline = time.monotonic() + _OPEN
        refused = []
        for worker, future in self._opening.items():
            try:
                reason = _refusal(self._first(worker, future, deadline), ours, own)
            except ImportError as error:
                reason = f"cannot import kcensus: {error}"
            except Exception as error:  # of another version, or the worker is lost
                reason = f"cannot open the target: {type(error).__name__}: {error}"
            if reason:
                refused.append(f"worker {worker} {printable(reason)}")
            else:
                self._workers.append(worker)
        self.processes = sum(self._threads[worker] for worker in self._workers)
        if not self._workers:
            more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
            raise FleetError(refused[0] + more)
        return [f"{sentence}; it is left out" for sentence in refused]

    def _first(self, worker: str, opening: Any, deadline: float) -> Opened:
        while time.monotonic() < deadline:
            try:
                opened: Opened = opening.result(_LOOK)
                return opened
            except (TimeoutError, distributed.TimeoutError):
                if worker not in self._known():
                    return Opened("the worker has ended")
        return Opened(f"it was not open after {_OPEN:.0f} seconds")

    def send(self, content: bytes) -> Any:
        try:
            return self._client.scatter(
                content, workers=self._alive(), broadcast=True, hash=False, timeout=_OPEN
            )
        except Exception:  # whatever it is, the leader does the work
            return None

    def submit(self, work: str, handle: Any, tasks: range) -> Any:
        try:
            return self._client.submit(
                follower.share, self._order, work, handle, tasks.start, tasks.stop,
                workers=self._workers, pure=False,
            )  # fmt: skip
        except Exception:  # the scheduler is lost
            return None

    def outcome(self, share: Any) -> Outcome:
        while share is not None:
            try:
                outcome: Outcome = share.result(_LOOK)
                return outcome
            except (TimeoutError, distributed.TimeoutError):
                if not self._alive():
                    break
            except Exception as error:  # the worker or the scheduler is lost
                return Outcome(error=f"{type(error).__name__}: {error}")
        return Outcome(error="the workers are lost")

    def drop(self, shares: list[Any]) -> None:
        known = [share for share in shares if share is not None]
        _briefly(lambda: self._client.cancel(known))

    def _known(self) -> dict[str, int]:
        """Return the threads of the workers that the scheduler has; empty without a scheduler."""
        known: dict[str, int] = {}
        _briefly(lambda: known.update(self._client.nthreads()))
        return known

    def _alive(self) -> list[str]:
        known = self._known()
        return [worker for worker in self._workers if worker in known]

    def close(self) -> None:
        """End what was started for the target, on all workers."""
        if self._opening and self._client.status == "running":
            _briefly(
                lambda: self._client.run(
                    follower.close, self._order.id, workers=[*self._opening], on_error="ignore"
                )
            )
        _briefly(lambda: self._client.close(timeout=1))


def _refusal(opened: Opened, ours: dict[str, str], own: dict[str, str]) -> str:
    """Return why a worker cannot be used, as the end of a sentence; empty if it can."""
    for name, version in own.items():
        theirs = opened.versions.get(name, version)
        if theirs != version:
            return f"has {name} {theirs}, and this machine {version}; install the same"
    if opened.error:
        return (
            f"cannot open the target ({opened.error}); put it, and its debug info, under the same "
            "path on all workers"
        )
    for path, content in ours.items():
        if opened.files.get(path) != content:
            return f"has another file at '{path}'; put it on storage that all workers share"
    return ""


def _briefly(action: Callable[[], Any]) -> None:
    """Do what may wait for a lost scheduler, for a few seconds only."""

    def quiet() -> None:
        try:
            action()
        except Exception:  # the scheduler is lost, so nothing is left to end
            return

    thread = threading.Thread(target=quiet, daemon=True)
    thread.start()
    thread.join(_ANSWER)
