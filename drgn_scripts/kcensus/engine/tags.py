# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tags in the top byte of pointers: with KASAN's software tags, or with MTE.

Two pointers to one object may have different tags, so all are compared without. A tagged pointer
has no tag where it leaves :meth:`kcensus.engine.layout.Layout.decode`, or a read by
:mod:`kcensus.engine.gather`, and any address may have one that is passed to such a read. It costs
two operations per column of pointers, in kernels that may have tags only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import drgn
import numpy as np
import numpy.typing as npt

from kcensus.arch import architecture_of
from kcensus.sources.capsule import NotRecorded

_KEY = "kcensus tag"


def tag_of(prog: drgn.Program) -> int:
    """Return the bits of a kernel's pointers that may hold a tag; 0 for a kernel without tags."""
    architecture = architecture_of(prog.platform)
    if architecture is None or not architecture.tag:
        return 0
    if _KEY not in prog.cache:
        prog.cache[_KEY] = architecture.tag if any(_has(prog, architecture.tagging)) else 0
    return int(prog.cache[_KEY])


def untagged(pointers: npt.NDArray[Any], tag: int) -> npt.NDArray[Any]:
    """Return pointers without tags; those that are not the kernel's are as they were.

    :param tag: of :func:`tag_of`
    """
    if not tag:
        return pointers
    # The bit below the tag is 1 in the addresses of the kernel only.
    sign = (tag & -tag) >> 1
    return np.where((pointers & np.uint64(sign)) != 0, pointers | np.uint64(tag), pointers)


def untagged_word(pointer: int, tag: int) -> int:
    """Return a pointer without tag; see :func:`untagged`."""
    return pointer | tag if pointer & ((tag & -tag) >> 1) else pointer


def _has(prog: drgn.Program, names: tuple[str, ...]) -> Iterator[bool]:
    for name in names:
        try:
            prog.symbol(name)
        except (LookupError, NotRecorded):
            # A capsule of an earlier version lacks the names of attempts.
            continue
        yield True
