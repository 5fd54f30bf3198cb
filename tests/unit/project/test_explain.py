# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus explain``: every kind of finding, and every term that explanations use."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kcensus
from kcensus import cli, explain
from kcensus.catalogue.validate import Verdict

PACKAGE = Path(kcensus.__file__).parent


def emitted() -> Iterator[str]:
    """Kinds of the findings that the code makes, where they are literal."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "finding":
                first = node.args[0]
                if isinstance(first, ast.Constant):
                    yield str(first.value)
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                for keyword in node.keywords:
                    value = keyword.value
                    is_made = isinstance(value, ast.JoinedStr)
                    if isinstance(value, ast.JoinedStr):
                        value = value.values[0]
                    if keyword.arg == "id" and isinstance(value, ast.Constant):
                        kind, colon, _ = str(value.value).partition(":")
                        if colon or not is_made:
                            yield kind


COMPUTED = {
    "dentries-negative",
    *("dm-snapshot-full", "dm-snapshot-invalid"),
    *("diff-incomplete", "report-incomplete", "diff-unsupported", "report-unsupported"),
    *("kcopyd-stall", "workqueue-stall"),
    *("waits-deadlock", "waits-deadlock-possible"),
}
"""Kinds that are not literal where a finding is made."""


def test_every_kind_of_finding_is_explained_and_no_other() -> None:
    kinds = {*emitted(), *(f"patch-{verdict.value}" for verdict in Verdict)}
    assert {"rule", "kernels-differ"} <= kinds
    assert set(explain.kinds()) == kinds | COMPUTED


def test_explanations_use_terms_of_the_glossary() -> None:
    used = {word for kind in explain.kinds().values() for word in kind.terms}
    used |= {word for term in explain.terms().values() for word in term.see}
    assert {word for word in used if explain.term(word) is None} == set()


def test_no_term_is_hidden_by_the_alias_of_another() -> None:
    for name, term in explain.terms().items():
        assert explain.term(name) is term
        for alias in term.aliases:
            assert explain.term(alias) is not None


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["report-incomplete"], "report-incomplete: "),
        (["rule:some-patch"], "rule: "),
        (["KMEMCG", "ID"], "kmemcg id\n"),
        (["kmemcg_id"], "kmemcg id\n"),
        (["dying"], "offline memcg\n"),
        (["layout", "markers"], "layout marker\n"),
        (["explained"], "check\n"),
        (["undetermined"], "patch state\n"),
        (["absence", "costs"], "patch state\n"),
        (["unused", "ids"], "unused ids\n"),
        (["at_tail"], "dentries, table walk_cost, column at_tail"),
        ([], "Findings\n"),
    ],
)
def test_words_are_found(words: list[str], shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", *words]) == 0
    assert capsys.readouterr().out.startswith(shown)


def test_unknown_words_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for word, hint in (
        ("kcopyd_jbo", "did you mean 'kcopyd_job'?"),
        ("list-lru-memory", "kcensus patches show list-lru-memory"),
        ("\x1bnonsense", "lists all"),
    ):
        assert cli.main(["explain", word]) == 2
        error = capsys.readouterr().err
        assert hint in error
        assert "\x1b" not in error
