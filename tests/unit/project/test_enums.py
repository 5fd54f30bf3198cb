# SPDX-License-Identifier: LGPL-2.1-or-later
"""A table that maps an enum has a value for each of its members."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from enum import Enum
from types import ModuleType

import pytest

from kcensus.render import terminal
from kcensus.results import Severity
from tests.unit.project.test_layers import PACKAGE

_STARTS = PACKAGE / "__main__.py"
"""Runs the command when it is imported."""


def _modules() -> Iterator[tuple[ModuleType, ast.Module]]:
    for path in sorted({*PACKAGE.rglob("*.py")} - {_STARTS}):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        yield importlib.import_module(name), ast.parse(path.read_text())


def _missing(keys: set[object]) -> set[object]:
    """Return the members that a table of an enum lacks; nothing for another table."""
    enums = {type(key) for key in keys if isinstance(key, Enum)}
    is_table = len(enums) == 1 and all(isinstance(key, Enum) for key in keys)
    members: set[object] = {member for enum in enums for member in enum}
    return members - keys if is_table else set()


def _indexed(module: ModuleType, tree: ast.Module) -> Iterator[tuple[str, set[object]]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
            continue
        place = f"{module.__name__}:{node.lineno}"
        if isinstance(node.value, ast.Dict):
            yield place, {_member(module, key) for key in node.value.keys}
        elif not isinstance(node.slice, (ast.Constant, ast.Attribute)):
            table = _named(module, node.value)
            if isinstance(table, dict):
                yield place, set(table)


def _named(module: ModuleType, value: ast.expr) -> object:
    """Return a global of a module, its own or imported, or a global of a module in it, or None."""
    if isinstance(value, ast.Name):
        return getattr(module, value.id, None)
    if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
        owner = getattr(module, value.value.id, None)
        return getattr(owner, value.attr, None) if isinstance(owner, ModuleType) else None
    return None


def _member(module: ModuleType, key: ast.expr | None) -> object:
    """Return the member of an enum that an expression such as ``Place.NONE`` names, or None."""
    if isinstance(key, ast.Attribute) and isinstance(key.value, ast.Name):
        return getattr(getattr(module, key.value.id, None), key.attr, None)
    return None


@pytest.mark.slow
def test_tables_of_enums_are_complete() -> None:
    tables = [(place, keys) for module in _modules() for place, keys in _indexed(*module)]
    of_enums = [keys for _, keys in tables if keys and all(isinstance(k, Enum) for k in keys)]
    assert len(of_enums) >= 5
    assert {place: missing for place, keys in tables if (missing := _missing(keys))} == {}


def test_an_imported_table_is_seen() -> None:
    tree = ast.parse("SEVERITY_STYLE[each]; terminal.SEVERITY_STYLE[each]; terminal.other[each]")
    module = ModuleType("made_up")
    vars(module).update(terminal=terminal, SEVERITY_STYLE=terminal.SEVERITY_STYLE)
    assert [keys for _, keys in _indexed(module, tree)] == [set(terminal.SEVERITY_STYLE)] * 2
    assert _missing({Severity.INFO}) == {*Severity} - {Severity.INFO}
