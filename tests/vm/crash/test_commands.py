# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every command of kcensus inside crash gives what it gives on its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kcensus import cli
from kcensus.analyses import ALIASES, analyses
from kcensus.commands import commands
from tests.lab import Dump, build
from tests.vm.crash.conftest import RELEASES
from tests.vm.crash.session import Session

# The other faces of crash are tested on ELF, and reports on 5.10; --all adds both here.
pytestmark = pytest.mark.usually("kdump-lzo 6.1")

_SHORT = {**{name: name for name in (*analyses(), "patches")}, **ALIASES}
"""Commands of crash, and what they are of kcensus."""

_DOCUMENTS = {
    **{name: f"{name} TARGET" for name in (*analyses(), "report", "patches")},
    "few": "dentries TARGET --only super_blocks,directories --limit 3",
    "what-if": "list-lru --what-if nodes=2,memcgs=10000,mounts=10000",
    "growth": "list-lru TARGET --before kmalloc-32=2816",
    "jobs": "slab TARGET --jobs 2",
    "diff": "diff OTHER TARGET --analyses slab,dentries",
    "validate": "validate list-lru-memory BEFORE AFTER",
    "patch": "patches show list-lru-memory",
}
"""Commands that write JSON."""

_IN_REPORT = {*analyses(), "patches", "growth", "few"} - {"slab", "waits"}
"""Documents that the one of the report has in itself, and options like those of others."""

_TEXTS = {
    "table": "slab TARGET --table kmalloc",
    "report-text": "report TARGET",
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
    "kcensus --help > commands.txt",
)


@dataclass(frozen=True)
class Case:
    """A session, and what its commands need besides."""

    session: Session
    dump: Dump

    @property
    def modules(self) -> Path:
        return self.dump.vmlinux.parent / "debug"

    def environment(self) -> dict[str, str]:
        """Return what finds the debug info of all kernels and modules."""
        kernels = [build(release, "mixed").vmlinux for release in RELEASES]
        symbols = [*kernels, self.modules]
        return {"KCENSUS_SYMBOLS": ":".join(map(str, symbols))}

    def words(self, command: str, target: str) -> list[str]:
        """Return the words of a command; without the target where its name is empty."""
        mixed = {
            name: target if release == self.dump.kernel else build(release, "mixed").formats["elf"]
            for name, release in zip(("BEFORE", "AFTER"), RELEASES, strict=True)
        }
        other = build(self.dump.kernel, "one").formats["elf"]
        names = {"TARGET": target, "OTHER": other, **mixed}
        return [str(names.get(word, word)) for word in command.split() if names.get(word, word)]

    def typed(self, command: str) -> str:
        target = "session" if command.split()[0] in _BY_NAME else ""
        return " ".join(["kcensus", *self.words(command, target)])

    def text(self, path: Path) -> str:
        """Return the words that were written, without the name of the dump.

        Commands to paste in crash have none, so that their lines end elsewhere.
        """
        text = path.read_text().replace(self.session.name, "TARGET")
        return " ".join(re.sub(r"(`kcensus [\w -]+) TARGET\b", r"\1", text).split())

    def document(self, path: Path) -> Any:
        return json.loads(path.read_text().replace(self.session.name, "TARGET"))


@pytest.fixture(scope="module")
def case(session: Session, dump: Dump) -> Case:
    return Case(session, dump)


