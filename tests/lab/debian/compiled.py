# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernels that no suite has, compiled from a suite's source package."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from .. import host
from ..host import LabError, say
from . import mirror

_RECIPES = Path(__file__).parent
_CONFIGURATION = "config.arm64_none_cloud-arm64.xz"
"""Debian's own, with which a recipe begins."""


def recipe(machine: str, flavor: str) -> Path:
    """Return the script that compiles a flavour."""
    return _RECIPES / f"{machine}-{flavor}.sh"


def compiled(name: str, suite: mirror.Suite, series: str, script: Path) -> tuple[str, str, Path]:
    """Return release, version of the source package, and directory of a kernel; it is cached.

    The caller holds the lock of this kernel.

    :param series: such as ``6.12``
    """
    suite.update()
    packages = [f"linux-source-{series}", f"linux-config-{series}"]
    versions = suite.packages(packages[0])
    if packages[0] not in versions:
        raise LabError(f"{suite.name} has no {packages[0]}.")
    version = versions[packages[0]]
    key = hashlib.sha256(version.encode() + script.read_bytes()).hexdigest()[:12]
    final = host.cache() / "kernels" / f"{name}-{key}"
    if not final.is_dir():
        with (
            tempfile.TemporaryDirectory(prefix="lab-", dir=host.cache()) as made,
            host.new_directory(final) as directory,
        ):
            _compile(suite, packages, script, Path(made), directory)
    return (final / "release").read_text().strip(), version, final


def _compile(
    suite: mirror.Suite, packages: list[str], script: Path, work: Path, directory: Path
) -> None:
    mirror.unpack(suite, packages, work)
    sources = work / "usr" / "src"
    say(f"{packages[0]}: unpacking")
    host.run(["tar", "-xf", str(sources / f"{packages[0]}.tar.xz"), "-C", str(work)])
    configuration = next(sources.rglob(_CONFIGURATION), None)
    if configuration is None:
        raise LabError(f"{packages[1]} has no {_CONFIGURATION}")
    say(f"{packages[0]}: compiling")
    host.run(["bash", str(script), str(work / packages[0]), str(configuration), str(work / "out")])
    keep(work / "out", directory)


def keep(out: Path, directory: Path) -> None:
    """Move what a recipe has made to where the lab looks for it; modules have their debug info."""
    shutil.move(out / "vmlinux", directory / "vmlinux")
    shutil.move(out / "Image", directory / "vmlinuz")
    shutil.move(out / "release", directory / "release")
    (directory / "modules").mkdir()
    for path in out.rglob("*.ko"):
        shutil.move(path, directory / "modules" / path.name.replace("-", "_"))
    (directory / "debug").symlink_to("modules")
