# SPDX-License-Identifier: LGPL-2.1-or-later
"""Single files of packages of other Debian suites."""

from __future__ import annotations

from pathlib import Path

from .. import host
from ..host import LabError, say
from . import mirror


def headers(suite: str) -> Path:
    """Return a directory with ``crash/defs.h``, which extensions of crash include."""
    final = host.cache() / "crash-headers" / suite
    return _file(suite, "crash", "usr/include/crash/defs.h", final / "crash" / "defs.h", final)


def promtool() -> Path:
    """Return Prometheus' own check of rules and metrics, without its service."""
    final = host.cache() / "promtool" / "trixie"
    return _file("trixie", "promtool", "usr/bin/promtool", final / "promtool", final) / "promtool"


def _file(suite_name: str, package: str, name: str, path: Path, final: Path) -> Path:
    """Make the directory ``final`` with a file of a package at ``path`` in it."""
    with host.locked(f"{final.parent.name}-{suite_name}"):
        if not final.is_dir():
            suite = mirror.Suite(suite_name)
            suite.update()
            say(f"{package} of {suite_name}: downloading")
            with host.new_directory(final) as directory:
                (archive,) = suite.download([package], directory)
                made = directory / path.relative_to(final)
                made.parent.mkdir(exist_ok=True)
                with mirror.contents(archive) as files:
                    for found, stream in files:
                        if found == name:
                            made.write_bytes(stream.read())
                if not made.exists():
                    raise LabError(f"{archive.name} has no {name}")
                made.chmod(0o755)
                archive.unlink()
    return final
