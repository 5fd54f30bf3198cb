# SPDX-License-Identifier: LGPL-2.1-or-later
"""The machine that every output names."""

from __future__ import annotations

from unittest import mock

import pytest

from kcensus.kernel.kernel import Kernel
from kcensus.kernel.machine import machine
from kcensus.sources import open_target


@pytest.mark.parametrize(
    ("taken_by", "is_panic"),
    [
        ("kernel BUG at block/bio.c:1829! (task kworker/0:1)", True),
        ("sysrq: Trigger a crash (task bash)", False),
        ("no panic: dumped while the kernel ran", False),
        ("", False),
    ],
)
def test_a_panic_that_a_user_asked_for_has_no_cause_to_look_for(
    taken_by: str, is_panic: bool
) -> None:
    with mock.patch("kcensus.kernel.machine._taken_by", return_value=taken_by):
        assert machine(Kernel(open_target("sample").prog)).is_panic is is_panic
