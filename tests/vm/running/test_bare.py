# SPDX-License-Identifier: LGPL-2.1-or-later
"""A production machine: its kernel runs, and no package with debug info is installed."""

from __future__ import annotations

import json

import pytest

from tests.lab.system import Running

pytestmark = pytest.mark.usually  # each command takes a minute under emulation

_BARE = "unshare --mount sh -c 'mount -t tmpfs none /usr/lib/debug && {}'"


def test_types_come_from_the_kernel_itself(guest: Running) -> None:
    done = guest.run(_BARE.format("exec kcensus report --json"))
    results = json.loads(done.check())["results"]
    assert len(results) > 6
    for result in results:
        assert result["machine"]["types"] == "BTF"
        assert all(check["status"] in ("agree", "explained") for check in result["checks"]), result
