# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernel modules of the project's own, built against the headers of a kernel of the lab."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

from .. import host
from ..host import LabError, say
from . import mirror

SOURCES = Path(__file__).parents[1] / "guest" / "modules"


def names() -> set[str]:
    """The modules that can be built."""
    return {path.stem for path in SOURCES.glob("*.c")}


def source(name: str) -> Path:
    """The one file that a module is made of."""
    return SOURCES / f"{name}.c"


def module(name: str, suite: str, release: str, version: str) -> Path:
    """The module for a kernel, with its debug information; built now unless the cache has it.

    :param release: as ``uname -r`` has it
    :param version: of the Debian package
    """
    text = source(name).read_bytes()
    key = hashlib.sha256(f"{release} {version} ".encode() + text).hexdigest()[:12]
    final = host.cache() / "modules" / f"{name}-{key}"
    path = final / f"{name}.ko"
    if not path.exists():
        with host.locked(final.name):
            if not path.exists():
                with host.new_directory(final) as directory:
                    _build(name, text, _headers(suite, release, version), directory)
    return path


def _build(name: str, text: bytes, headers: Path, directory: Path) -> None:
    say(f"module {name}: building")
    (directory / f"{name}.c").write_bytes(text)
    (directory / "Makefile").write_text(f"obj-m := {name}.o\n")
    # gcc 12 built the kernel, and any other of today will do for a module.
    compiler = "gcc-12" if host.which("gcc-12") else "gcc"
    host.run(
        ["make", "-C", str(headers), f"M={directory}", f"CC={compiler}", "modules"],
    )
    kept = (directory / f"{name}.ko").read_bytes()
    for path in directory.iterdir():
        if path.is_file() or path.is_symlink():
            path.unlink()
        else:
            subprocess.run(["rm", "-r", str(path)], check=True)
    (directory / f"{name}.ko").write_bytes(kept)


def _headers(suite_name: str, release: str, version: str) -> Path:
    """The unpacked headers of a kernel."""
    final = host.cache() / "headers" / f"{release}-{version.replace('~', '_')}"
    match = re.fullmatch(r"(\d+\.\d+)(.*)-cloud-amd64", release)
    if not match:
        raise LabError(f"No headers are known for {release}.")
    tree = final / "usr" / "src" / f"linux-headers-{release}"
    with host.locked(f"headers-{release}"):
        if not tree.is_dir():
            suite = mirror.Suite(suite_name)
            suite.update()
            common = f"linux-headers-{match[1]}{match[2]}-common"
            packages = [f"linux-headers-{release}", common, f"linux-kbuild-{match[1]}"]
            say(f"headers {release}: downloading")
            with host.new_directory(final) as directory:
                for package in suite.download(packages, directory):
                    host.run(["dpkg-deb", "-x", str(package), str(directory)])
                    package.unlink()
            makefile = tree / "Makefile"
            makefile.write_text(makefile.read_text().replace("/usr/src", str(tree.parent)))
    return tree
