# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs of this machine's packages, for guests of another architecture."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from .. import host
from ..host import LabError, say
from . import mirror
from .machines import architecture

_PACKAGES = {"kexec": "kexec-tools"}
"""The packages of programs that only guests have."""


def program(command: str, machine: str) -> dict[str, Path]:
    """Return what runs a command of this machine there: files by their names in the guest."""
    path = Path(host.which(command) or command).resolve()
    root = _unpacked(_PACKAGES.get(command) or _package(path), machine)
    # A file of /bin is one of /usr/bin.
    inside = next((p for p in root.rglob(path.name) if p.parent.name in ("bin", "sbin")), None)
    if inside is None:
        raise LabError(f"no {command} for {machine}")
    libraries, interpreter = architecture(machine).libraries, architecture(machine).loader
    loader = root / "lib" / libraries
    found = {f"bin/{command}": inside}
    for library in _needed(inside, root / "usr/lib" / libraries, loader):
        # The program names its interpreter, the others are searched for.
        is_loader = library.name == Path(interpreter).name
        found[interpreter if is_loader else f"lib/{libraries}/{library.name}"] = library
    return found


def _package(path: Path) -> str:
    for name in (path, Path("/", *path.parts[2:])):
        try:
            return host.run(["dpkg", "-S", str(name)]).partition(":")[0]
        except LabError:
            continue
    raise LabError(f"No package has {path}.")


def _unpacked(package: str, machine: str) -> Path:
    """Return a directory with a package of this machine's release and all that it depends on."""
    release = Path("/etc/os-release").read_text()
    codename = re.findall(r"^VERSION_CODENAME=(\w+)", release, re.MULTILINE)[0]
    final = host.cache() / "programs" / f"{codename}-{machine}" / package
    with host.locked(f"programs-{machine}"):
        if not final.is_dir():
            suite = mirror.Suite(codename, machine)
            suite.update()
            say(f"{package} for {machine}: downloading")
            with host.new_directory(final) as directory:
                mirror.unpack(suite, suite.closure([package]), directory)
    return final


def _needed(path: Path, *directories: Path) -> Iterator[Path]:
    """Yield the libraries of a program, and those of these."""
    seen: set[str] = set()
    todo = [path]
    while todo:
        dynamic = host.run(["readelf", "--wide", "--dynamic", str(todo.pop())])
        for name in re.findall(r"\(NEEDED\)\s+Shared library: \[(\S+)\]", dynamic):
            if name in seen:
                continue
            seen.add(name)
            library = next((p for each in directories if (p := each / name).exists()), None)
            if library is None:
                raise LabError(f"{path.name} needs {name}, which no package has")
            todo.append(library)
            yield library
