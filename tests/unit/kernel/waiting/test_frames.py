# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stacks of running tasks, as drgn unwinds them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import drgn
import pytest

from kcensus.kernel.waiting import frames

X86, ARM64 = (drgn.Platform(each) for each in (drgn.Architecture.X86_64, drgn.Architecture.AARCH64))


def unwound(
    count: int,
    debug_file: str | None = "/vmlinux",
    inlined: tuple[int, ...] = (),
    platform: drgn.Platform = X86,
) -> list[tuple[int, int]]:
    """Return the frames that remain of ``count`` of drgn's, some of which are inlined."""
    prog = mock.Mock(platform=platform)
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


def test_a_stack_of_which_drgn_lacks_a_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of code without unwind information, the caller is in the link register only."""
    own = [(at, at) for at in range(3)]
    monkeypatch.setattr(frames, "_unwound", lambda *_: own)
    assert unwound(2, platform=ARM64) == own
    assert len(unwound(4, platform=ARM64)) == 4
    assert len(unwound(2)) == 2


@pytest.mark.parametrize(
    ("states", "count", "is_program"),
    [([0, None, 1 << 48], 2, False), ([1 << 48], 0, True), ([0, None, 0], 3, False)],
)
def test_the_state_of_the_processor_tells_programs(
    states: list[int | None], count: int, is_program: bool
) -> None:
    """On Z, programs have the addresses of the kernel."""

    class Frame(SimpleNamespace):
        def register(self, name: str) -> int:
            if self.state is None:
                raise LookupError
            return {"pswm": int(self.state)}[name]

    prog = mock.Mock(platform=drgn.Platform(drgn.Architecture.S390X))
    prog.main_module.return_value = SimpleNamespace(debug_file_path="/vmlinux")
    trace = [
        Frame(pc=at + 1, interrupted=True, is_inline=False, state=s) for at, s in enumerate(states)
    ]
    prog.stack_trace.return_value = trace
    kernel: Any = SimpleNamespace(prog=prog)
    with (
        mock.patch.object(frames, "Object"),
        mock.patch.object(frames, "_unwound", return_value=[]),
    ):
        assert len(frames.running_frames(kernel, 1)) == count
        assert frames.runs_program(kernel, 1) == is_program


def test_inlined_functions_are_of_the_frame_around_them() -> None:
    inner = 0xFFFF_FFFF_8100_0000
    assert unwound(3, inlined=(1,)) == [(inner, inner), (inner + 2, inner + 1)]


@pytest.mark.parametrize(
    ("functions", "function"),
    [
        (["native_queued_spin_lock_slowpath", "_raw_spin_lock", "spin_waiter"], "spin_waiter"),
        (["sysvec_x", "asm_sysvec_apic_timer_interrupt", "copy.isra.0", "read"], "copy"),
        (["gic_handle_irq", "el1_interrupt", "el1h_64_irq_handler", "el1h_64_irq", "copy"], "copy"),
        (["do_mem_abort", "el1_abort", "el1h_64_sync_handler", "el1h_64_sync"], "do_mem_abort"),
        (["vectors"], ""),
        (["queued_write_lock_slowpath"], ""),
        ([], ""),
    ],
)
def test_where_a_task_runs(functions: list[str], function: str) -> None:
    assert frames.runs_in(functions) == function


@pytest.mark.parametrize(
    ("functions", "is_vague"),
    [
        (["vectors", "spin_waiter"], True),
        (["queued_spin_lock_slowpath", "vectors"], False),
        (["el1h_64_irq", "copy"], False),
        ([], False),
    ],
)
def test_whether_the_interrupted_function_is_known(functions: list[str], is_vague: bool) -> None:
    assert frames.is_at_vector(functions) == is_vague


@pytest.mark.parametrize(
    ("functions", "is_spinning"),
    [
        (["native_queued_spin_lock_slowpath", "_raw_spin_lock", "spin_waiter"], True),
        (["asm_sysvec_x", "__pv_queued_spin_lock_slowpath"], True),  # interrupted there
        (["_raw_spin_lock", "spin_waiter"], False),  # on its way in or out
        ([], False),
    ],
)
def test_a_task_that_spins(functions: list[str], is_spinning: bool) -> None:
    kernel: Any = None
    places = [*enumerate(range(len(functions)))]
    with (
        mock.patch.object(frames, "running_frames", return_value=places),
        mock.patch.object(frames, "symbols_of", return_value=lambda at: (functions[at], "")),
    ):
        assert frames.spins(kernel, 0) == is_spinning


@pytest.mark.parametrize(("count", "debug_file"), [(3, None), (3, ""), (1024, "/vmlinux")])
def test_a_stack_that_drgn_guesses_is_none(count: int, debug_file: str | None) -> None:
    assert unwound(count, debug_file) == []
