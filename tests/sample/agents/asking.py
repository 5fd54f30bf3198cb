# SPDX-License-Identifier: LGPL-2.1-or-later
"""Asks the server with the SDK's client, as an agent does, and the command line."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import anyio
import msgspec
from mcp.client.client import Client
from mcp.types import CallToolResult

from kcensus import cli
from kcensus.agents.messages import Question, Settings, check
from kcensus.agents.opened import Opened
from kcensus.agents.places import Places
from kcensus.agents.pool import Key, Pool, QuestionError
from kcensus.agents.server import make_server
from kcensus.agents.worker import sentence_of
from kcensus.agents.works import WORKS
from kcensus.progress import SilentProgress

Call = tuple[str, dict[str, Any]]


class Here(Pool):
    """Does the work in this process, where a child would take a second to start."""

    def __init__(self, settings: Settings | None = None) -> None:
        self._given = settings or Settings()
        super().__init__(self._given, 60)
        self._open: dict[str | None, Opened] = {}

    async def ask(self, key: Key, question: Question, tell: Callable[[str], None]) -> Any:
        try:
            opened = [self._opened(chosen.path) for chosen in key]
            made = WORKS[question.work](question.arguments, opened, self._given)
        except Exception as error:
            raise QuestionError(sentence_of(error, question.work)) from None
        decoded = msgspec.json.decode(msgspec.json.encode(made))
        check(decoded, bool(key))
        return decoded

    def _opened(self, path: str | None) -> Opened:
        if path not in self._open:
            self._open[path] = Opened(path, self._given, SilentProgress())
        return self._open[path]


_shared = Here()


def called(
    calls: Sequence[Call], places: Places | None = None, pool: Pool | None = None
) -> list[CallToolResult]:
    """Return the results of calls, one after the other, in one session."""

    async def run() -> list[CallToolResult]:
        server = make_server(places or Places(()), pool or _shared)
        async with Client(server) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return anyio.run(run)


def answered(
    name: str, arguments: dict[str, Any], places: Places | None = None, pool: Pool | None = None
) -> dict[str, Any]:
    """Return the structured answer of a call."""
    (result,) = called([(name, arguments)], places, pool)
    assert not result.is_error, result.content
    answer: dict[str, Any] = result.structured_content
    # What clients without structured answers show.
    assert json.loads(result.content[0].text) == answer  # type: ignore[union-attr]
    return answer


def refused(
    name: str, arguments: dict[str, Any], places: Places | None = None, pool: Pool | None = None
) -> str:
    """Return the sentence of a call without an answer."""
    (result,) = called([(name, arguments)], places, pool)
    assert result.is_error
    assert result.structured_content is None
    text: str = result.content[0].text  # type: ignore[union-attr]
    assert text.isprintable()
    return text


@cache
def document(*words: str) -> Any:
    """Return the JSON that a command prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        cli.main([*words, "--json"])
    return json.loads(out.getvalue())
