# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import io
import os
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from kcensus import cli
from kcensus.commands import Exit
from kcensus.commands.fleet import run
from kcensus.fleets import FleetError
from kcensus.fleets.executors import Threads
from kcensus.fleets.run import Tally
from kcensus.fleets.targets import check_symbols, find
from kcensus.sources import TargetError
from kcensus.sources.capsule.container import MAGIC
from tests.unit.fleets.stores import Target, made

CORE = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x04\0" + bytes(46)
DOCUMENT = b'{\n  "schema": 3,\n  "kcensus": "1"\n}'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, data in {
        "a/vmcore": CORE,
        "a/vmlinux": CORE[:16] + b"\x02\0" + CORE[18:],
        "b/big-endian": CORE[:5] + b"\x02" + CORE[6:16] + b"\0\x04" + CORE[18:],
        "b/x.capsule": MAGIC,
        "b/report.json": DOCUMENT,
        "b/other.json": b'{"a": 1}',
        "b/kdump": b"KDUMP   ",
        "b/flat": b"makedumpfile\0\0\0\0",
        "c/notes.txt": b"hello",
        "c/empty": b"",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    os.mkfifo(tmp_path / "c" / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path)
    return tmp_path


def names(paths: list[str], tree: Path) -> list[str]:
    return [os.path.relpath(path, tree) for path in paths]


def test_a_directory_has_its_dumps_capsules_and_documents(tree: Path) -> None:
    found = find([str(tree)])
    own = ["a/vmcore", "b/big-endian", "b/flat", "b/kdump", "b/report.json", "b/x.capsule"]
    assert names(found.targets, tree) == own
    assert found.others == 5
    kinds = ["no dump by its content"] * 2 + ["empty"]
    assert found.examples == dict(
        zip(
            (str(tree / name) for name in ("a/vmlinux", "b/other.json", "c/empty")),
            kinds,
            strict=True,
        )
    )
    assert find([str(tree / "c")]).examples[str(tree / "c" / "fifo")] == "a named pipe"


def test_a_named_file_is_a_target_whatever_is_in_it(tree: Path) -> None:
    paths = [str(tree / "c" / name) for name in ("notes.txt", "fifo", "empty", "missing")]
    assert find(paths).targets == paths


def test_paths_are_absolute_and_names_stay(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree / "a")
    found = find(["vmcore", "../c/empty", "*.none", "sample", "../b/x.*"])
    paths = ("a/vmcore", "c/empty", "a/*.none", "b/x.capsule")
    expected = [str(tree / path) for path in paths]
    assert found.targets == [*expected[:3], "sample", expected[3]]


def test_a_pattern_has_files_only(tree: Path) -> None:
    found = find([str(tree / "*" / "vm*"), str(tree / "**" / "kdump"), str(tree / "*.none")])
    assert names(found.targets, tree) == ["a/vmcore", "a/vmlinux", "b/kdump", "*.none"]


def test_lines_are_words_and_each_path_is_once(tree: Path) -> None:
    core = str(tree / "a" / "vmcore")
    lines = [f"{core}\n", "\n", f"{tree}/a/../a/vmcore\n", "sample\n", "x" * 10_000]
    found = find(["-", core, "sample"], lines)
    assert found.targets == [core, "sample", os.path.abspath("x" * 4096)]


def test_lines_of_other_systems_have_blanks_around(tree: Path) -> None:
    core = str(tree / "a" / "vmcore")
    (tree / " blank ").write_bytes(CORE)
    found = find(["-"], [f"  {core}\r\n", "sample\r\n", "\r\n", f"{tree}/ blank \n"])
    assert found.targets == [core, "sample", f"{tree}/ blank "]


@pytest.mark.parametrize(
    ("name", "data", "is_target"),
    [
        ("vmcore", b"", True),
        ("vmcore-incomplete", b"\xff" * 64, True),
        ("vmcore", bytes(64), True),
        ("core.77", b"\x01garbage", True),
        ("dump.202601311200", b"", True),
        ("kdump.1", b"", True),
        ("x.capsule", b"", True),
        ("vmcore-dmesg.txt", b"", False),
        ("vmcore-dmesg", b"[    0.000000] Linux version 6.1\n", False),
        ("kexec-dmesg.log", b"", False),
        ("kdump_lock", b"", False),
        ("kdump.conf", b"path /var/crash\n", False),
        ("core.so", CORE[:16] + b"\x03\0" + CORE[18:], False),
        ("notes", b"\xff" * 64, False),
    ],
)
def test_a_damaged_file_is_a_target_if_it_is_named_like_one(
    name: str, data: bytes, is_target: bool, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(data)
    found = find([str(tmp_path)])
    assert (found.targets == [str(tmp_path / name)], found.others) == (is_target, not is_target)


def test_a_directory_without_permission_is_named() -> None:
    user, nobody = os.geteuid(), 65534
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        closed = Path(place, "closed")
        closed.mkdir(0)
        if user == 0:
            os.seteuid(nobody)  # root reads every directory
        try:
            found = find([place])
        finally:
            os.seteuid(user)
    assert list(found.unreadable) == [str(closed)]


@pytest.mark.parametrize(
    "word", ["/tmp/**kcensus-none", "/*/" + "x" * 300, "a\0b", "*\0", "\ud800"]
)
def test_a_word_that_no_file_can_have_is_a_target_that_does_not_exist(word: str) -> None:
    assert find([word]).targets == [os.path.abspath(word)]


def test_a_pattern_may_begin_with_more_slashes(tree: Path) -> None:
    assert names(find([f"//{tree}/b/kd*"]).targets, tree) == ["b/kdump"]


def test_empty_text_is_not_this_directory() -> None:
    with pytest.raises(FleetError, match="empty"):
        find([""])


def test_lines_may_have_any_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"/none/\xff\n"), "utf-8"))
    assert find("-", run._lines()).targets == ["/none/\udcff"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "TARGETS are missing"),
        (["-"], "standard input has no line with a path"),
        (["."], "no vmcore, capsule or document in .; left out: 2 other files"),
        (["-", "."], "in . and standard input; left out: 2 other files"),
        (["x", "--workers", "2", "--scheduler", "tcp://a:1"], "--workers is for this machine"),
    ],
)
def test_a_run_without_targets_says_why(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("text")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert cli.main(["fleet", "run", *words, "--store", "store"]) == Exit.USAGE
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "store").exists()


