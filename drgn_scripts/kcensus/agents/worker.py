# SPDX-License-Identifier: LGPL-2.1-or-later
"""The process that reads targets for the server, and answers one question at a time.

Its messages are JSON, since a hostile dump may have taken it over: the server checks all of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

import msgspec

from kcensus.agents.messages import MAX_ERROR, MAX_PROCESSES, Question, Reply, Settings
from kcensus.limits import memory, own_process, yield_to_others
from kcensus.limits.children import end_with
from kcensus.progress import SilentProgress, Step
from kcensus.text import bounded, printable


class _Told(SilentProgress):
    """Tells the server the titles of steps."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @contextlib.contextmanager
    def step(self, title: str, total: int) -> Iterator[Step]:
        _send(self._connection, Reply(step=bounded(printable(title), 100)))
        yield SilentProgress()


def _send(connection: Connection, reply: Reply) -> None:
    connection.send_bytes(msgspec.json.encode(reply))


def main() -> None:
    """Answer the questions of the server about the targets that it names, until it ends."""
    end_with(os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the server ends it
    own_process()
    memory.prepare()
    connection = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError, OSError):
        settings = msgspec.json.decode(connection.recv_bytes(), type=Settings)
        specs = msgspec.json.decode(connection.recv_bytes(), type=list[str | None])
        try:
            limit = settings.memory or _limit()
        except memory.Shortage as error:
            connection.recv_bytes()
            _send(connection, Reply(error=str(error), is_last=True))
            return
        with memory.limited(limit):
            _serve(connection, specs, settings)


def _limit() -> int | None:
    return memory.affordable(MAX_PROCESSES) if memory.is_enforced() else None


def _serve(connection: Connection, specs: Sequence[str | None], settings: Settings) -> None:
    from kcensus.agents.opened import Opened

    if None in specs:
        yield_to_others()
    opened: list[Opened] = []
    while True:
        question = msgspec.json.decode(connection.recv_bytes(), type=Question)
        try:
            if not opened:
                told = _Told(connection)
                opened = [Opened(spec, settings, told) for spec in specs]
            from kcensus.agents.works import WORKS

            reply = Reply(answer=WORKS[question.work](question.arguments, opened, settings))
            content = msgspec.json.encode(reply)
        except MemoryError:
            memory.lift()
            # With the rest of the memory, the next question could not be answered.
            _send(connection, Reply(error=memory.exceeded("the answer"), is_last=True))
            return
        except Exception as error:
            content = msgspec.json.encode(Reply(error=sentence_of(error, question.work)))
        connection.send_bytes(content)


def sentence_of(error: Exception, work: str) -> str:
    """Return a sentence about an error; an unexpected one is logged with its place."""
    import drgn

    from kcensus.agents.answers import AnswerError
    from kcensus.analyses import AnalysisError
    from kcensus.api.conditions import ConditionError
    from kcensus.saved import BadDocument
    from kcensus.sources import TargetError, faults
    from kcensus.sources.capsule import BadCapsule, NotRecorded

    match error:
        case AnswerError() | ConditionError() | AnalysisError() | NotRecorded():
            sentence = str(error)
        case TargetError() | BadDocument():
            sentence = str(error)
        case BadCapsule():
            sentence = f"the capsule {error}"
        case drgn.FaultError():
            sentence = faults.sentence(error, work)
        case _:
            for line in "".join(traceback.format_exception(error)).splitlines():
                sys.stderr.write(f"{printable(line)}\n")
            kind = type(error).__name__
            sentence = f"{work} failed with {kind}: {error} (the server's log shows where)"
    return bounded(printable("; ".join(sentence.splitlines())), MAX_ERROR)
