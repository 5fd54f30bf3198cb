# SPDX-License-Identifier: LGPL-2.1-or-later
"""Values of variables, and names as text without loss of bytes; not safe to print."""

from __future__ import annotations

from collections.abc import Callable

import drgn
from drgn import Object
from drgn.helpers.linux.kernfs import kernfs_parent

from kcensus.engine.memory import Faults
from kcensus.engine.zeros import is_zeroed
from kcensus.sources.capsule import NotRecorded
from kcensus.sources.faults import ZEROED

ABSENT = (LookupError, drgn.FaultError, drgn.ObjectAbsentError)
"""Raised for a variable without debug info, on a missing page, or of a module not loaded."""
MISSING = (*ABSENT, NotRecorded)
"""Also raised for data missing from a capsule."""
DAMAGED = (*MISSING, AttributeError, OverflowError, TypeError, ValueError)
"""Also raised for a damaged or unrecorded type, size or number."""
_MAX_NAME = 256
"""Device-mapper names have up to 128 bytes."""
_MAX_NESTED = 1 << 10
"""Most directories above a ``struct kernfs_node``."""


def integer(prog: drgn.Program, name: str, faults: Faults) -> int | None:
    """Return the value of a variable; None where it has no debug info or is unreadable."""
    try:
        return int(prog[name])
    except LookupError:
        return None
    except drgn.FaultError as error:
        faults.note(error)
        return None


def decode(raw: bytes) -> str:
    """Return bytes as text; bytes that are not UTF-8 become ``\\xNN``."""
    return raw.decode(errors="backslashreplace")


def decode_array(raw: bytes) -> str:
    """Return the text in a ``char`` array up to the first NUL."""
    return decode(bytes(raw).split(b"\0")[0])


def name_at(pointer: Object) -> str:
    """Return the string at a ``char *``, cut to 256 bytes; empty for a null pointer.

    :raises drgn.FaultError: it is unreadable; it, or the pointer, is on a page of zeros
    """
    prog, address = pointer.prog_, int(pointer)
    text = prog.read_c_string(address, max_size=_MAX_NAME) if address else b""
    place = address or pointer.address_ or 0
    if not text and place and is_zeroed(prog, place):
        raise drgn.FaultError(ZEROED, place)
    return decode(text)


def cgroup_path(cgroup: Object) -> str:
    """Return the path of a ``struct cgroup`` in its hierarchy; empty if its parents do not end.

    :raises LookupError: the debug info lacks a member
    :raises drgn.FaultError: a part is unreadable
    """
    # Since Linux kernel commit 2bd59d48ebfb ("cgroup: convert to kernfs") (in v3.15), it has a node
    # of kernfs; before, a name (RHEL 7, too).
    if hasattr(cgroup, "kn"):
        return kernfs_path(cgroup.kn)
    return _path(cgroup, lambda each: each.parent, lambda each: decode(each.name.name.string_()))


def kernfs_path(node: Object) -> str:
    """Return the path of a ``struct kernfs_node``; empty if its parents do not end.

    :raises drgn.FaultError: a node is unreadable
    """
    return _path(node, kernfs_parent, lambda each: name_at(each.name))


def _path(node: Object, parent: Callable[[Object], Object], name: Callable[[Object], str]) -> str:
    names: list[str] = []
    for _ in range(_MAX_NESTED):
        above = parent(node)
        if not above:
            return "/" + "/".join(reversed(names))
        names.append(name(node))
        node = above
    return ""
