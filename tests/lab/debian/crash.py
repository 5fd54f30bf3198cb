# SPDX-License-Identifier: LGPL-2.1-or-later
"""The header that extensions of crash include, as other Debian suites have it."""

from __future__ import annotations

from pathlib import Path

from .. import host
from ..host import LabError, say
from . import mirror


def headers(suite_name: str) -> Path:
    """Return a directory with ``crash/defs.h`` of a suite; fetched now unless the cache has it."""
    final = host.cache() / "crash-headers" / suite_name
    with host.locked(f"crash-headers-{suite_name}"):
        if not final.is_dir():
            suite = mirror.Suite(suite_name)
            suite.update()
            say(f"header of crash in {suite_name}: downloading")
            with host.new_directory(final) as directory:
                (package,) = suite.download(["crash"], directory)
                _unpack(package, directory / "crash")
                (directory / "version").write_text(package.name.split("_")[1])
                package.unlink()
    return final


def _unpack(package: Path, directory: Path) -> None:
    directory.mkdir()
    with mirror.contents(package) as files:
        for name, stream in files:
            if name == "usr/include/crash/defs.h":
                (directory / "defs.h").write_bytes(stream.read())
    if not (directory / "defs.h").exists():
        raise LabError(f"{package.name} has no defs.h")
