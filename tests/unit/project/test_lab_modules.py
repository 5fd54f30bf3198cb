# SPDX-License-Identifier: LGPL-2.1-or-later
"""Modules of the lab: which compiler builds them, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab import host
from tests.lab.debian import headers, mirror


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The directory of a kernel's headers, in a root of its own."""
    tree = tmp_path / "usr" / "src" / "linux-headers-1"
    tree.mkdir(parents=True)
    return tree


@pytest.mark.parametrize(
    ("built_by", "here"), [("120200", True), ("90500", True), ("130000", False)]
)
def test_a_kernel_of_a_newer_compiler_needs_that(
    built_by: str, here: bool, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / ".config").write_text(f"CONFIG_CC_IS_GCC=y\nCONFIG_GCC_VERSION={built_by}\n")
    monkeypatch.setattr(host, "run", lambda command: "12\n")
    assert headers._compiles_here(tree) is here


def test_a_module_is_built_where_its_compiler_is(tree: Path, tmp_path: Path) -> None:
    assert headers._root(tree) is None
    (tmp_path / "usr" / "bin").mkdir()
    (tmp_path / "usr" / "bin" / headers._COMPILER).touch()
    assert headers._root(tree) == tmp_path


def test_a_build_in_a_root_leaves_nothing_there(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "outside" / ".module.partial"
    directory.mkdir(parents=True)
    (directory / "module.c").touch()
    monkeypatch.setenv("KCENSUS_LAB_CACHE", str(tmp_path / "cache"))

    def make(command: list[str], **_: object) -> str:
        [inside] = (tmp_path / "build").iterdir()
        assert f"M=/build/{inside.name}" in command
        assert f"/{tree.relative_to(tmp_path)}" in command
        assert (inside / "module.c").exists()
        (inside / "module.ko").write_bytes(b"built")
        return ""

    monkeypatch.setattr(host, "run", make)
    headers._build_in(tmp_path, tree, directory)
    assert (directory / "module.ko").read_bytes() == b"built"
    assert list((tmp_path / "build").iterdir()) == []


def test_packages_with_all_that_they_depend_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KCENSUS_LAB_CACHE", str(tmp_path))
    (tmp_path / "apt" / "trixie" / "state").mkdir(parents=True)
    lines = "".join(
        f"'http://mirror/pool/{name}_1%3a2.deb' {name}_1%3a2_amd64.deb 7 SHA256:0\n"
        for name in ("libc6", "gcc-14")
    )
    monkeypatch.setattr(host, "run", lambda command, **_: lines)
    assert mirror.Suite("trixie").closure(["gcc-14"]) == ["libc6", "gcc-14"]
