# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus collect`` on a machine with little memory."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest

from kcensus.commands import Exit
from kcensus.commands.collect.capsules import Capsules, _Mark
from kcensus.commands.collect.order import Order
from kcensus.commands.shared.options import Reading
from kcensus.progress import SilentProgress
from tests.sample.collect.test_archive import collected


def test_it_starts_no_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "case.tar.zst"
    with (
        mock.patch("kcensus.limits.memory.available_bytes", return_value=300 << 20),
        mock.patch("kcensus.commands.collect.run.connected", side_effect=AssertionError),
    ):
        assert collected("sample", "-o", path) == Exit.TARGET
    assert not path.exists()
    assert "--max-memory" in capsys.readouterr().err


@pytest.mark.parametrize("lacks_memory", [False, True])
def test_too_many_names_leave_out_the_dear_analyses(lacks_memory: bool) -> None:
    """Memory and time decide for how many of the first analyses the names are found."""

    def find(progress: object, frames: Any) -> None:
        if frames.sum() > 10:
            if lacks_memory:
                raise MemoryError
            while True:
                time.sleep(0.01)

    recorder = SimpleNamespace(touched=np.zeros(100, np.bool_))
    recording = cast(Any, SimpleNamespace(recorder=recorder, find_names=find))
    order = Order("record", None, Reading(), {}, redact=("names",), until=time.monotonic() + 5)
    capsules = Capsules(order, recording, SilentProgress(), lambda *_: None)
    capsules._marks = [
        _Mark(name, 0.1, np.arange(pages))
        for name, pages in (("waits", 5), ("memcgs", 9), ("slab", 50), ("dentries", 80))
    ]
    assert capsules._count_with_names() == 2
    assert ("--max-memory" if lacks_memory else "--max-time") in capsules._why
