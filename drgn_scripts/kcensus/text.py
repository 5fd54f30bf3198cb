# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names from kernel memory as text that is safe in any terminal or file."""

from __future__ import annotations

import hashlib
import re
import shlex

_ESCAPED = re.compile(r"\\(x([0189a-f]|7f)|[uU])")
"""As names have bytes that are not visible text; systemd writes others, such as ``\\x2d``."""


def _escape(char: str) -> str:
    if char.isprintable():
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:
        # A byte that was not UTF-8, as surrogateescape keeps it.
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def printable(raw: bytes | str) -> str:
    """Return ``raw`` with everything escaped that is not a visible character or a plain space.

    Bytes are decoded as UTF-8; invalid bytes, control characters, line breaks, bidirectional
    overrides and lone surrogates become ``\\xNN`` or ``\\uNNNN``. Applying it twice is the same as
    once.
    """
    text = raw.decode("utf-8", "surrogateescape") if isinstance(raw, bytes) else raw
    return text if text.isprintable() else "".join(map(_escape, text))


def pasteable(name: str, start: str = "") -> str:
    """Return a name quoted for a shell; empty if it is empty, or if its bytes may be others.

    :param start: what it must begin with, such as the ``/`` of a path
    """
    # The name of an unreadable part of a path is a question mark.
    is_whole = name.isprintable() and "?" not in name and not _ESCAPED.search(name)
    return shlex.quote(name) if name and is_whole and name.startswith(start) else ""


def task_name(comm: bytes | str, pid: int | str) -> str:
    """Return the name and PID of a task in a sentence: ``kworker/1:1 (PID 27)``.

    :param pid: the PID, or several as text
    """
    return f"{printable(comm)} (PID {pid})"


def bounded(name: str, limit: int) -> str:
    """Return a printable name of at most ``limit`` characters; a digest tells cut ones apart."""
    if len(name) <= limit:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{name[: limit - 14]}…~{digest}"


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra of kcensus, which no registry of packages has."""
    return f"`pip install '.[{extra}]'` in the clone of kcensus"
