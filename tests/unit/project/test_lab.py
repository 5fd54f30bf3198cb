# SPDX-License-Identifier: LGPL-2.1-or-later
"""The lab, where it needs no guest: dumps, trials, and compilers of modules."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lab import dumps, host, image, scenario, trials
from tests.lab.debian import headers, mirror, programs, store
from tests.lab.debian.machines import AMD64, ARM64, architecture
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


@pytest.mark.parametrize("page", [4, 16])
def test_what_a_trial_returned(page: int) -> None:
    head = "slabinfo - version: 2.1\n# name\n"
    line = "dentry {} {} 192 21 1 : tunables 0 0 0 : slabdata {} {} 0\n"
    truth = {
        "slabinfo.4": head + line.format(100, 100, 5, 5),
        "slabinfo@drop": head + line.format(20, 42, 2, 2),
        "zoneinfo": "Node 0, zone DMA\n   managed  10\nNode 1, zone\n        managed  2\n",
        "meminfo": f"MemTotal: {12 * page} kB\nSUnreclaim: 100 kB\nHugePages_Total: 0\n",
        "meminfo@drop": "SUnreclaim: 60 kB\nHugePages_Total: 0\n",
    }
    assert trials.returned_by(truth, "drop", "slabinfo") == {"dentry": 3 * (page << 10)}
    assert trials.returned_by(truth, "drop", "meminfo")["SUnreclaim"] == 40 << 10


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


ARM: Any = SimpleNamespace(machine=ARM64, architecture=architecture(ARM64))


def test_packages_of_another_machine_have_lists_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KCENSUS_LAB_CACHE", str(tmp_path))
    monkeypatch.setattr(host, "run", lambda command, **_: "")
    # This machine need not be Debian.
    monkeypatch.setattr(mirror, "_mirrors", lambda: [mirror._Mirror("http://debian", "", False)])
    homes = [mirror.Suite("trixie", machine) for machine in (AMD64, ARM64)]
    for suite in homes:
        suite.update()
    names = [suite.sources.parent.name for suite in homes]
    assert names == ["trixie", "trixie-arm64"]
    assert 'APT::Architecture "arm64";' in (homes[1].sources.parent / "apt.conf").read_text()


def test_a_program_of_another_machine_comes_with_its_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = tmp_path / "usr/lib/aarch64-linux-gnu", tmp_path / "lib/aarch64-linux-gnu"
    made = {
        tmp_path / "usr/sbin/tool": ["libtool.so.1", "libc.so.6"],
        tmp_path / "usr/share/doc/tool": [],
        libraries[0] / "libtool.so.1": ["libc.so.6"],
        libraries[1] / "libc.so.6": ["ld-linux-aarch64.so.1"],
        libraries[1] / "ld-linux-aarch64.so.1": [],
    }
    for path in made:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def run(command: list[str], **_: object) -> str:
        line = " 0x01 (NEEDED)  Shared library: [{}]\n"
        return "".join(map(line.format, made[Path(command[-1])]))

    monkeypatch.setattr(host, "run", run)
    monkeypatch.setattr(programs, "_package", lambda path: f"package-of-{path.name}")
    monkeypatch.setattr(programs, "_unpacked", lambda *_: tmp_path)
    assert {name: path.name for name, path in programs.program("tool", ARM64).items()} == {
        "bin/tool": "tool",
        "lib/aarch64-linux-gnu/libtool.so.1": "libtool.so.1",
        "lib/aarch64-linux-gnu/libc.so.6": "libc.so.6",
        "lib/ld-linux-aarch64.so.1": "ld-linux-aarch64.so.1",
    }
    (libraries[0] / "libtool.so.1").unlink()
    with pytest.raises(LabError, match=r"libtool\.so\.1"):
        programs.program("tool", ARM64)


def test_a_program_that_differs_between_machines_is_replaced() -> None:
    sources = [image.source_of("plant-load", machine) for machine in (AMD64, ARM64)]
    assert [path and path.parent.name for path in sources] == ["programs", "arm64"]
    assert image.source_of("churn", AMD64) == image.source_of("churn", ARM64)
    case = scenario.load("waits-freeze", "6.1")
    assert sources[1] not in image.program_sources(case)
    # The key of a dump has both: one includes the other.
    assert {*sources} <= {*image.program_sources(case, ARM64)}


def test_what_loads_the_crash_kernel() -> None:
    assert image._crash_load(KERNEL).verb == "crash-load"
    step = image._crash_load(ARM)
    assert (step.verb, step.arguments[0]) == ("run", "/bin/sh")
    assert "console=ttyAMA0" in step.arguments[-1]
    # The address of _stext, as the kernel lists it, becomes that of _text.
    command = step.arguments[-1].partition("sed '")[2].partition("'")[0]
    listed = "ffffc8d603210000 T _stext\nffffc8d603210000 t other\n"
    edited = subprocess.run(
        ["sed", command], input=listed, capture_output=True, text=True, check=True
    )
    assert edited.stdout == f"ffffc8d603200000 T _text\n{listed}"


@pytest.mark.parametrize(
    ("flavor", "machine", "ending"),
    [("cloud", AMD64, "cloud-amd64"), ("cloud", ARM64, "cloud-arm64"), ("16k", ARM64, "arm64-16k")],
)
def test_how_releases_end(flavor: str, machine: str, ending: str) -> None:
    wanted = store._Wanted("name", "suite", "1", flavor=flavor, machine=machine)
    assert wanted.ending == ending
