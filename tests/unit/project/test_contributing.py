# SPDX-License-Identifier: LGPL-2.1-or-later
"""The examples of CONTRIBUTING.md work as they are printed."""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
OWN = 'lint.isort.known-first-party = ["kcensus", "tests"]'
ANALYSES = "drgn_scripts/kcensus/analyses/"
FINDERS = "drgn_scripts/kcensus/kernel/waiting/finders/locks/"

FILE = re.compile(r"^`([\w/]+\.(?:py|toml))`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SESSION = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# What a new folder in the checkout would be: on the path of the analyses.
PLACED = "import sys, kcensus.analyses; kcensus.analyses.__path__.append(sys.argv.pop(1)); "

PLACED_FINDER = PLACED.replace("kcensus.analyses", "kcensus.kernel.waiting.finders.locks")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("analyses")
    _write(made, ANALYSES)
    names = sorted(path.name for path in made.glob("filesystems/*"))
    assert names == ["__init__.py", "explain.toml", "run.py"]
    return made


def _write(folder: Path, under: str) -> None:
    for name, text in FILE.findall(CONTRIBUTING):
        if name.startswith(under):
            path = folder / name.removeprefix(under)
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)


@pytest.fixture(scope="module")
def finder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("finders")
    for under in (FINDERS, "tests/unit/kernel/waiting/finders/locks/"):
        _write(made, under)
    assert {path.name for path in made.iterdir()} == {"turnstiles.py", "test_turnstiles.py"}
    return made


def python(code: str, folder: Path, *arguments: str, placed: str = PLACED) -> str:
    """Return what Python prints that has the analyses of ``folder``, too."""
    command = [sys.executable, "-c", placed + code, str(folder), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def kcensus(folder: Path, *arguments: str) -> str:
    return python("from kcensus import cli; sys.exit(cli.main())", folder, *arguments)


@pytest.mark.slow
def test_the_example_is_a_command(folder: Path) -> None:
    document = json.loads(kcensus(folder, "filesystems", "sample", "--json"))
    types = {row["type"]: row["super_blocks"] for row in document["tables"]["types"]}
    assert sum(types.values()) == document["summary"]["super_blocks"] > len(types) > 10
    assert types["xfs"] == 1
    assert [check["status"] for check in document["checks"]] == ["agree"]
    assert [gap["what"] for gap in document["gaps"]] == ["capsule without this analysis"]


def test_the_example_is_in_the_help(folder: Path) -> None:
    assert "\n  filesystems " in kcensus(folder, "--help")
    assert kcensus(folder, "filesystems", "--help").startswith("Usage: kcensus filesystems")


@pytest.mark.slow
def test_the_example_is_a_function(folder: Path) -> None:
    code = (
        "import kcensus; result = kcensus.filesystems(kcensus.open_target('sample')); "
        "print(*result.summary, *result.tables)"
    )
    assert python(code, folder).split() == ["super_blocks", "read_only", "types"]


@pytest.mark.slow
def test_the_finder_passes_its_test(finder: Path) -> None:
    test = str(finder / "test_turnstiles.py")
    run = "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    options = "-q", "-p", "no:cacheprovider", "--import-mode=importlib", f"--rootdir={ROOT}"
    assert "2 passed" in python(run, finder, test, *options, placed=PLACED_FINDER)


@pytest.mark.slow
def test_the_finder_is_found_and_has_no_gap_elsewhere(finder: Path) -> None:
    code = (
        "import kcensus; result = kcensus.waits(kcensus.open_target('sample-waits')); "
        "from kcensus.kernel.waiting.finders import finders; "
        "print('Turnstiles' in {each.__name__ for each in finders()}, len(result.gaps))"
    )
    with_it = python(code, finder, placed=PLACED_FINDER).split()
    without = python(code, finder).split()
    assert (with_it[0], without[0], with_it[1]) == ("True", "False", without[1])


def test_the_examples_are_formatted_and_clean(folder: Path, finder: Path) -> None:
    for command in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--no-cache", "--config", OWN]
        ruff += ["--config", str(ROOT / "pyproject.toml"), str(folder), str(finder)]
        done = subprocess.run(ruff, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_examples_have_types(folder: Path, finder: Path, tmp_path: Path) -> None:
    files = [folder / "filesystems" / "run.py", finder / "turnstiles.py"]
    mypy = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), *map(str, files)]
    done = subprocess.run(mypy, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_sessions() -> None:
    source = "\n".join(SESSION.findall(CONTRIBUTING))
    session = doctest.DocTestParser().get_doctest(source, {}, "CONTRIBUTING.md", None, 0)
    outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(session)
    assert outcome.failed == 0
    assert outcome.attempted > 5


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "CHANGELOG.md"])
def test_relative_links_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", (ROOT / name).read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
