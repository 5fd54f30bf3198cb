# SPDX-License-Identifier: LGPL-2.1-or-later
"""The server opens files below its directories, and no others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kcensus.agents.messages import Settings
from kcensus.agents.opened import Opened
from kcensus.agents.places import PlaceError, Places
from kcensus.progress import SilentProgress
from kcensus.samples import capsule


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A directory with a dump and links, and a secret beside it."""
    root = tmp_path / "dumps"
    (root / "case").mkdir(parents=True)
    (root / "case" / "vmcore").write_bytes(b"dump")
    (tmp_path / "dumps-secret").write_bytes(b"secret")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "vmcore").write_bytes(b"secret")
    (root / "inside").symlink_to(root / "case" / "vmcore")
    (root / "outside").symlink_to(tmp_path / "dumps-secret")
    (root / "folder").symlink_to(tmp_path / "elsewhere")
    (root / "proc").symlink_to("/proc")
    (root / "loop").symlink_to(root / "loop")
    os.mkfifo(root / "fifo")
    return Places.of([root])


def test_a_file_below_is_a_target_by_any_path(places: Places) -> None:
    (root,) = places.roots
    expected = os.path.join(root, "case", "vmcore")
    names = ("case/vmcore", "./case/../case/vmcore", "inside", expected, f"{root}/inside")
    assert {places.chosen(name).path for name in names} == {expected}


def test_a_changed_file_is_another_target(places: Places) -> None:
    before = places.chosen("case/vmcore")
    path = Path(str(before.path))
    path.write_bytes(b"another")
    assert places.chosen("case/vmcore") != before


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "case",
        "nothing",
        "../dumps-secret",
        "../elsewhere/vmcore",
        "case/../../dumps-secret",
        "outside",
        "folder/vmcore",
        "proc/self/environ",
        "proc/kcore",
        "/proc/kcore",
        "/etc/passwd",
        "loop",
        "fifo",
        "live",
        "session",
        "qmp:case/vmcore",
        "file://case/vmcore",
        "case/vmcore\0",
        "x" * 5000,
        "~/vmcore",
        "$HOME/vmcore",
        "sample.capsule",
        "sample-series",
    ],
)
def test_nothing_else_is(places: Places, name: str) -> None:
    with pytest.raises(PlaceError) as refused:
        places.chosen(name)
    assert "secret" not in str(refused.value).replace(name, "")


def test_refusals_do_not_tell_which_files_exist(places: Places) -> None:
    sentences = []
    for name in ("../dumps-secret", "../dumps-nothing"):
        with pytest.raises(PlaceError) as refused:
            places.chosen(name)
        sentences.append(str(refused.value).replace(name, ""))
    assert len({*sentences}) == 1


def test_the_whole_machine_does_not_have_its_running_kernel() -> None:
    everything = Places.of(["/"])
    for name in ("/proc/kcore", "proc/self/status"):
        with pytest.raises(PlaceError):
            everything.chosen(name)


def test_the_running_kernel_only_where_it_was_allowed(tmp_path: Path) -> None:
    assert Places.of([], allow_live=True).chosen("live").path is None
    with pytest.raises(PlaceError):
        Places.of([tmp_path / "nothing"])


def test_a_sample_is_the_one_that_comes_with_kcensus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sample").write_bytes(b"a file of the directory that the server runs in")
    monkeypatch.chdir(tmp_path)
    chosen = Places.of([]).chosen("sample")
    assert chosen.path == str(capsule("sample"))
    opened = Opened(chosen.path, Settings(allow_truncated=True), SilentProgress())
    assert (opened.target().name, opened.target().words) == ("sample", "sample --allow-truncated")
