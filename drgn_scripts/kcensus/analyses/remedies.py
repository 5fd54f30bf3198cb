# SPDX-License-Identifier: LGPL-2.1-or-later
"""Remedies shared by several analyses."""

from __future__ import annotations

import shlex
from typing import Any

from kcensus.results import Remedy


def written(effect: str, file: str, value: object, before: object = None, **more: Any) -> Remedy:
    """Return the remedy that writes a value to a file of the kernel, with ``more`` of its members.

    :param before: the value now; None where it is unknown, or the write cannot be undone
    """
    undo = "" if before is None else f"echo {before} > {file}"
    return Remedy(effect=effect, command=f"echo {value} > {file}", undo=undo, **more)


def sysctl(effect: str, name: str, value: int, before: str | int, **more: Any) -> Remedy:
    """Return the remedy that sets a sysctl; it is not offered on a kernel without the sysctl.

    :param before: the value now, or the name and value of the setting that replaces it
    """
    return Remedy(
        effect=effect,
        command=f"sysctl -w {name}={value}",
        undo=f"sysctl -w {before if isinstance(before, str) else f'{name}={before}'}",
        knobs=(f"/proc/sys/{name.replace('.', '/')}",),
        **more,
    )


def pasteable(path: str) -> str:
    """Return a path quoted for a shell; empty if its text may differ from its bytes."""
    # Bytes that are not UTF-8 are written with a backslash.
    safe = path.startswith("/") and path.isprintable() and "\\" not in path
    return shlex.quote(path) if safe else ""
