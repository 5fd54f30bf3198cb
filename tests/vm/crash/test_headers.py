# SPDX-License-Identifier: LGPL-2.1-or-later
"""The extension compiles without a warning against every crash that Debian has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.debian.crash import headers
from tests.vm.crash.session import build_extension


@pytest.mark.parametrize("suite", ["trixie", "sid"])
def test_newer_crash(suite: str, tmp_path: Path) -> None:
    system = headers(suite)
    built = build_extension(tmp_path, cflags=f"-MD -isystem {system}")
    assert built.exists()
    dependencies = built.with_name("target.d").read_text()
    assert str(system / "crash" / "defs.h") in dependencies
    assert "/usr/include/crash/defs.h" not in dependencies
