# SPDX-License-Identifier: LGPL-2.1-or-later
"""The restart that findings without another remedy advise, while tasks and `sync` hang."""

from __future__ import annotations

import re
import time

import pytest

from tests.lab import Live, live
from tests.lab.qemu import Died

_LIMIT = 90
"""Seconds until the guest has restarted."""


@pytest.mark.kernels("6.1")
def test_sysrq_restarts_while_sync_hangs(kernel: str) -> None:
    console = ""

    def wait(guest: Live) -> None:
        nonlocal console
        end = time.monotonic() + _LIMIT
        while time.monotonic() < end:
            time.sleep(0.5)
            try:
                guest.machine.check()
            finally:
                console = guest.console.read_text(errors="replace")

    # QEMU ends where the guest restarts.
    with live(kernel, "waits-restart") as guest, pytest.raises(Died):
        wait(guest)
    asleep = re.findall(r"restart: \d+ \((\S+)\) D ", console)
    assert {"dd", "sync"} <= {*asleep}
    assert "sysrq: Resetting" in console
