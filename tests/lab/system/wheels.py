# SPDX-License-Identifier: LGPL-2.1-or-later
"""The wheels of `requirements.lock` for a guest's Python, also where PyPI has none."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

from .. import host
from ..debian import mirror
from ..debian.machines import AMD64, ARM64
from ..host import LabError, say

SUITE = "bookworm"
PYTHON = "3.11"
LOCK = Path(__file__).parents[3] / "requirements.lock"
_PROCESSORS = {AMD64: "x86_64", ARM64: "aarch64"}
"""What `uname -m` and the names of wheels call the machines."""

_COMPILED = {ARM64: ("drgn",)}
"""Packages of which PyPI has the source only."""
_COMPILER = (
    *("gcc", "libc6-dev", "make", "pkgconf", "gawk", "sed", "grep", "coreutils", "dash", "tar"),
    *("diffutils", "findutils", "hostname"),
    *("python3-dev", "python3-pip", "libdw-dev", "libelf-dev", "zlib1g-dev"),
    *("liblzma-dev", "libbz2-dev"),
)
_LIBRARIES = {ARM64: ["libdw1", "libelf1", "libgomp1"]}
"""Packages of the libraries of these, which a wheel of PyPI has in itself."""

_BINFMT = Path("/proc/sys/fs/binfmt_misc")


def emulate(machine: str) -> None:
    """Have this machine run programs of another one, or raise `LabError`."""
    if machine == AMD64:
        return
    name = f"qemu-{_PROCESSORS[machine]}"
    if not host.which(f"{name}-static"):
        raise LabError(f"The root file system of {machine} needs the package qemu-user-static.")
    # Where no systemd has read it, as in containers.
    if not (_BINFMT / name).exists():
        text = Path(f"/usr/lib/binfmt.d/{name}.conf").read_text().strip()
        (_BINFMT / "register").write_text(text)


def enter(tree: Path, *command: str) -> str:
    """Run a program of a root file system on this machine, and return what it prints."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    settings = [f"{name}={value}" for name, value in environment.items()]
    return host.run(["chroot", str(tree), "/usr/bin/env", "-i", *settings, *command])


def fetch(machine: str, tree: Path, directory: Path) -> None:
    """Put the wheels for an architecture into a directory of a root file system.

    The libraries that they need are put where that has libraries.
    """
    lines = dict(_wanted(_PROCESSORS[machine]))
    for package in _COMPILED.get(machine, ()):
        shutil.copy(_compiled(package, lines.pop(package), machine), directory)
    if libraries := _LIBRARIES.get(machine):
        mirror.unpack(_suite(machine), libraries, tree)
    with tempfile.TemporaryDirectory(prefix="lab-") as name:
        wanted = Path(name) / "requirements.txt"
        wanted.write_text("".join(f"{line}\n" for line in lines.values()))
        options = [*_platform(machine), "--require-hashes", "--dest", str(directory)]
        host.run([*_pip(Path(name) / "venv"), "download", *options, "-r", str(wanted)])


def install(machine: str, target: Path, *wheels: Path) -> None:
    """Unpack wheels into a directory, with this machine's pip: emulation makes pip take minutes."""
    with tempfile.TemporaryDirectory(prefix="lab-") as name:
        options = [*_platform(machine), "--no-index", "--target", str(target)]
        host.run([*_pip(Path(name)), "install", *options, *map(str, wheels)])


def _platform(machine: str) -> list[str]:
    """Return the options of pip for what a guest's Python runs."""
    processor = _PROCESSORS[machine]
    return [
        *("--python-version", PYTHON, "--implementation", "cp", "--only-binary", ":all:"),
        # As new as the C library of the suite.
        *(f"--platform=manylinux_2_{minor}_{processor}" for minor in (36, 34, 28, 27, 24, 17)),
        *(f"--platform=manylinux2014_{processor}", f"--platform=linux_{processor}"),
        *("--no-deps", "--quiet"),
    ]


def _suite(machine: str) -> mirror.Suite:
    suite = mirror.Suite(SUITE, machine)
    suite.update()
    return suite


def _pip(directory: Path) -> list[str]:
    # Not every virtual environment has pip.
    venv.create(directory, with_pip=True)
    return [f"{directory}/bin/python", "-m", "pip"]


def _wanted(processor: str) -> Iterator[tuple[str, str]]:
    """Yield (name, requirement with hashes) of the lock's lines that apply to the guest."""
    machine = {
        "python_version": PYTHON,
        "python_full_version": f"{PYTHON}.2",
        "sys_platform": "linux",
        "platform_machine": processor,
    }
    joined = LOCK.read_text().replace("\\\n", "")
    for line in re.findall(r"^[^#\s].*", joined, re.MULTILINE):
        requirement, *hashes = re.split(r"\s+(?=--hash)", line)
        parsed = Requirement(requirement)
        if parsed.marker is None or parsed.marker.evaluate(machine):
            words = [f"{parsed.name}{parsed.specifier}", *map(str.strip, hashes)]
            yield parsed.name, " ".join(words)


def _compiled(package: str, requirement: str, machine: str) -> Path:
    """Return a wheel made from a package's source, from the cache or made now.

    The compiler is that of the suite and the architecture, which this machine emulates.
    """
    key = hashlib.sha256(repr((requirement, SUITE, _COMPILER, machine)).encode()).hexdigest()[:12]
    final = host.cache() / "systems" / f"{package}-{machine}-{key}"
    with host.locked(final.name):
        if not final.is_dir():
            say(f"{package} for {machine}: compiling, which takes minutes in emulation")
            with host.new_directory(final) as directory:
                _compile(requirement, machine, directory)
    (wheel,) = final.glob("*.whl")
    return wheel


def _compile(requirement: str, machine: str, directory: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="compiler-", dir=directory) as name:
        tree, source = Path(name) / "tree", Path(name) / "tree" / "source"
        source.mkdir(parents=True)
        suite = _suite(machine)
        mirror.unpack(suite, suite.closure([*_COMPILER]), tree)
        # What packages make when they are configured.
        (tree / "usr/bin/awk").symlink_to("gawk")
        for each in ("dev", "tmp"):
            (tree / each).mkdir(exist_ok=True)
        os.mknod(tree / "dev/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        wanted = Path(name) / "requirements.txt"
        wanted.write_text(f"{requirement}\n")
        pip = _pip(Path(name) / "venv")
        options = ["--no-deps", "--no-binary", ":all:", "--require-hashes", "--quiet"]
        host.run([*pip, "download", *options, "--dest", str(source), "-r", str(wanted)])
        (archive,) = source.iterdir()
        make = ["python3", "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
        make += ["--no-build-isolation", "--wheel-dir", "/source", f"/source/{archive.name}"]
        enter(tree, *make)
        for wheel in source.glob("*.whl"):
            shutil.copy(wheel, directory)
