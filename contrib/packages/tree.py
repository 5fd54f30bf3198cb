# SPDX-License-Identifier: LGPL-2.1-or-later
"""The files of a package, below a directory that stands for ``/``.

The wheels are those of the lock, so that a package has what was tested, and any machine can make
the packages for every distribution. They are in a virtual environment of the distribution's Python:
``sys.executable`` is right in child processes, in crash and at drgn's prompt.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOME = Path("opt/kcensus")
STORE = "kcensus-store"
LOCKS = {"kcensus": "requirements-minimal.lock", STORE: "requirements.lock"}
"""The packages, and what is in them; one is added to the one above."""

_PLATFORM = "x86_64-manylinux_2_28"
_SCRIPTS = ("kcensus", "drgn", "drgn-crash")
UNITS = Path("usr/lib/systemd/system")
SHARE = Path("usr/share/kcensus")
_UNIT_FILES = {
    "kcensus": ("kcensus-watch.*", "kcensus-.service.d/*"),
    STORE: ("kcensus-record.*", "kcensus-trend.*"),
}
_HERE = ("packages", "container")
"""Folders of contrib/ that no package has."""


@dataclass(frozen=True)
class Tree:
    """What one package installs.

    :ivar python: the version of the distribution's Python, as ``3.13``
    """

    package: str
    python: str
    path: Path

    @property
    def site(self) -> Path:
        return self.path / HOME / f"lib/python{self.python}/site-packages"

    @property
    def files(self) -> list[Path]:
        """Files and links, relative to ``/``, in order."""
        found = (path for path in self.path.rglob("*") if path.is_symlink() or path.is_file())
        return sorted(path.relative_to(self.path) for path in found)

    @property
    def modules(self) -> list[str]:
        """The names in site-packages that hold Python code."""
        return sorted(
            path.name
            for path in self.site.iterdir()
            if path.suffix == ".py" or (path.is_dir() and next(path.rglob("*.py"), None))
        )


def make_trees(wheel: Path, python: str, uv: Path, place: Path) -> list[Tree]:
    """Lay out all packages for a version of Python."""
    trees = [Tree(package, python, place / package) for package in LOCKS]
    for tree in trees:
        _install(tree, wheel, uv)
    base, added = trees
    _environment(base)
    _share(base)
    for tree in trees:
        _units(tree)
    _subtract(added, base)
    for tree in trees:
        _document(tree)
        _normalize(tree.path)
    return trees


def _install(tree: Tree, wheel: Path, uv: Path) -> None:
    # Copied: files of its cache must not change.
    command: list[str | Path] = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--target",
        tree.site,
        "--link-mode",
        "copy",
    ]
    command += ["--python", sys.executable, "--python-version", tree.python]
    command += ["--python-platform", _PLATFORM, "--no-build"]
    lock: list[str | Path] = ["--require-hashes", "-r", ROOT / LOCKS[tree.package]]
    # By name, so that no file has the path of the wheel.
    name: list[str | Path] = ["--no-deps", "--no-index", "--find-links", wheel.parent]
    for wanted in (lock, [*name, wheel.name.split("-")[0]]):
        subprocess.run([*command, *wanted], check=True)
    _drop(
        # They name this machine, or are of use to installers only.
        *tree.site.glob("*.dist-info/RECORD"),
        *tree.site.glob("*.dist-info/uv_cache.json"),
        tree.site / ".lock",
        *(path for path in tree.site.glob("*/**/tests") if path.parts[-2] != "kcensus"),
        # For programs in C, and another backend of zstandard, which cffi would be needed for.
        tree.site / "pyarrow/include",
        *tree.site.glob("zstandard/*cffi*"),
    )
    for library in tree.site.glob("zstandard/*.so"):
        subprocess.run(["strip", "--strip-debug", library], check=True)


def _environment(tree: Tree) -> None:
    home = tree.path / HOME
    (home / "bin").mkdir()
    home.joinpath("pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {tree.python}\n"
    )
    for link in ("python", "python3", f"python{tree.python}"):
        (home / "bin" / link).symlink_to(f"/usr/bin/python{tree.python}")
    for name in _SCRIPTS:
        text = (tree.site / "bin" / name).read_text().partition("\n")[2]
        script = home / "bin" / name
        script.write_text(f"#!/{HOME}/bin/python3\n{text}")
        script.chmod(0o755)
    (tree.path / "usr/bin").mkdir(parents=True)
    (tree.path / "usr/bin/kcensus").symlink_to(f"/{HOME}/bin/kcensus")


def _share(tree: Tree) -> None:
    """Add what the wheel has for /usr/share, and what contrib/ has for other programs."""
    share = tree.path / "usr/share"
    shutil.copytree(tree.site / "share", share)
    for folder in sorted((ROOT / "contrib").iterdir()):
        if folder.is_dir() and folder.name not in (*_HERE, "__pycache__"):
            shutil.copytree(folder, share / "kcensus" / folder.name)
    for name in ("kcensus.json", "alerts.yml"):
        _copy(ROOT / "docs/monitoring" / name, share / "kcensus/monitoring" / name)


def _units(tree: Tree) -> None:
    source = ROOT / "docs/monitoring/systemd"
    named = [each for name in _UNIT_FILES[tree.package] for each in source.glob(name)]
    paths = {path: path.relative_to(source) for path in named}
    if tree.package == "kcensus":
        kdump = tree.path / SHARE / "kdump/kcensus-kdump.service"
        paths[kdump] = Path(kdump.name)
    for path, name in paths.items():
        target = tree.path / UNITS / name
        target.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text().replace("/etc/systemd/system/", f"/{UNITS}/")
        target.write_text(text.replace("/usr/local/sbin/", f"/{SHARE}/kdump/"))


def _document(tree: Tree) -> None:
    documents = tree.path / "usr/share/doc" / tree.package
    for path in ("README.md", "CHANGELOG.md") if tree.package == "kcensus" else ():
        _copy(ROOT / path, documents / path)
    _copy(Path(__file__).with_name("copyright"), documents / "copyright")


def _subtract(added: Tree, base: Tree) -> None:
    """Leave in one tree what the other one does not have."""
    _drop(added.site / "bin", added.site / "share", base.site / "bin", base.site / "share")
    for path in {*added.files} & {*base.files}:
        if (added.path / path).read_bytes() != (base.path / path).read_bytes():
            raise SystemExit(f"{added.package}: {path} differs from the one of {base.package}")
        (added.path / path).unlink()


def _normalize(tree: Path) -> None:
    """Remove empty directories, and give all files the same modes on every machine."""
    for folder, _, names in os.walk(tree, topdown=False):
        for path in (Path(folder, name) for name in names):
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
        if any(Path(folder).iterdir()):
            Path(folder).chmod(0o755)
        else:
            Path(folder).rmdir()


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _drop(*paths: Path) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
