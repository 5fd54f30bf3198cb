# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus collect`` on a machine with little memory."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from kcensus.commands import Exit
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
