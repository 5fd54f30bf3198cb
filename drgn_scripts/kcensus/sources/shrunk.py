# SPDX-License-Identifier: LGPL-2.1-or-later
"""A sentence where a file that a library has mapped ends while it is read (SIGBUS)."""

from __future__ import annotations

import ctypes
import os
import signal

_BAD_TARGET = 3
"""Exit status of the command for an unusable target."""
_sentence = b""


def _end(_: int) -> None:
    # A handler of Python's own would never run: it waits for the end of the faulting instruction.
    # This one needs the GIL: whoever waits for another thread that reads has released it.
    if os.isatty(2):
        os.write(2, b"\r\x1b[K\x1b[?25h")  # the bar of progress, and the cursor that it hides
    os.write(2, _sentence)
    os._exit(_BAD_TARGET)


_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)(_end)
"""Lives as long as the process: C calls it."""


def end_with_sentence(name: str) -> None:
    """Let SIGBUS end this process with a sentence and status 3, instead of without any.

    libkdumpfile maps dumps, and libelf debug info; drgn reads ELF dumps, and kcensus capsules, as
    files, whose errors are exceptions.

    :param name: the dump, printable
    """
    global _sentence
    _sentence = (
        f"kcensus: {name}: it, or its debug info, shrank while it was read, or its disk fails; "
        "copy it again\n"
    ).encode("utf-8", "backslashreplace")
    libc = ctypes.CDLL(None)
    libc.signal.restype = ctypes.c_void_p
    libc.signal(int(signal.SIGBUS), _HANDLER)
