# SPDX-License-Identifier: LGPL-2.1-or-later
"""Many files in one, as the guest's programs put them together, and stacks among them."""

from __future__ import annotations

import re


def unpacked(text: str) -> dict[str, str]:
    """Return the files by path, from "FILE PATH LENGTH", a newline and the content of each."""
    data = text.encode(errors="surrogateescape")
    files: dict[str, str] = {}
    at = 0
    while at < len(data):
        end = data.index(b"\n", at)
        path, _, length = data[at:end].decode(errors="surrogateescape").rpartition(" ")
        at = end + 1 + int(length)
        files[path.removeprefix("FILE ")] = data[end + 1 : at].decode(errors="surrogateescape")
    return files


def functions(stack: str) -> tuple[str, ...]:
    """Return the names of functions in ``/proc/PID/stack``, the innermost first."""
    return tuple(re.findall(r"^\[<0>\] ([\w.]+)\+", stack, re.MULTILINE))
