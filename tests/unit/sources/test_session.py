# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel that is open already takes the place of the running one."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest

from kcensus.cli import main
from kcensus.commands import Exit
from kcensus.sources import TargetError, open_target
from kcensus.sources.model import Request, Target
from kcensus.sources.opened import adopt, remember
from kcensus.sources.session import is_open, session
from tests.unit.fakekernel import FakeKernel


def _sample(request: Request) -> Target:
    return open_target("sample", request.symbols)


@pytest.mark.slow
def test_a_session_is_the_target_of_a_command_without_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with session(_sample):
        assert open_target(None).name == open_target("session").name == "sample"
        for words in (["slab"], ["slab", "session"]):
            assert main([*words, "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["target"] == "sample"
        assert main(["session", "--json"]) == 0
        assert "slab" in json.loads(capsys.readouterr().out)["analyses"]
    assert not is_open()


@pytest.mark.slow
def test_patches_are_those_of_the_session(capsys: pytest.CaptureFixture[str]) -> None:
    def document(*words: str) -> dict[str, object]:
        assert main(["patches", *words, "--json"]) == 0
        found: dict[str, object] = json.loads(capsys.readouterr().out)
        return found

    with session(_sample):
        assert document() == document("sample")
    assert document()["target"] == "the catalogue"


@pytest.mark.slow
def test_a_session_takes_the_place_of_a_target_that_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["slab", "sample", "--json", "monday.json"]) == 0
    with session(_sample):
        assert main(["diff", "monday.json", "--analyses", "slab"]) == 0
        with mock.patch("kcensus.capsule.create", side_effect=TargetError("asked")) as create:
            assert main(["capsule", "create", "case.capsule"]) == Exit.TARGET
    assert (create.call_args.args[0].name, create.call_args.args[1]) == (
        "sample",
        Path("case.capsule"),
    )
    capsys.readouterr()
    for words, missing in (
        (["diff", "monday.json"], "AFTER"),
        (["capsule", "create", "sample"], "OUT"),
    ):
        assert main(words) == Exit.USAGE
        assert f"Missing argument '{missing}'" in capsys.readouterr().err


def test_a_capsule_does_not_replace_the_dump_that_is_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = tmp_path / "vmcore"
    dump.write_bytes(b"dump")
    with session(_sample, paths=[str(dump)]):
        for words in (["session", str(dump), "--force"], [str(dump), "--force"], [str(dump)]):
            assert main(["capsule", "create", *words]) == Exit.USAGE
            assert "is the dump that is open here" in capsys.readouterr().err
    assert dump.read_bytes() == b"dump"


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("slab", "slab [OPTIONS]"),
        ("report", "report [OPTIONS]"),
        ("diff", "diff [OPTIONS] BEFORE [AFTER]"),
        ("capsule create", "capsule create [OPTIONS] OUT"),
    ],
)
def test_help_in_a_session_does_without_a_target(
    command: str, usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def text() -> str:
        assert main([*command.split(), "--help"]) == 0
        return capsys.readouterr().out

    before = text()
    with session(_sample):
        first, *lines = text().splitlines()
    assert first == f"Usage: kcensus {usage}"
    examples = lines[next(i for i, line in enumerate(lines) if "Examples" in line) + 1 :]
    assert len(examples) >= 4
    assert not {"vmcore", "sudo", "vmlinux"} & {word for line in examples for word in line.split()}
    assert text() == before
    assert " vmcore" in before


def test_the_innermost_session_counts_and_ends_with_its_block() -> None:
    def refuse(request: Request) -> Target:
        raise TargetError("the session has ended")

    with session(refuse):
        with session(_sample):
            assert open_target(None).name == "sample"
        with pytest.raises(TargetError, match="has ended"):
            open_target(None)


def test_without_a_session_the_word_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TargetError, match="session: no such file"):
        open_target("session")


def test_options_of_a_command_are_not_those_of_the_next(tmp_path: Path) -> None:
    opened = open_target("sample", [tmp_path])
    with session(lambda request: opened):
        target = open_target(None, allow_truncated=True)
        assert target.words == "--allow-truncated"
        assert open_target(None).words == ""
        assert open_target("sample").words == "sample"
    assert opened.words == f"sample -s {tmp_path}"


def test_symbols_of_a_command_are_used_where_the_target_is_known(tmp_path: Path) -> None:
    prog = FakeKernel().prog
    known = Target(prog, "x", "vmcore", "ELF", live=False, kernel="6.1")
    remember(known)
    assert adopt(prog) is known
    (tmp_path / "text").write_text("no debug info")
    with pytest.raises(TargetError, match="not an ELF file with debug info"):
        adopt(prog, (tmp_path / "text",))
    assert adopt(prog) is known
