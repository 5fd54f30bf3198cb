# SPDX-License-Identifier: LGPL-2.1-or-later
"""The examples of CONTRIBUTING.md and README.md work as they are printed."""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.project.test_layers import LAYERS

ROOT = Path(__file__).parents[3]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
ANALYSES = "drgn_scripts/kcensus/analyses/"

FILE = re.compile(rf"^`{ANALYSES}([\w/]+\.py)`:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SESSION = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# What a new folder in the checkout would be: on the path of the analyses.
PLACED = "import sys, kcensus.analyses; kcensus.analyses.__path__.append(sys.argv.pop(1)); "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example analysis in it."""
    made = tmp_path_factory.mktemp("analyses")
    for name, text in FILE.findall(CONTRIBUTING):
        path = made / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert {path.name for path in made.glob("filesystems/*")} == {"__init__.py", "run.py"}
    return made


def python(code: str, folder: Path, *arguments: str) -> str:
    """Return what Python prints that has the analyses of ``folder``, too."""
    done = subprocess.run(
        [sys.executable, "-c", PLACED + code, folder, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def kcensus(folder: Path, *arguments: str) -> str:
    return python("from kcensus import cli; sys.exit(cli.main())", folder, *arguments)


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


def test_the_example_is_a_function(folder: Path) -> None:
    code = (
        "import kcensus; result = kcensus.filesystems(kcensus.open_target('sample')); "
        "print(*result.summary, *result.tables)"
    )
    assert python(code, folder).split() == ["super_blocks", "read_only", "types"]


def test_the_example_is_formatted_and_clean(folder: Path) -> None:
    for command in (["check"], ["format", "--check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--no-cache"]
        done = subprocess.run(
            [*ruff, "--config", ROOT / "pyproject.toml", folder], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "README.md"])
def test_sessions(name: str) -> None:
    source = "\n".join(SESSION.findall((ROOT / name).read_text()))
    session = doctest.DocTestParser().get_doctest(source, {}, name, name, 0)
    outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(session)
    assert outcome.failed == 0
    assert outcome.attempted > 5


def test_layers_are_described_in_their_order() -> None:
    section = CONTRIBUTING.partition("## Layers")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == LAYERS


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "CHANGELOG.md", "README.md"])
def test_relative_links_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", (ROOT / name).read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
