# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make packages of a wheel: ``python -m contrib.packages.build WHEEL OUTPUT --deb 3.13``.

dpkg-deb and rpmbuild pack a tree as it is. debhelper would look for what is not here: a build, and
libraries of Debian. The same commit gives the same bytes, given ``SOURCE_DATE_EPOCH``.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from contrib.packages.tree import HOME, STORE, UNITS, Tree, make_trees

_TEMPLATES = Path(__file__).parent
_SUMMARIES = {
    "kcensus": "census of kernel memory and I/O, on live kernels and vmcores",
    STORE: "series of results of kcensus, and Parquet",
}
_DESCRIPTIONS = {
    "kcensus": (
        "It answers questions about kernel memory and I/O, on a running kernel or a vmcore:",
        "slab caches, negative dentries, list_lrus, memory cgroups, kcopyd, I/O schedulers, waits.",
        "It needs no debug info on kernels with BTF.",
    ),
    STORE: (
        "It lets kcensus record the figures of a kernel over days and weeks, show their growth",
        "(`kcensus record`, `kcensus trend`), and write Parquet.",
    ),
}
_DEB_NEEDS = ("libc6 (>= 2.28)", "libgcc-s1", "libstdc++6", "zlib1g")
_RPM_NEEDS = (
    *("libc.so.6(GLIBC_2.28)(64bit)", "libgcc_s.so.1()(64bit)", "libstdc++.so.6()(64bit)"),
    "libz.so.1()(64bit)",
)
_OWN = (
    HOME,
    *map(Path, ("usr/share/kcensus", "usr/share/doc", "usr/lib/systemd/system")),
    # zsh and fish need not be there.
    *map(Path, ("usr/share/zsh", "usr/share/fish")),
)
"""Directories at or below these belong to a package, except those of :data:`_SHARED`."""
_SHARED = (Path("usr/share/doc"), Path("usr/lib/systemd/system"))


def version_of(wheel: Path) -> str:
    """Return the version as packages have it: ``~`` sorts before everything, even the end."""
    upstream = wheel.name.split("-")[1]
    return re.sub(r"\.?(dev|a|b|rc)(?=\d)", r"~\1", upstream)


