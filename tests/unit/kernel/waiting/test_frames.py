# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stacks of running tasks, as drgn unwinds them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from kcensus.kernel.waiting import frames


def unwound(count: int, debug_file: str | None = "/vmlinux") -> list[tuple[int, int]]:
    """Return the frames that remain of ``count`` of drgn's."""
    prog = mock.Mock()
    prog.main_module.return_value = SimpleNamespace(debug_file_path=debug_file)
    prog.stack_trace.return_value = [
        SimpleNamespace(pc=0xFFFF_FFFF_8100_0000 + at, interrupted=not at) for at in range(count)
    ]
    kernel: Any = SimpleNamespace(prog=prog)
    with mock.patch.object(frames, "Object"):
        return frames.running_frames(kernel, 0xFFFF_8881_0000_0000)


def test_a_stack_that_drgn_unwinds() -> None:
    inner = 0xFFFF_FFFF_8100_0000
    assert unwound(2) == [(inner, inner), (inner + 1, inner)]


@pytest.mark.parametrize(("count", "debug_file"), [(3, None), (3, ""), (1024, "/vmlinux")])
def test_a_stack_that_drgn_guesses_is_none(count: int, debug_file: str | None) -> None:
    assert unwound(count, debug_file) == []
