# SPDX-License-Identifier: LGPL-2.1-or-later
"""A production machine: its kernel runs, and no package with debug info is installed."""

from __future__ import annotations

import json
import sys
import time

import pytest

from tests.lab.system import Running
from tests.lab.system.base import CODE, WHEELS

pytestmark = pytest.mark.usually  # it takes minutes under emulation

_LONG = 3600.0
"""Seconds; pip takes many minutes under emulation."""
_FEW, _SHARE = 64, 0.02
"""What may change while an analysis reads."""
_HIDDEN = "unshare --mount sh -c 'mount -t tmpfs none /usr/lib/debug && exec {}'"


def test_from_a_wheelhouse_to_the_first_report(guest: Running) -> None:
    """Without network, too."""
    guest.run("load freeze").check()  # the times are without it, and no count changes much
    began = time.monotonic()
    guest.run("python3 -m venv --clear /opt/fresh", timeout=_LONG).check()
    made = time.monotonic()
    guest.run(
        f"/opt/fresh/bin/pip install --quiet --no-index --find-links /{WHEELS} /{CODE}/*.whl",
        timeout=_LONG,
    ).check()
    installed = time.monotonic()
    done = guest.run(_HIDDEN.format("/opt/fresh/bin/kcensus report --json"), timeout=_LONG)
    reported = time.monotonic()
    guest.run("load thaw").check()
    document = json.loads(done.check())
    assert document["machine"]["types"] == "BTF"
    assert document["failed"] == {}
    assert len(document["analyses"]) > 6
    for result in document["analyses"].values():
        for check in result.get("checks", ()):
            if check["status"] == "differs":
                most = max(_FEW, _SHARE * check["counter"])
                assert abs(check["difference"]) <= most, check
    print(
        f"{guest.release}: environment made in {made - began:.0f} s, "
        f"installed in {installed - made:.0f} s, "
        f"reported in {reported - installed:.0f} s",
        file=sys.stderr,
    )
