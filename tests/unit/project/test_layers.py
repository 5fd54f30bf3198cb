# SPDX-License-Identifier: LGPL-2.1-or-later
"""Imports point downwards only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]


def imported(folder: str) -> Iterator[tuple[Path, str]]:
    """Modules that the files of a folder import at any place."""
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from ((path, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield path, node.module


def test_the_catalogue_stands_on_results_and_targets_alone() -> None:
    below = ("kcensus.results", "kcensus.human", "kcensus.text")
    found = [
        (path.name, module)
        for path, module in imported("kcensus.patches")
        if module.startswith("kcensus")
        and module not in below
        and not module.startswith("kcensus.sources")
    ]
    assert found == []


def test_analyses_and_what_they_stand_on_know_no_catalogue() -> None:
    for folder in ("analyses", "kernel", "engine", "target", "render"):
        found = [
            (path.name, module)
            for path, module in imported(f"drgn_scripts/{folder}")
            if module.split(".")[0] == "kcensus.patches"
        ]
        assert found == []
