# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel is known by its banner, also without the names in it."""

from __future__ import annotations

import drgn
import pytest

from kcensus.sources.debuginfo.loading import holds

_BANNER = b"Linux version 4.18.0 (jmbl@qz) (gcc 10.2.1) #1 SMP Sat Nov 21 19:31:18 UTC 2026\n"


@pytest.mark.parametrize(
    ("memory", "is_same"),
    [
        (_BANNER, True),
        (_BANNER.replace(b"jmbl@qz", b"ylfy@mo"), True),
        (_BANNER.replace(b"jmbl@qz", bytes(7)), True),
        (_BANNER.replace(b"19:31:18", b"19:31:19"), False),
        (_BANNER.replace(b"4.18.0", b"4.18.1"), False),
        (_BANNER.replace(b"(jmbl@qz)", b"(jmbl@q) "), False),
        (bytes(len(_BANNER)), False),
    ],
)
def test_the_builder_may_be_redacted(memory: bytes, is_same: bool) -> None:
    prog = drgn.Program(drgn.Platform(drgn.Architecture.X86_64))
    prog.add_memory_segment(0x1000, len(memory), lambda *_: memory)
    assert holds(prog, [(0x800, _BANNER)], 0x800) is is_same
