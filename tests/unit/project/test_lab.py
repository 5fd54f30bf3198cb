# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lab, where it needs no guest: dumps, trials, and compilers of modules."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lab import dumps, host, image, scenario, trials
from tests.lab.debian import headers, mirror
from tests.lab.host import LabError
from tests.lab.qemu import TooSlow
from tests.unit.project.test_lab_io import KERNEL


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_guest_that_hangs_is_booted_once_more(
    failures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []

    def make(_kernel: Any, _case: Any, directory: Path, seconds: float) -> None:
        limits.append(seconds)
        (directory / "vmcore.elf").touch()
        if len(limits) <= failures:
            raise TooSlow("the guest took longer than it may.")

    monkeypatch.setattr(host, "cache", lambda: tmp_path)
    monkeypatch.setattr(host, "install_packages", lambda: None)
    monkeypatch.setattr(dumps, "_make", make)
    monkeypatch.setattr(dumps, "_path", lambda *_: tmp_path / "dumps" / "made")
    monkeypatch.setattr(dumps, "shared_kernel", lambda _: SimpleNamespace(release="6.1"))
    monkeypatch.setattr(dumps, "_open", lambda _found, _case, path: path)
    if failures == 2:
        with pytest.raises(LabError):
            dumps.build("6.1", "mixed")
        assert not (tmp_path / "dumps" / "made").exists()
    else:
        made: Any = dumps.build("6.1", "mixed")
        assert sorted(path.name for path in made.iterdir()) == ["seconds", "vmcore.elf"]
    assert limits == [150, 300][: failures + 1]


def test_a_trial_reads_again_under_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "modules", lambda _: [])
    steps = image.guest_steps(KERNEL, scenario.load("slab-shrink", "6.1"))
    verbs = [step.verb for step in steps]
    trial = verbs.index("truth-again") + 1
    assert verbs[trial] == "run"
    recorded = {step.arguments[0] for step in steps[trial:] if step.verb == "record-now"}
    assert recorded >= {"slabinfo@shrink", "meminfo@shrink"}
    assert steps[-1].arguments == ("shrink",)


def test_what_a_trial_returned() -> None:
    head = "slabinfo - version: 2.1\n# name\n"
    line = "dentry {} {} 192 21 1 : tunables 0 0 0 : slabdata {} {} 0\n"
    truth = {
        "slabinfo.4": head + line.format(100, 100, 5, 5),
        "slabinfo@drop": head + line.format(20, 42, 2, 2),
        "meminfo": "SUnreclaim: 100 kB\nHugePages_Total: 0\n",
        "meminfo@drop": "SUnreclaim: 60 kB\nHugePages_Total: 0\n",
    }
    assert trials.returned_by(truth, "drop", "slabinfo") == {"dentry": 3 * 4096}
    assert trials.returned_by(truth, "drop", "meminfo") == {"SUnreclaim": 40 << 10}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
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
    line = "'http://mirror/pool/{0}_1%3a2.deb' {0}_1%3a2_amd64.deb 7 SHA256:0\n"
    lines = "".join(map(line.format, ("libc6", "gcc-14")))
    monkeypatch.setattr(host, "run", lambda command, **_: lines)
    assert mirror.Suite("trixie").closure(["gcc-14"]) == ["libc6", "gcc-14"]
