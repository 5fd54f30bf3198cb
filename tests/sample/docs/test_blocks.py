# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every code block of README.md and docs/ is tried, by its language.

`./run docs --update` replaces outputs that changed.
"""

from __future__ import annotations

import doctest
import json
import re
import sys
from pathlib import Path

import click
import pytest
from _pytest.mark import ParameterSet
from drgn.cli import default_globals

import kcensus
from kcensus.sources import open_target
from tests.pages import ROOT, Block, blocks, pages, sessions
from tests.sample.docs import consoles, lines

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGES = pages()
BLOCKS = [block for page in PAGES for block in blocks(page)]
_UNTRIED = {"text", "yaml", "ini", "sql"}
_LONG = (
    *("docs/recipes.md", "docs/analyses/patches.md"),
    *("docs/cases/", "docs/howto/", "docs/manual/"),
)
"""Pages whose commands take seconds, together."""
_TRIED = {"console", "sh", "pycon", "python", "json", "toml"}


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def having(language: str) -> list[Path]:
    return list(dict.fromkeys(block.page for block in of(language)))


def test_every_block_has_a_language() -> None:
    known = _TRIED | _UNTRIED
    assert [f"{each}: {each.language!r}" for each in BLOCKS if each.language not in known] == []
    assert {"console", "sh", "pycon"} <= {each.language for each in BLOCKS}


def _page(page: Path) -> ParameterSet:
    marks = [pytest.mark.slow] if name(page).startswith(_LONG) else []
    return pytest.param(page, marks=marks, id=name(page))


@pytest.mark.parametrize("page", [_page(each) for each in having("console")])
def test_consoles(page: Path, tmp_path: Path) -> None:
    for block, done in consoles.run_page(page, tmp_path):
        for step, printed in done:
            if not consoles.matches(step.shown, printed):
                # As two texts, so that pytest shows their difference.
                assert f"$ {step.command}\n{step.shown}" == f"$ {step.command}\n{printed}\n", block


def test_commands_for_other_machines_are_commands() -> None:
    problems, count = [], 0
    for block in of("sh"):
        for words in lines.commands(block.text):
            count += 1
            try:
                lines.check(words)
            except click.ClickException as error:
                problems.append(f"{block}: kcensus {' '.join(words)}: {error.format_message()}")
    assert problems == []
    assert count > 50


@pytest.mark.parametrize(
    "words", [["slba", "vmcore"], ["slab", "--tabel", "x"], ["fleet", "rnu"], ["validate"]]
)
def test_a_wrong_command_is_found(words: list[str]) -> None:
    with pytest.raises(click.ClickException):
        lines.check(words)


def test_commands_are_found_in_lines() -> None:
    text = "sudo A=1 ~/k/bin/kcensus slab 'a b' >x  # kcensus c\ncat x | kcensus fleet run - <list"
    assert [*lines.commands(text)] == [["slab", "a b"], ["fleet", "run", "-"]]


@pytest.mark.slow
@pytest.mark.parametrize("page", having("pycon"), ids=name)
def test_sessions(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # As `kcensus shell sample` has them.
    names = default_globals(open_target("sample").prog) | {"kcensus": kcensus}
    session = doctest.DocTestParser().get_doctest(sessions(page), names, name(page), None, 0)
    outcome = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(session)
    assert outcome.failed == 0
    assert outcome.attempted > 0


def test_other_languages_parse() -> None:
    for block in of("python"):
        compile(block.text, str(block), "exec")
    for block in of("json"):
        json.loads(block.text)
    for block in of("toml"):
        tomllib.loads(block.text)


def test_the_readme_is_short() -> None:
    assert (ROOT / "README.md").read_text("utf-8").count("\n") <= 150


def test_links_between_pages_lead_somewhere() -> None:
    # Those inside of docs/ are checked by Sphinx, too, with their anchors.
    lost = [
        f"{name(page)}: {link}"
        for page in PAGES
        for link in re.findall(r"\]\((?![a-z]+:|#)([^)#\s]+)", page.read_text("utf-8"))
        if not (page.parent / link).exists() and "reference/" not in link
    ]
    assert lost == []


@pytest.mark.parametrize(
    ("shown", "is_shown"),
    [
        ("a\nb\nc\nd\n", True),
        ("a\n...\nd\n", True),
        ("...\nb\n...\n", True),
        ("a\n...\n", True),
        ("...\nd\n", True),
        ("a\nb\nc\nd\n...\n", True),
        ("a\n...\nc\n", False),
        ("b\n...\n", False),
        ("...\nc\nb\n...\n", False),
        ("a\nb\nc\n", False),
        ("a\nb\nc\n...\nc\nd\n", False),
    ],
)
def test_three_dots_stand_for_lines(shown: str, is_shown: bool) -> None:
    assert consoles.matches(shown, "a\nb\nc\nd\n") == is_shown
