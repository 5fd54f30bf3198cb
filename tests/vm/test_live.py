# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus slab`` on guests that go on working while it reads them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kcensus.api.objects import IncompleteWarning, objects
from kcensus.sources import open_target
from tests.lab import live


def kcensus(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kcensus", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.filterwarnings(f"ignore::{IncompleteWarning.__module__}.IncompleteWarning")
def test_slab_on_a_working_guest(kernel: str) -> None:
    with live(kernel, "churn") as guest:
        options = [f"qmp:{guest.qmp}", "-s", str(guest.vmlinux)]
        done = kcensus("slab", *options, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        result = json.loads(done.stdout)
        assert result["live"] is True
        summary = result["summary"]
        assert 0 < summary["objects_active"] <= summary["objects_total"]
        assert 0 < summary["active_bytes"] <= summary["slab_bytes"]
        # Torn data moves figures a little; it must not make them nonsense.
        for check in result["checks"]:
            if check["name"].startswith(("nr_slabs, all", "total_objects, all")):
                assert abs(check["difference"]) < 0.1 * check["counter"]
        shown = kcensus("slab", *options)
        assert shown.returncode == 0
        assert any(line.split()[:1] == ["Live"] for line in shown.stdout.splitlines()[:12])

        prog = open_target(f"qmp:{guest.qmp}", [guest.vmlinux]).prog
        sizes = [len(objects(prog, "struct dentry", ["d_inode", "d_parent"])) for _ in range(5)]
        assert min(sizes) > 1000
