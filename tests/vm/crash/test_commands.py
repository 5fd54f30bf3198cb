# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every command of kcensus inside crash gives what it gives on its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kcensus.analyses import analyses
from tests.lab import Dump, build
from tests.vm.crash.session import Session

_SHORT = {
    "listlru": "list-lru",
    "kcopyd": "kcopyd",
    "memcgs": "memcgs",
    "negdent": "dentries",
    "slabutil": "slab",
    "kpatches": "patches",
}
"""Commands of crash, and what they are of kcensus."""

_DOCUMENTS = {
    **{name: f"{name} TARGET" for name in (*analyses(), "report", "patches")},
    "few": "dentries TARGET --only super_blocks,directories --limit 3",
    "what-if": "list-lru --what-if nodes=2,memcgs=10000,mounts=10000",
    "growth": "list-lru TARGET --before kmalloc-32=2816",
    "no-prices": "patches TARGET --no-prices",
    "chunks": "slab TARGET --chunk-size 64K",
    "jobs": "slab TARGET --jobs 2",
    "diff": "diff OTHER TARGET --analyses slab,dentries",
    "validate": "validate list-lru-memory TARGET OTHER",
    "patch": "patches show list-lru-memory",
}
"""Commands that write JSON."""

_TEXTS = {
    "top": "slab TARGET --top 3",
    "table": "slab TARGET --table kmalloc",
    "all": "list-lru TARGET --all",
    "full": "report TARGET --full",
    "columns": "memcgs --help-tables",
    "term": "explain slab-waste",
}

_BY_NAME = {"diff", "validate"}
"""Commands that need the name of the session; with others, it may be left out."""

_OTHERS = (
    "kcensus slab --json file.json --csv csv --html slab.html",
    "kcensus capsule create session slab.capsule --analyses slab",
    "kcensus doctor --json > doctor.json",
    "kcensus slab | head -n 3 > head.txt",
    "kcensus slab > slab.txt",
    "kcensus slab >> slab.txt",
    "help kcensus > help.txt",
)


@pytest.fixture(scope="module")
def other(dump: Dump) -> Path:
    """Another dump of the same kernel, for what takes two."""
    return build(dump.kernel, "one").formats["elf"]


@pytest.fixture(scope="module")
def environment(dump: Dump) -> dict[str, str]:
    """What finds the debug info of the modules, and of both kernels outside crash."""
    return {"KCENSUS_SYMBOLS": f"{dump.vmlinux}:{dump.vmlinux.parent / 'debug'}"}


def _words(command: str, target: str, other: Path) -> list[str]:
    """Return the words of a command; without the target where its name is empty."""
    names = {"TARGET": target, "OTHER": str(other)}
    return [word for word in (names.get(word, word) for word in command.split()) if word]


def _typed(command: str, other: Path) -> str:
    """Return a command as it is typed into crash."""
    target = "session" if command.split()[0] in _BY_NAME else ""
    return " ".join(["kcensus", *_words(command, target, other)])


def _direct(path: Path, words: Sequence[str], environment: dict[str, str]) -> str:
    """Run kcensus without crash, and return what it wrote without the name of the dump."""
    done = subprocess.run(
        [sys.executable, "-m", "kcensus", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.stdout.replace(str(path), "TARGET")


@pytest.fixture(scope="module")
def outputs(
    session: Session,
    other: Path,
    environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A directory with what commands in one session of crash wrote: a file for each of them."""
    directory = tmp_path_factory.mktemp("session")
    commands = [
        *(f"{_typed(words, other)} --json > {key}.json" for key, words in _DOCUMENTS.items()),
        *(f"{_typed(words, other)} > {key}.txt" for key, words in _TEXTS.items()),
        *(f"{name} --json > short-{name}.json" for name in _SHORT),
        *_OTHERS,
    ]
    (directory / "printed").write_text(session.script(commands, directory, environment=environment))
    return directory


def _text(session: Session, path: Path) -> str:
    """Return what was written in crash, without the name of the dump."""
    return path.read_text().replace(session.name, "TARGET")


def _document(session: Session, path: Path) -> Any:
    return json.loads(_text(session, path))


@pytest.mark.parametrize("key", _DOCUMENTS)
def test_documents(
    key: str, session: Session, other: Path, environment: dict[str, str], outputs: Path
) -> None:
    words = _words(_DOCUMENTS[key], session.name, other)
    expected = json.loads(_direct(Path(session.name), [*words, "--json"], environment))
    assert _document(session, outputs / f"{key}.json") == expected


@pytest.mark.parametrize("key", _TEXTS)
def test_texts(
    key: str, session: Session, other: Path, environment: dict[str, str], outputs: Path
) -> None:
    words = _words(_TEXTS[key], session.name, other)
    assert _text(session, outputs / f"{key}.txt") == _direct(Path(session.name), words, environment)


@pytest.mark.parametrize("name", _SHORT)
def test_short_commands(name: str, outputs: Path) -> None:
    short, long = outputs / f"short-{name}.json", outputs / f"{_SHORT[name]}.json"
    assert short.read_bytes() == long.read_bytes()


def test_files(outputs: Path) -> None:
    assert (outputs / "file.json").read_bytes() == (outputs / "slab.json").read_bytes()
    tables = json.loads((outputs / "slab.json").read_text())["tables"]
    written = {path.stem for path in (outputs / "csv").glob("*.csv")}
    assert set(tables) <= written
    assert "<html" in (outputs / "slab.html").read_text()


def test_redirection_and_pipes(outputs: Path) -> None:
    text = (outputs / "slab.txt").read_text()
    half = len(text) // 2
    assert text[:half] == text[half:]
    lines = text[:half].splitlines()
    assert (outputs / "head.txt").read_text().splitlines() == lines[:3]
    assert "\x1b" not in text


def test_capsule(session: Session, environment: dict[str, str], outputs: Path, dump: Dump) -> None:
    path = outputs / "slab.capsule"
    replayed = json.loads(_direct(path, ["slab", str(path), "--json"], environment))
    assert replayed == _document(session, outputs / "slab.json")


def test_doctor(outputs: Path, dump: Dump) -> None:
    document = json.loads((outputs / "doctor.json").read_text())
    assert document["kernel"] == dump.release
    assert document["findings"] == []


def test_help(outputs: Path) -> None:
    text = (outputs / "help.txt").read_text()
    assert {"NAME", "SYNOPSIS", "DESCRIPTION", "EXAMPLES"} <= set(text.split())
    for name in analyses():
        assert name in text


def test_nothing_else_is_printed(outputs: Path) -> None:
    """Scripts with -s print what their commands print, and errors of crash itself."""
    printed = (outputs / "printed").read_text()
    assert "kcensus:" not in printed
    assert "Traceback" not in printed


def test_module_objects_of_crash(
    session: Session, environment: dict[str, str], dump: Dump, tmp_path: Path
) -> None:
    """``mod -S`` is enough for analyses that need the debug info of modules."""
    commands = [f"mod -S {dump.vmlinux.parent / 'debug'} > mod.txt", "kcopyd --json > kcopyd.json"]
    session.script(commands, tmp_path)
    words = ["kcopyd", session.name, "--json"]
    expected = json.loads(_direct(Path(session.name), words, environment))
    assert expected["summary"]["jobs"] > 0
    assert _document(session, tmp_path / "kcopyd.json") == expected
