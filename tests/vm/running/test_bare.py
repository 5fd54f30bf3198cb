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

_HIDDEN = "unshare --mount sh -c 'mount -t tmpfs none /usr/lib/debug && exec {}'"


def test_from_a_wheelhouse_to_the_first_report(guest: Running) -> None:
    """Without network, too."""
    began = time.monotonic()
    guest.run(
        "python3 -m venv --clear /opt/fresh && /opt/fresh/bin/pip install --quiet --no-index"
        f" --no-deps /{WHEELS}/*.whl /{CODE}/*.whl",
        timeout=3600,
    ).check()
    installed = time.monotonic()
    done = guest.run(_HIDDEN.format("/opt/fresh/bin/kcensus report --json"))
    reported = time.monotonic()
    document = json.loads(done.check())
    assert document["machine"]["types"] == "BTF"
    assert document["failed"] == {}
    assert len(document["analyses"]) > 6
    for result in document["analyses"].values():
        assert all(check["status"] in ("agree", "explained") for check in result.get("checks", ()))
    print(
        f"{guest.release}: installed in {installed - began:.0f} s, "
        f"reported in {reported - installed:.0f} s",
        file=sys.stderr,
    )
