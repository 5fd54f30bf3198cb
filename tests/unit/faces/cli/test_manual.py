# SPDX-License-Identifier: LGPL-2.1-or-later
"""Man pages say what help says, and packages bring completion where shells look for it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kcensus import analyses, cli, commands
from kcensus.commands.shared import manual
from tests.unit.faces.cli import Capture


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("share")
    written = manual.write(directory, cli.kcensus, "1.2.3")
    assert {*written} == {path for path in directory.rglob("*") if path.is_file()}
    return directory


def words(page: Path) -> str:
    """Return the text of a page in which escapes are undone."""
    text = page.read_text("utf-8").replace("\\-", "-").replace("\\fB", "").replace("\\fP", "")
    return text.replace("\\(aq", "'").replace("\\e", "\\")


def test_every_command_has_a_page(share: Path) -> None:
    names = {*analyses.analyses(), *commands.commands()}
    pages = {path.name for path in share.glob("man/man1/*")}
    assert pages == {"kcensus.1", *(f"kcensus-{name}.1" for name in names)}


@pytest.mark.parametrize("name", ["slab", "fleet run", "report", "validate"])
def test_a_page_has_the_options_and_examples_of_help(
    name: str, share: Path, capsys: Capture
) -> None:
    assert cli.main([*name.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    page = words(share / f"man/man1/kcensus-{name.partition(' ')[0]}.1")
    options = re.findall(r"^  (?:-\w, )?(--[\w-]+)", shown, re.MULTILINE)
    examples = re.findall(r"^    ((?:sudo )?kcensus .*)$", shown, re.MULTILINE)
    assert len(options) > 5
    assert examples
    assert [each for each in options if f"{each}" not in page] == []
    assert [each for each in examples if each not in page] == []


def test_the_first_page_has_statuses_variables_and_all_commands(share: Path) -> None:
    page = words(share / "man/man1/kcensus.1")
    for heading in ("EXIT STATUS", "ENVIRONMENT", "TARGETS", "EXAMPLES", "ANALYSES", "COMMANDS"):
        assert f"\n.SH {heading}\n" in page
    for status in commands.Exit:
        if status <= commands.Exit.INCOMPLETE:
            assert f"\n.TP\n{status:d}\n" in page
    for name in (*analyses.analyses(), *commands.commands()):
        assert f"\n.TP\n{name}\n" in page
        assert f"\n.BR kcensus-{name} (1)" in page


def test_roff_has_no_problem_with_any_page(share: Path) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    pages = sorted(share.glob("man/man1/*"))
    command = ["groff", "-ww", "-Kutf8", "-man", "-Tutf8", "-z", *map(str, pages)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_text_has_no_meaning_for_roff() -> None:
    made = manual.Manual("kcensus x", "a 'b' \\c", "kcensus x", [".so /etc/passwd", "'ig"])
    page = manual.roff(made, [], "1")
    assert not re.search(r"^(\.so|'ig)", page, re.MULTILINE)
    assert "a \\(aqb\\(aq \\ec" in page


@pytest.mark.parametrize(
    ("place", "shell"),
    [
        ("bash-completion/completions/kcensus", "bash"),
        ("zsh/site-functions/_kcensus", "zsh"),
        ("fish/vendor_completions.d/kcensus.fish", "fish"),
    ],
)
def test_completion_is_where_shells_look(
    place: str, shell: str, share: Path, capsys: Capture
) -> None:
    assert cli.main(["completion", shell]) == 0
    assert (share / place).read_text("utf-8") == capsys.readouterr().out


def test_a_build_needs_click_only(tmp_path: Path) -> None:
    """The build of a wheel has no other package, apart from those of hatchling."""
    code = """
import sys, pathlib
before = {*sys.modules}
from kcensus.cli import kcensus
from kcensus.commands.shared import manual
manual.write(pathlib.Path(sys.argv[1]), kcensus, "1")
print(*{name.partition(".")[0] for name in {*sys.modules} - before} - {*sys.stdlib_module_names})
"""
    run = [sys.executable, "-c", code, str(tmp_path)]
    imported = subprocess.check_output(run, text=True).split()
    assert {*imported} <= {"click", "kcensus", "tomli"}
