# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stacks of machines without a reader of ours, as drgn unwinds them."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import drgn
import numpy as np
import pytest

from kcensus.kernel.tasks import traced
from kcensus.kernel.tasks.stacks import Stacks
from kcensus.kernel.tasks.traced import MOST, traced_stacks

STACK, SIZE = 0x8000_0000, 1 << 14


def _frame(number: int, sp: int, *, is_inline: bool = False) -> Any:
    return SimpleNamespace(pc=0x3FFE_0010_0000 + number, sp=sp, is_inline=is_inline)


def _kernel(
    frames: list[Any],
    arch: drgn.Architecture = drgn.Architecture.S390X,
    debug_file: str | None = "/vmlinux",
) -> Any:
    prog = mock.MagicMock(platform=drgn.Platform(arch))
    prog.main_module.return_value = SimpleNamespace(debug_file_path=debug_file)
    prog.__getitem__.return_value = SIZE
    prog.stack_trace.return_value = frames
    return SimpleNamespace(prog=prog)


@pytest.fixture(autouse=True)
def _symbols() -> Iterator[None]:
    with (
        mock.patch.object(traced, "Object"),
        mock.patch.object(traced, "symbols_of", return_value=lambda at: (f"f{at:x}", "")),
    ):
        yield


def _traced(kernel: Any, count: int = 1) -> Stacks:
    task = np.arange(count, dtype=np.uint64) + np.uint64(1)
    return traced_stacks(kernel, task, np.full(count, STACK, np.uint64))


def test_frames_are_those_of_the_own_stack() -> None:
    frames = [
        *(_frame(1, STACK + 64), _frame(2, STACK + 64, is_inline=True), _frame(3, STACK + 256)),
        *(_frame(4, 0x3FF_0000_0000), _frame(5, STACK + 512)),  # of a program, and after it
    ]
    found = _traced(_kernel(frames))
    assert found.functions(0) == ["f3ffe00100000", "f3ffe00100002"]
    assert found.sp.tolist() == [STACK + 64, STACK + 256]
    assert not found.is_cut[0]


def test_no_more_than_some_are_asked_for() -> None:
    kernel = _kernel([_frame(1, STACK)])
    found = _traced(kernel, MOST + 3)
    assert kernel.prog.stack_trace.call_count == MOST
    assert found.is_cut.tolist() == [False] * MOST + [True] * 3


def test_what_drgn_cannot_unwind_is_cut() -> None:
    kernel = _kernel([])
    kernel.prog.stack_trace.side_effect = drgn.FaultError("not there", STACK)
    found = _traced(kernel)
    assert len(found.pc) == 0
    assert found.is_cut.all()


@pytest.mark.parametrize(
    ("arch", "debug_file"),
    [(drgn.Architecture.X86_64, "/vmlinux"), (drgn.Architecture.PPC64, None)],
)
def test_drgn_is_not_asked(arch: drgn.Architecture, debug_file: str | None) -> None:
    with pytest.raises(LookupError):
        _traced(_kernel([], arch, debug_file))