def _series(version: str, later: int = 0) -> str:
    """Return the first two numbers of a version, or those of a later series."""
    major, minor = map(int, re.findall(r"\d+", version)[:2])
    return f"{major}.{minor + later}"


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return a file of this directory with its words between ``@``."""
    text = (_TEMPLATES / template).read_text()
    return re.sub(r"@([A-Z]+)@", lambda found: values[found[1]], text)


def _values(tree: Tree) -> dict[str, str]:
    units = [path.name for path in tree.files if path.parent == UNITS]
    values = {
        "PACKAGE": tree.package,
        "PYTHON": tree.python,
        "PROVIDES": f"{tree.package}-py{tree.python}",
        "MODULES": " ".join(tree.modules),
        "UNITS": " ".join(units),
        # Others run for a moment: the next time, they are of the new version.
        "RESTARTED": " ".join(
            name
            for name in units
            if name.endswith(".service")
            and "Type=oneshot" not in (tree.path / UNITS / name).read_text()
        ),
        "SUMMARY": _SUMMARIES[tree.package],
    }
    scripts = {name: fill(f"{name}.sh", values) for name in ("installed", "removing", "removed")}
    return values | {name.upper(): text for name, text in scripts.items()}


def values_of_deb(tree: Tree, version: str) -> dict[str, str]:
    """Return the words for Debian's control file.

    A package depends on one Python, not on the default one: an upgrade of the distribution leaves
    it working.
    """
    version = f"{version}-1+py{tree.python}"
    needs = [f"python{tree.python}", *_DEB_NEEDS]
    if tree.package == STORE:
        # One can be updated without the other.
        base = f"kcensus (>= {_series(version)}~)", f"kcensus (<< {_series(version, 1)}~)"
        needs = [f"python{tree.python}", f"kcensus-py{tree.python}", *base]
    return _values(tree) | {
        "VERSION": version,
        "DEPENDS": ", ".join(needs),
        "DESCRIPTION": "\n".join(f" {line}" for line in _DESCRIPTIONS[tree.package]),
        "KIB": str(sum((tree.path / path).lstat().st_size + 1023 >> 10 for path in tree.files)),
    }


def values_of_rpm(tree: Tree, version: str) -> dict[str, str]:
    """Return the words for the spec; Fedora, RHEL and SUSE all have ``/usr/bin/python3.N``."""
    release = f"1.py{tree.python}"
    needs = [f"/usr/bin/python{tree.python}", *_RPM_NEEDS]
    if tree.package == STORE:
        base = f"kcensus >= {_series(version)}~", f"kcensus < {_series(version, 1)}~"
        needs = [f"/usr/bin/python{tree.python}", f"kcensus-py{tree.python}", *base]
    return _values(tree) | {
        "VERSION": version,
        "RELEASE": release,
        "REQUIRES": ", ".join(needs),
        "DESCRIPTION": "\n".join(_DESCRIPTIONS[tree.package]),
        "TREE": str(tree.path),
        "FILES": "\n".join(_listed(tree)),
    }


def make_deb(tree: Tree, version: str, output: Path) -> None:
    """Pack a tree for Debian and Ubuntu."""
    values = values_of_deb(tree, version)
    control = {"control": (0o644, fill("control", values))}
    for script, name in (("postinst", "INSTALLED"), ("prerm", "REMOVING"), ("postrm", "REMOVED")):
        control[script] = (0o755, f"#!/bin/sh\nset -e\n{values[name]}")
    folder = tree.path / "DEBIAN"
    folder.mkdir()
    folder.chmod(0o755)
    for name, (mode, text) in control.items():
        (folder / name).write_text(text)
        (folder / name).chmod(mode)
    # Where zsh of Debian looks.
    zsh = tree.path / "usr/share/zsh"
    if zsh.is_dir():
        (zsh / "site-functions").rename(zsh / "vendor-completions")
    # xz makes them a tenth smaller, and takes minutes.
    command = ["dpkg-deb", "--root-owner-group", "-Zzstd", "-z10", "--threads-max=1", "--build"]
    _run(*command, tree.path, output)


def make_rpm(tree: Tree, version: str, output: Path) -> None:
    """Pack a tree for RPM."""
    work = tree.path.with_suffix(".rpm")
    work.mkdir()
    spec = work / "kcensus.spec"
    spec.write_text(fill("kcensus.spec", values_of_rpm(tree, version)))
    command = ["rpmbuild", "-bb", "--quiet", "--target", "x86_64", "--define", f"_topdir {work}"]
    _run(*command, spec)
    (made,) = work.rglob("*.rpm")
    shutil.move(made, output)


def _run(*command: str | Path) -> None:
    """Run a program, and show what it says only if it fails: rpmbuild warns of links."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stdout}")


def _listed(tree: Tree) -> list[str]:
    """Return the lines of ``%files``: directories of its own, and all files."""
    parents = {parent for path in tree.files for parent in path.parents}
    own = (path for path in parents if any(path.is_relative_to(each) for each in _OWN))
    return [
        *(f'%dir "/{path}"' for path in sorted({*own} - {*_SHARED})),
        *(f'"/{path}"' for path in tree.files),
    ]


def build(wheel: Path, output: Path, uv: Path, debs: list[str], rpms: list[str]) -> None:
    """Make the packages for some versions of Python."""
    version = version_of(wheel)
    for kind, pythons, make in (("deb", debs, make_deb), ("rpm", rpms, make_rpm)):
        for python in pythons:
            with tempfile.TemporaryDirectory(prefix="kcensus-") as place:
                for tree in make_trees(wheel, python, uv, Path(place)):
                    name = f"{tree.package}_{version}-1+py{python}_amd64.deb"
                    if kind == "rpm":
                        name = f"{tree.package}-{version}-1.py{python}.x86_64.rpm"
                    make(tree, version, output / name)
                    sys.stdout.write(f"{output / name}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Make packages of a wheel.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--uv", type=Path, required=True)
    for kind in ("deb", "rpm"):
        parser.add_argument(f"--{kind}", nargs="*", default=[], metavar="PYTHON")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    build(given.wheel.resolve(), given.output.resolve(), given.uv.resolve(), given.deb, given.rpm)


if __name__ == "__main__":
    main()
