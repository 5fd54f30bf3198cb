# SPDX-License-Identifier: LGPL-2.1-or-later
"""Gaps of missing types: one for each module."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kcensus.analyses import gaps
from kcensus.kernel.block.stacks import Stacks
from kcensus.kernel.kernel import Kernel
from tests.unit.fakekernel import FakeKernel

_NAMES = ("loop0", "loop1", "dm-0", "md0")


def _kernel() -> Kernel:
    kernel = Kernel(FakeKernel().prog)
    kernel.untyped_modules |= {"dm_mod", "dm_thin_pool", "loop", "xfs"}
    return kernel


def test_stacked_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    disks = [SimpleNamespace(name=name) for name in _NAMES]
    monkeypatch.setattr(gaps, "block_devices", lambda _: SimpleNamespace(disks=disks))
    found = gaps.stack_gaps(_kernel(), Stacks((), dict.fromkeys(range(4), "torn")))
    assert [gap.count for gap in found] == [2, 1, 1]
    # The types of md are there.
    assert [gap.reason for gap in found if "md0" in gap.effect] == ["torn"]
    assert all("loop" in gap.reason for gap in found if "loop1" in gap.effect)


def test_subjects_of_finders_and_readers() -> None:
    kernel = _kernel()
    finders = [
        SimpleNamespace(kernel=kernel, about=about, modules=modules)
        for about, modules in (
            ("thin pools", ("dm_mod", "dm_thin_pool")),
            ("copies", ("dm_mod",)),
            ("md arrays", ("md_mod",)),
        )
    ]
    missing = ["XFS buffers", "copies", "thin pools", "copies", "md arrays", "timers"]
    waiting: Any = SimpleNamespace(finders=finders, missing=missing)
    found = gaps._subject_gaps(waiting)
    assert [gap.count for gap in found] == [1, 2, 1, 1]
    assert [("xfs" in gap.reason, "dm_mod" in gap.reason) for gap in found[:2]] == [
        (True, False),
        (False, True),
    ]
    assert all("of module" not in gap.reason for gap in found[2:])
