# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lines of standard input, for a server that Ctrl-C ends while it waits for the next one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator

_BLOCK = 1 << 16
_MAX_LINE = 1 << 20
"""Bytes of a message; a longer one is cut, and then no JSON."""
_MAX_WAITING = 64


async def lines(descriptor: int = 0) -> AsyncIterator[str]:
    """Yield the lines of a file, pipe or terminal until its end.

    A daemon thread reads them, without Python's buffer, whose lock it would hold at the end of the
    process: Python waits for other threads, which nothing would wake up.
    """
    queue: asyncio.Queue[bytes | None] = asyncio.Queue(_MAX_WAITING)
    loop = asyncio.get_running_loop()

    def put(line: bytes | None) -> None:
        asyncio.run_coroutine_threadsafe(queue.put(line), loop).result()

    def read() -> None:
        rest = b""
        with contextlib.suppress(RuntimeError, asyncio.CancelledError):  # the loop has ended
            with contextlib.suppress(OSError):
                while block := os.read(descriptor, _BLOCK):
                    *whole, rest = (rest + block).split(b"\n")
                    rest = rest[:_MAX_LINE]
                    for line in whole:
                        put(line[:_MAX_LINE])
            put(rest or None)
            put(None)

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while (line := await queue.get()) is not None:
        yield line.decode("utf-8", "replace")
