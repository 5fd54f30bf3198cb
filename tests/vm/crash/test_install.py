# SPDX-License-Identifier: LGPL-2.1-or-later
"""The extension as a user installs and loads it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import build, host
from tests.lab.debian.files import headers
from tests.vm.crash.session import Session, build_extension


def _session() -> Session:
    dump = build("5.10", "mixed")
    return Session(dump.vmlinux, (dump.formats["elf"],))


def test_other_python_builds_again(tmp_path: Path) -> None:
    built = build_extension(tmp_path)
    make = ["make", "CPPFLAGS=-DNDEBUG"]
    host.run([*make, "KCENSUS_PYTHON=/chosen/python"], cwd=built.parent)
    assert b"/chosen/python" in built.read_bytes()
    # As the superuser's, without the variable.
    host.run([*make, "install", f"DESTDIR={tmp_path}"], cwd=built.parent)
    (installed,) = tmp_path.glob("usr/lib*/crash/extensions/kcensus.so")
    assert b"/chosen/python" in installed.read_bytes()
    # kcensus.so is in the current directory, but is not the Python package.
    for python, is_warned in ((sys.executable, False), ("/chosen/python", True)):
        command = [*make, "-B", f"KCENSUS_PYTHON={python}"]
        done = subprocess.run(command, cwd=built.parent, capture_output=True, text=True, check=True)
        assert ("cannot import" in done.stderr) == is_warned


def _refusal(command: list[str], directory: Path) -> str:
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    assert done.returncode
    return done.stderr


def test_what_make_cannot_build(tmp_path: Path) -> None:
    source = build_extension(tmp_path).parent
    without_header = ["make", "CPPFLAGS=-nostdinc"]
    host.run([*without_header, "clean"], cwd=source)
    assert not (source / "kcensus.so").exists()
    assert "crash-devel" in _refusal(without_header, source)
    assert "has a space" in _refusal(["make"], source.rename(tmp_path / "a b"))


def test_install_where_crash_looks(tmp_path: Path) -> None:
    source = build_extension(tmp_path).parent
    host.run(["make", "install", f"DESTDIR={tmp_path}"], cwd=source)
    (installed,) = tmp_path.glob("usr/lib*/crash/extensions/kcensus.so")
    host.run(["make", "install", f"CRASH_EXTENSIONS={tmp_path / 'chosen'}"], cwd=source)
    assert (tmp_path / "chosen" / installed.name).read_bytes() == installed.read_bytes()
    printed = _session().script(
        [
            "extend kcensus.so",
            "kcensus explain slab-waste > term.txt",
            "extend -u kcensus.so",
            "kcensus explain slab-waste > unloaded.txt",
            "extend kcensus.so",
            "slabutil --json > slab.json",
        ],
        tmp_path,
        extend=False,
        environment={"CRASH_EXTENSIONS": str(installed.parent)},
    )
    assert f"{installed}: shared object loaded" in printed
    assert "slab-waste" in (tmp_path / "term.txt").read_text()
    assert "slab-waste:" not in (tmp_path / "unloaded.txt").read_text()
    assert (tmp_path / "slab.json").read_text().startswith("{")


@pytest.mark.parametrize("suite", ["trixie", "sid"])
def test_newer_crash(suite: str, tmp_path: Path) -> None:
    """The extension compiles without a warning against every crash that Debian has."""
    system = headers(suite)
    built = build_extension(tmp_path, cflags=f"-MD -isystem {system}")
    assert built.exists()
    dependencies = built.with_name("target.d").read_text()
    assert str(system / "crash" / "defs.h") in dependencies
    assert "/usr/include/crash/defs.h" not in dependencies
