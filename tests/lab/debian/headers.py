# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernel modules of the project's own, built against the headers of a kernel of the lab."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from pathlib import Path

from .. import host
from ..host import LabError, say
from . import mirror
from .machines import AMD64, ARM64, architecture

SOURCES = Path(__file__).parents[1] / "guest" / "modules"


def names() -> set[str]:
    return {path.stem for path in SOURCES.glob("*.c")}


def source(name: str) -> Path:
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


def _build(name: str, text: bytes, tree: Path, directory: Path) -> None:
    say(f"module {name}: building")
    (directory / f"{name}.c").write_bytes(text)
    (directory / "Makefile").write_text(f"obj-m := {name}.o\n")
    if (root := _root(tree)) is None:
        # gcc 12 built 6.1, and a newer one will do for a module.
        compiler = f"{_prefix(tree)}gcc"
        compiler = f"{compiler}-12" if host.which(f"{compiler}-12") else compiler
        host.run([*_make(tree, directory), f"CC={compiler}", "modules"])
    else:
        _build_in(root, tree, directory)
    kept = (directory / f"{name}.ko").read_bytes()
    for path in directory.iterdir():
        if path.is_file() or path.is_symlink():
            path.unlink()
        else:
            shutil.rmtree(path)
    (directory / f"{name}.ko").write_bytes(kept)


def _build_in(root: Path, tree: Path, directory: Path) -> None:
    """Build a module with the compiler in ``root``, a small Debian of its own."""
    inside = root / "build" / directory.name
    with host.locked(f"build-{root.name}"):
        shutil.rmtree(inside, ignore_errors=True)
        shutil.copytree(directory, inside)
        try:
            make = _make(*(Path("/", path.relative_to(root)) for path in (tree, inside)))
            # objtool reads a limit of its process in /proc.
            enter = ["unshare", "--pid", "--fork", f"--mount-proc={root}/proc", "chroot", str(root)]
            host.run([*enter, *make, f"CC={_prefix(tree)}{_COMPILER}", "modules"], env=_ENVIRONMENT)
            shutil.copytree(inside, directory, symlinks=True, dirs_exist_ok=True)
        finally:
            shutil.rmtree(inside)


def _prefix(tree: Path) -> str:
    """What the names of the tools for these headers start with."""
    return architecture(ARM64 if ARM64 in tree.name else AMD64).compiler


def _make(tree: Path, directory: Path) -> list[str]:
    """The command that builds a module, but for its compiler."""
    prefix = _prefix(tree)
    cross = [f"ARCH={ARM64}", f"CROSS_COMPILE={prefix}"] if prefix else []
    return ["make", *cross, "-C", str(tree), f"M={directory}"]


def _headers(suite_name: str, release: str, version: str) -> Path:
    final = host.cache() / "headers" / f"{release}-{version.replace('~', '_')}"
    match = re.fullmatch(rf"(\d+\.\d+)(.*?)-(?:(cloud|rt)-)?({AMD64}|{ARM64})(?:-16k)?", release)
    if not match:
        raise LabError(f"No headers are known for {release}.")
    machine = match[4]
    tree = final / "usr" / "src" / f"linux-headers-{release}"
    with host.locked(f"headers-{release}"):
        if not tree.is_dir():
            suite = mirror.Suite(suite_name)
            suite.update()
            common = f"linux-headers-{match[1]}{match[2]}-common"
            # The sources of PREEMPT_RT have had patches of their own.
            common += "-rt" if match[3] == "rt" else ""
            kbuild = suite.packages(f"linux-kbuild-{match[1]}")
            # Named after the whole release, since that exists.
            name = f"linux-kbuild-{match[1]}{match[2]}"
            tools = name if name in kbuild else f"linux-kbuild-{match[1]}"
            say(f"headers {release}: downloading")
            with host.new_directory(final) as directory:
                # The tools are of this machine, whatever the kernel is for.
                own = mirror.Suite(suite_name, machine)
                own.update()
                mirror.unpack(own, [f"linux-headers-{release}"], directory)
                mirror.unpack(suite, [common, tools], directory)
                if not _compiles_here(directory / tree.relative_to(final)):
                    _add_compiler(suite_name.removesuffix("-backports"), directory, machine)
            if _root(tree) is None:
                makefile = tree / "Makefile"
                makefile.write_text(makefile.read_text().replace("/usr/src", str(tree.parent)))
    return tree


_COMPILER = "gcc-14"
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

# What the kernel's makefiles run, besides their own tools.
_PACKAGES = ("make", "dash", "bash", "coreutils", "mawk", "sed", "grep", "findutils")
_LIBRARIES_OF_TOOLS = ("libelf1t64", "libssl3t64", "pahole")


def _compiles_here(tree: Path) -> bool:
    """Whether the compiler of this machine is as new as the one that built the kernel."""
    built_by = re.search(r"^CONFIG_GCC_VERSION=(\d+)", (tree / ".config").read_text(), re.MULTILINE)
    version = host.run(["gcc", "-dumpversion"])
    return built_by is None or int(version.partition(".")[0]) >= int(built_by[1]) // 10_000


def _add_compiler(suite_name: str, root: Path, machine: str) -> None:
    """Unpack the compiler of a suite, with all that it needs to run in ``root``."""
    suite = mirror.Suite(suite_name)
    suite.update()
    say(f"{_COMPILER} of {suite_name}: downloading")
    # A compiler's package ends with what it compiles for, and its program starts with that.
    prefix = architecture(machine).compiler
    compiler = f"{_COMPILER}-{prefix}".rstrip("-")
    packages = suite.closure([compiler, *_PACKAGES, *_LIBRARIES_OF_TOOLS])
    # This one brings the links from /bin to /usr/bin and so on.
    mirror.unpack(suite, ["base-files", *(name for name in packages if name != "base-files")], root)
    (root / "usr/bin/awk").symlink_to("mawk")
    os.mknod(root / "dev" / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))


def _root(tree: Path) -> Path | None:
    """The directory in which the tools for these headers run; nothing if they do so here."""
    root = tree.parents[2]
    return root if any((root / "usr" / "bin").glob(f"*{_COMPILER}")) else None
