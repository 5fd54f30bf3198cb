# SPDX-License-Identifier: LGPL-2.1-or-later
"""Prometheus' own check of rules and metrics, without its service."""

from __future__ import annotations

import shutil
from pathlib import Path

from .. import host
from ..host import LabError, say
from . import mirror

_SUITE = "trixie"
_BINARY = "usr/bin/promtool"


def promtool() -> Path:
    """Return the program; fetched now unless the cache has it."""
    final = host.cache() / "promtool" / _SUITE
    with host.locked("promtool"):
        if not final.is_dir():
            suite = mirror.Suite(_SUITE)
            suite.update()
            say(f"promtool of {_SUITE}: downloading")
            with host.new_directory(final) as directory:
                (package,) = suite.download(["promtool"], directory)
                _unpack(package, directory / "promtool")
                package.unlink()
    return final / "promtool"


def _unpack(package: Path, program: Path) -> None:
    with mirror.contents(package) as files:
        for name, stream in files:
            if name == _BINARY:
                with program.open("wb") as file:
                    shutil.copyfileobj(stream, file)
                program.chmod(0o755)
    if not program.exists():
        raise LabError(f"{package.name} has no {_BINARY}")
