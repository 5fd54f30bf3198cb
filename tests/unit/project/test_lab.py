# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lab, where it needs no guest."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lab import dumps, host
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
    monkeypatch.setattr(dumps, "_kernel", lambda _: SimpleNamespace(release="6.1"))
    monkeypatch.setattr(dumps, "_open", lambda _found, _case, path: path)
    if failures == 2:
        with pytest.raises(LabError):
            dumps.build("6.1", "mixed")
        assert not (tmp_path / "dumps" / "made").exists()
    else:
        made: Any = dumps.build("6.1", "mixed")
        assert sorted(path.name for path in made.iterdir()) == ["seconds", "vmcore.elf"]
    assert limits == [150, 300][: failures + 1]
