# SPDX-License-Identifier: LGPL-2.1-or-later
"""The extension as a user installs and loads it."""

from __future__ import annotations

from pathlib import Path

from tests.lab import build, host
from tests.vm.crash.session import Session, build_extension


def _session() -> Session:
    dump = build("5.10", "mixed")
    return Session(dump.vmlinux, (dump.formats["elf"],))


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