@pytest.fixture
def direct(
    case: Case, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """Runs a command without crash; returns what it prints, without the name of the dump."""

    def run(command: str) -> str:
        for name, value in case.environment().items():
            monkeypatch.setenv(name, value)
        cli.main(case.words(command, case.session.name))
        captured = capsys.readouterr()
        assert captured.out, captured.err
        return captured.out.replace(case.session.name, "TARGET")

    return run


@pytest.fixture(scope="module")
def outputs(
    case: Case, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Path:
    """A directory with what commands in one session of crash wrote: a file for each of them."""
    directory = tmp_path_factory.mktemp("session")
    wanted = {*_DOCUMENTS} - (set() if request.config.getoption("--all") else _IN_REPORT)
    commands = [
        *(
            f"{case.typed(words)} --json > {key}.json"
            for key, words in _DOCUMENTS.items()
            if key not in _SHORT.values() and key in wanted
        ),
        *(f"{case.typed(words)} > {key}.txt" for key, words in _TEXTS.items()),
        *(f"{short} --json > {name}.json" for short, name in _SHORT.items() if name in wanted),
        *_OTHERS,
    ]
    printed = case.session.script(commands, directory, environment=case.environment())
    (directory / "printed").write_text(printed)
    return directory


@pytest.mark.parametrize(
    "key",
    [pytest.param(key, marks=[pytest.mark.usually] * (key in _IN_REPORT)) for key in _DOCUMENTS],
)
def test_documents(key: str, case: Case, direct: Callable[[str], str], outputs: Path) -> None:
    expected = json.loads(direct(f"{_DOCUMENTS[key]} --json"))
    assert case.document(outputs / f"{key}.json") == expected


@pytest.mark.parametrize("key", _TEXTS)
def test_texts(key: str, case: Case, outputs: Path) -> None:
    # In a process of its own: the width of text depends on what stdout is.
    expected = outputs / f"{key}.expected.txt"
    environment = {**os.environ, **case.environment()}
    environment.pop("COLUMNS", None)
    command = [sys.executable, "-m", "kcensus", *case.words(_TEXTS[key], case.session.name)]
    with expected.open("w") as file:
        subprocess.run(command, stdout=file, env=environment, check=True)
    assert case.text(outputs / f"{key}.txt") == case.text(expected)


def test_files(outputs: Path) -> None:
    assert (outputs / "file.json").read_bytes() == (outputs / "slab.json").read_bytes()
    tables = json.loads((outputs / "slab.json").read_text())["tables"]
    assert {*tables} <= {path.stem for path in (outputs / "csv").glob("*.csv")}
    assert "<html" in (outputs / "slab.html").read_text()


def test_redirection_and_pipes(outputs: Path) -> None:
    text = (outputs / "slab.txt").read_text()
    half = len(text) // 2
    assert text[:half] == text[half:]
    lines = text[:half].splitlines()
    assert (outputs / "head.txt").read_text().splitlines() == lines[:3]
    assert "\x1b" not in text


def test_capsule(case: Case, direct: Callable[[str], str], outputs: Path) -> None:
    replayed = json.loads(direct(f"slab {outputs / 'slab.capsule'} --json"))
    recorded = case.document(outputs / "slab.json")
    assert replayed | {"target": ""} == recorded | {"target": ""}


def test_doctor(case: Case, outputs: Path) -> None:
    document = json.loads((outputs / "doctor.json").read_text())
    assert document["kernel"] == case.dump.release
    assert document["findings"] == []


def test_help(outputs: Path) -> None:
    page = (outputs / "help.txt").read_text()
    assert {"NAME", "SYNOPSIS", "DESCRIPTION", "EXAMPLES"} <= {*page.split()}
    assert all(f'{short} is "kcensus {name}"' in page for short, name in _SHORT.items())
    listed = (outputs / "commands.txt").read_text().split()
    assert {*analyses(), *commands()} <= {*listed}


def test_nothing_else_is_printed(outputs: Path) -> None:
    printed = (outputs / "printed").read_text()
    assert "kcensus:" not in printed
    assert "Traceback" not in printed


def test_module_objects_of_crash(case: Case, direct: Callable[[str], str], tmp_path: Path) -> None:
    """``mod -S`` is enough for analyses that need the debug info of modules."""
    commands = [f"mod -S {case.modules} > mod.txt", "kcopyd --json > kcopyd.json"]
    case.session.script(commands, tmp_path)
    expected = json.loads(direct("kcopyd TARGET --json"))
    assert expected["summary"]["jobs"] > 0
    assert case.document(tmp_path / "kcopyd.json") == expected