def test_a_directory_with_other_files_is_no_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("text")
    assert cli.main(["fleet", "run", "sample", "--store", str(tmp_path)]) == Exit.TARGET
    assert "has files, and is no store of a fleet" in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


def test_a_store_may_hold_other_files_and_be_left_early(tmp_path: Path) -> None:
    store = made(tmp_path, [])
    (store / "report.html").write_text("page")
    made(store, [Target("1")])
    (tmp_path / "early" / "targets").mkdir(parents=True)
    made(tmp_path / "early", [Target("1")])


def test_a_known_target_without_a_report_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Threads(1) as threads:  # one nurse for both runs: it takes a second to start
        monkeypatch.setattr("kcensus.fleets.executors.Threads", lambda _: nullcontext(threads))
        _known_target_without_a_report(tmp_path, capsys)


def _known_target_without_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "vmcore").write_bytes(b"\xff" * 64)
    words = ["fleet", "run", str(tmp_path / "vmcore"), "--store", str(tmp_path / "store")]
    assert cli.main(words) == Exit.INCOMPLETE
    reasons = [line for line in capsys.readouterr().err.splitlines() if "the causes" not in line]
    assert [line.split(": ")[:2] for line in reasons] == [["kcensus", f"{tmp_path}/vmcore"]]
    cli.main(words)
    out, err = capsys.readouterr()
    assert "1 known (of the known ones 1 without a report)" in out
    assert f"`kcensus fleet report {tmp_path}/store`" in err


def test_a_reason_is_short_and_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = Tally(reasons={"/a\x1b": "/a\\x1b: slab: " + "x" * 9000})
    monkeypatch.setattr("kcensus.fleets.run.fleet", lambda *_, **__: tally)
    cli.main(["fleet", "run", "sample", "--store", str(tmp_path / "store")])
    line = capsys.readouterr().err.splitlines()[0]
    assert line.startswith("kcensus: /a\\x1b: slab: xxx")
    assert len(line) < 400


def test_workers_ask_for_this_machine_whatever_the_environment_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "nowhere")
    monkeypatch.setattr("kcensus.fleets.run.fleet", lambda *_, **__: Tally())
    words = ["fleet", "run", "sample", "--store", str(tmp_path / "store")]
    assert cli.main([*words, "--workers", "1"]) == Exit.DONE
    assert cli.main(words) == Exit.TARGET
    assert "'nowhere'" in capsys.readouterr().err


def test_an_interrupt_says_that_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kcensus.fleets.run.fleet", interrupted)
    words = ["fleet", "run", "sample", "--store", str(tmp_path / "store")]
    assert cli.main(words) == Exit.INTERRUPTED
    assert "the same command goes on" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["missing", "notes.txt", "empty", "folder"])
def test_places_without_debug_info_of_any_kernel_are_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("no debug info\n" * 100)
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    words = ["fleet", "run", "sample", "--store", str(tmp_path / "store"), "-s"]
    assert cli.main([*words, str(tmp_path / name)]) == Exit.TARGET
    (sentence,) = capsys.readouterr().err.splitlines()
    assert f"-s {tmp_path / name}: " in sentence
    assert not (tmp_path / "store").exists()


def test_places_of_other_kernels_and_those_of_workers_alone_are_taken(tmp_path: Path) -> None:
    (tmp_path / "vmlinux").write_bytes(CORE[:16] + b"\x02\0" + CORE[18:])
    (tmp_path / "x.btf").touch()
    places = [tmp_path / "vmlinux", tmp_path / "x.btf", tmp_path]
    assert check_symbols(places, is_remote=False) == [*map(str, places)]
    assert check_symbols([tmp_path / "missing"], is_remote=True) == [str(tmp_path / "missing")]
    (tmp_path / "notes").write_text("no debug info\n")
    with pytest.raises(TargetError):
        check_symbols([tmp_path / "notes"], is_remote=True)
