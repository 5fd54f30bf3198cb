# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lab, where it needs no guest."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lab import dumps, host, image, scenario, trials
from tests.lab.host import LabError
from tests.lab.qemu import TooSlow


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_guest_that_hangs_is_booted_once_more(
    failures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []

    def make(_kernel: Any, _case: Any, directory: Path, seconds: float) -> None:
        limits.append(seconds)
        (directory / "vmcore.elf").touch()
        if len(limits) <= failures:
            raise TooSlow("the guest took longer than it may.")

    monkeypatch.setattr(host, "cache", lambda: tmp_path)
    monkeypatch.setattr(host, "install_packages", lambda: None)
    monkeypatch.setattr(dumps, "_make", make)
    monkeypatch.setattr(dumps, "_path", lambda *_: tmp_path / "dumps" / "made")
    monkeypatch.setattr(dumps, "shared_kernel", lambda _: SimpleNamespace(release="6.1"))
    monkeypatch.setattr(dumps, "_open", lambda _found, _case, path: path)
    if failures == 2:
        with pytest.raises(LabError):
            dumps.build("6.1", "mixed")
        assert not (tmp_path / "dumps" / "made").exists()
    else:
        made: Any = dumps.build("6.1", "mixed")
        assert sorted(path.name for path in made.iterdir()) == ["seconds", "vmcore.elf"]
    assert limits == [150, 300][: failures + 1]


def test_a_trial_reads_again_under_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "modules", lambda _: [])
    kernel: Any = SimpleNamespace(nodes=1, closure=lambda _: [])
    steps = image.guest_steps(kernel, scenario.load("slab-shrink", "6.1"))
    verbs = [step.verb for step in steps]
    trial = verbs.index("truth-again") + 1
    assert verbs[trial] == "run"
    assert {step.arguments[0] for step in steps[trial:] if step.verb == "record-now"} >= {
        "slabinfo@shrink",
        "meminfo@shrink",
    }
    assert steps[-1].arguments == ("shrink",)


def test_what_a_trial_returned() -> None:
    head = "slabinfo - version: 2.1\n# name\n"
    line = "dentry {} {} 192 21 1 : tunables 0 0 0 : slabdata {} {} 0\n"
    truth = {
        "slabinfo.4": head + line.format(100, 100, 5, 5),
        "slabinfo@drop": head + line.format(20, 42, 2, 2),
        "meminfo": "SUnreclaim: 100 kB\nHugePages_Total: 0\n",
        "meminfo@drop": "SUnreclaim: 60 kB\nHugePages_Total: 0\n",
    }
    assert trials.returned_by(truth, "drop", "slabinfo") == {"dentry": 3 * 4096}
    assert trials.returned_by(truth, "drop", "meminfo") == {"SUnreclaim": 40 << 10}
