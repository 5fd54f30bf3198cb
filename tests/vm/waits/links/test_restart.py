# SPDX-License-Identifier: LGPL-2.1-or-later
"""The restart that findings without another remedy advise, while tasks and `sync` hang."""

from __future__ import annotations

import re
import time

import pytest

from tests.lab import live
from tests.lab.qemu import Died

_LIMIT = 90
"""Seconds until the guest has restarted."""


def _watch(kernel: str, consoles: list[str]) -> None:
    """Keep what the guest writes to its console.

    :raises Died: the guest has restarted, which ends QEMU
    """
    end = time.monotonic() + _LIMIT
    with live(kernel, "waits-restart") as guest:
        while time.monotonic() < end:
            time.sleep(0.5)
            try:
                guest.machine.check()
            finally:
                consoles.append(guest.console.read_text(errors="replace"))


@pytest.mark.kernels("6.1")
def test_sysrq_restarts_while_sync_hangs(kernel: str) -> None:
    consoles: list[str] = []
    with pytest.raises(Died):
        _watch(kernel, consoles)
    asleep = re.findall(r"restart: \d+ \((\S+)\) D ", consoles[-1])
    assert {"dd", "sync"} <= {*asleep}
    assert "sysrq: Resetting" in consoles[-1]
