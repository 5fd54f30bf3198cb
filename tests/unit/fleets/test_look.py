# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from kcensus.fleets import look
from kcensus.fleets.apart import Job
from kcensus.fleets.look import Content, Looked
from kcensus.sources import TargetError
from kcensus.sources.formats.coverage import Coverage
from kcensus.sources.model import MissingDebugInfo


def content(path: Path, **known: Any) -> Content:
    return msgspec.msgpack.decode(
        look.content(Job(str(path), "content", "a", 1.0, 1, **known)), type=Content
    )


def looked(path: str, monkeypatch: pytest.MonkeyPatch, error: Exception) -> dict[str, Any]:
    def failing(*_: Any) -> None:
        raise error

    monkeypatch.setattr(look, "open_target", failing)
    answer = look.look(Job(path, "report", "a", 1.0, 1 << 40))
    return msgspec.msgpack.decode(answer, type=Looked).facts


def test_the_digest_is_that_of_all_bytes(tmp_path: Path) -> None:
    data = bytes(range(256)) * 8192
    (tmp_path / "x").write_bytes(data)
    made = content(tmp_path / "x")
    assert made.sha256 == hashlib.sha256(data).hexdigest()
    assert (made.digest, made.size_bytes, made.error) == ("whole", len(data), "")


def test_a_large_file_is_sampled_and_a_change_in_size_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "_WHOLE", 1 << 20)
    monkeypatch.setattr(look, "_BLOCK", 1 << 10)
    digests = set()
    for size in (3 << 20, (3 << 20) + 1):
        with (tmp_path / "x").open("wb") as file:
            file.truncate(size)
        made = content(tmp_path / "x")
        assert made.digest == "sampled"
        digests.add(made.sha256)
    assert len(digests) == 2


def test_an_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    first = content(tmp_path / "x")
    known = first.size_bytes, first.modified_ns, "digest of before", "whole"
    assert content(tmp_path / "x", known=known).sha256 == "digest of before"
    (tmp_path / "x").write_bytes(b"abcd")
    assert content(tmp_path / "x", known=known).sha256 == hashlib.sha256(b"abcd").hexdigest()


def test_a_file_that_cannot_be_read_has_a_reason(tmp_path: Path) -> None:
    assert "no such file" in content(tmp_path / "missing").error


def test_a_file_that_goes_away_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_: object) -> None:
        raise FileNotFoundError

    (tmp_path / "x").write_bytes(b"abc")
    monkeypatch.setattr(look, "FileReader", gone)
    assert "no such file" in content(tmp_path / "x").error


def test_a_place_that_came_by_the_option_is_named_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: str) -> None:
        raise TargetError(f"{os.environ['KCENSUS_SYMBOLS']}; KCENSUS_SYMBOLS /a: x")

    monkeypatch.setattr(look, "open_target", failing)
    monkeypatch.setenv("KCENSUS_SYMBOLS", "")
    answer = look.look(Job("sample", "report", "a", 1.0, 1 << 40, symbols=("/a",)))
    assert msgspec.msgpack.decode(answer, type=Looked).facts["error"] == "/a:; -s /a: x"


def test_without_types_the_rungs_that_were_tried_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = looked(str(tmp_path), monkeypatch, MissingDebugInfo("no debug info", "ab12"))
    assert facts["step"] == "types"
    assert (facts["types"], facts["build_id"]) == ("totals only", "ab12")
    assert facts["tried"] == "DWARF, type pack, BTF"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TargetError("x: is empty"), "x: is empty"),
        (MemoryError(), "--max-memory"),
        (RuntimeError("odd"), "RuntimeError: odd"),
    ],
)
def test_an_error_is_a_row(error: Exception, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = looked("/nowhere", monkeypatch, error)
    step = "killed" if isinstance(error, MemoryError) else "open"
    assert (facts["state"], facts["step"]) == ("failed", step)
    assert words in facts["error"]


def test_more_memory_than_a_column_holds_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    header = SimpleNamespace(format="ELF")
    monkeypatch.setattr(look, "open_dump", lambda *_: ({}, header))
    monkeypatch.setattr(look, "sniff", lambda *_, **__: None)
    monkeypatch.setattr(look, "kernel_release", lambda _: "6.1")
    monkeypatch.setattr(look, "coverage", lambda _: Coverage(0, 1 << 70, ""))
    facts = looked("/nowhere", monkeypatch, MissingDebugInfo("no debug info", "ab12"))
    assert facts["release"] == "6.1"
    assert facts["ram_bytes"] is None
