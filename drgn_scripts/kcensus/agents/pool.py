# SPDX-License-Identifier: LGPL-2.1-or-later
"""Processes that read targets: one for each target, or pair of targets, of the last questions."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from kcensus.agents.messages import MAX_ERROR, MAX_PROCESSES, Question, Reply, Settings, check
from kcensus.agents.places import Chosen
from kcensus.limits.children import KEEP_MEMORY, connected, end
from kcensus.text import bounded, printable

_PROGRAM = "from kcensus.agents import worker; worker.main()"
_MAX_MESSAGE = 4 << 20

Key = tuple[Chosen, ...]


class QuestionError(Exception):
    """A question has no answer; the message is one sentence, which may quote names of the dump."""


class _Process:
    """A process, and the lock of the call that it works for."""

    def __init__(self, settings: Settings, key: Key) -> None:
        self.lock = anyio.Lock()
        self.used = 0
        self.process, self.connection = connected(_PROGRAM, **KEEP_MEMORY)
        for each in (settings, [chosen.path for chosen in key]):
            self.connection.send_bytes(msgspec.json.encode(each))

    async def reply(self) -> Reply:
        """Return the next message.

        :raises EOFError: the process has ended; :class:`OSError`, too
        """
        content = await anyio.to_thread.run_sync(
            self.connection.recv_bytes, _MAX_MESSAGE, abandon_on_cancel=True
        )
        return msgspec.json.decode(content, type=Reply)

    async def end(self) -> int | None:
        """Kill the process, and return its status.

        The connection is closed when the thread that waits for a message lets go of it.
        """
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(end, self.process)
        return self.process.returncode


class Pool:
    """The processes, the least recently used of which ends for a new one."""

    def __init__(self, settings: Settings, seconds: float) -> None:
        self._settings, self._seconds = settings, seconds
        self._processes: dict[Key, _Process] = {}
        self._calls = anyio.Semaphore(MAX_PROCESSES)
        self._clock = itertools.count(1)

    async def ask(self, key: Key, question: Question, tell: Callable[[str], None]) -> Any:
        """Return the answer to a question about targets.

        A call that is cancelled, or takes too long, ends the process.

        :param tell: takes the titles of steps
        :raises QuestionError: there is no answer
        """
        try:
            with anyio.fail_after(self._seconds):
                async with self._calls:
                    while True:
                        process = await self._of(key)
                        async with process.lock:
                            # It may have ended with the call before.
                            if self._processes.get(key) is process:
                                return await self._exchange(key, process, question, tell)
        except TimeoutError:
            raise QuestionError(
                f"the call took longer than {self._seconds:g} s and was ended; ask for less, or "
                "start `kcensus mcp` with a larger --timeout"
            ) from None

    async def _of(self, key: Key) -> _Process:
        """Return the process for targets: a new one takes the place of an idle one.

        Each call needs one at most, so that an idle one is found.
        """
        paths = [chosen.path for chosen in key]
        while key not in self._processes:
            idle = [each for each, one in self._processes.items() if not one.lock.locked()]
            # A file that has changed is another target.
            old = [each for each in idle if [chosen.path for chosen in each] == paths]
            if not old and len(self._processes) < MAX_PROCESSES:
                self._processes[key] = _Process(self._settings, key)
                break
            last = min(old or idle, key=lambda each: self._processes[each].used)
            await self._processes.pop(last).end()
        self._processes[key].used = next(self._clock)
        return self._processes[key]

    async def _exchange(
        self, key: Key, process: _Process, question: Question, tell: Callable[[str], None]
    ) -> Any:
        is_done = False
        try:
            await anyio.to_thread.run_sync(
                process.connection.send_bytes, msgspec.json.encode(question),
                abandon_on_cancel=True,
            )  # fmt: skip
            while True:
                reply = await process.reply()
                if reply.answer is not None:
                    check(reply.answer, bool(key))
                    is_done = True
                    return reply.answer
                if reply.error:
                    is_done = not reply.is_last
                    raise QuestionError(bounded(printable(reply.error), MAX_ERROR))
                tell(reply.step)
        except (EOFError, OSError, RecursionError, msgspec.MsgspecError):
            status = await process.end()
            raise QuestionError(_death(status)) from None
        finally:
            if not is_done:
                if self._processes.get(key) is process:
                    del self._processes[key]
                await process.end()

    async def close(self) -> None:
        """End all processes."""
        while self._processes:
            await self._processes.popitem()[1].end()


def _death(status: int | None) -> str:
    how = f"signal {signal.Signals(-status).name}" if status and status < 0 else f"status {status}"
    return (
        f"the process that read the target ended ({how}): the target is damaged, or the memory did "
        "not suffice; `kcensus doctor TARGET` on the command line tells more"
    )
