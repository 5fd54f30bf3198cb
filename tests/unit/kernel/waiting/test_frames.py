# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stacks of running tasks, as drgn unwinds them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from kcensus.kernel.waiting import frames


def unwound(
    count: int, debug_file: str | None = "/vmlinux", inlined: tuple[int, ...] = ()
) -> list[tuple[int, int]]:
    """Return the frames that remain of ``count`` of drgn's, some of which are inlined."""
    prog = mock.Mock(cache={})
    prog.main_module.return_value = SimpleNamespace(debug_file_path=debug_file)
    prog.stack_trace.return_value = [
        SimpleNamespace(pc=0xFFFF_FFFF_8100_0000 + at, interrupted=not at, is_inline=at in inlined)
        for at in range(count)
    ]
    kernel: Any = SimpleNamespace(prog=prog)
    with mock.patch.object(frames, "Object"):
        return frames.running_frames(kernel, 0xFFFF_8881_0000_0000)


def test_a_stack_that_drgn_unwinds() -> None:
    inner = 0xFFFF_FFFF_8100_0000
    assert unwound(2) == [(inner, inner), (inner + 1, inner)]


def test_inlined_functions_are_of_the_frame_around_them() -> None:
    inner = 0xFFFF_FFFF_8100_0000
    assert unwound(3, inlined=(1,)) == [(inner, inner), (inner + 2, inner + 1)]


@pytest.mark.parametrize(
    ("functions", "function"),
    [
        (["native_queued_spin_lock_slowpath", "_raw_spin_lock", "spin_waiter"], "spin_waiter"),
        (["sysvec_x", "asm_sysvec_apic_timer_interrupt", "copy.isra.0", "read"], "copy"),
        (["queued_write_lock_slowpath"], ""),
        ([], ""),
    ],
)
def test_where_a_task_runs(functions: list[str], function: str) -> None:
    assert frames.runs_in(functions) == function


def test_a_stack_that_went_astray_is_none() -> None:
    assert unwound(1024) == []


@pytest.mark.parametrize("debug_file", [None, ""])
def test_without_debug_info_only_the_innermost_function_is_known(debug_file: str | None) -> None:
    """Its address is in a register; drgn guesses the others."""
    inner = 0xFFFF_FFFF_8100_0000
    assert unwound(3, debug_file) == [(inner, inner)]
