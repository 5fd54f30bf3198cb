# SPDX-License-Identifier: LGPL-2.1-or-later
"""The declarations of global variables, against DWARF."""

from __future__ import annotations

from typing import Any

import drgn
import pytest
from drgn import TypeKind

from kcensus.sources import Target
from kcensus.sources.debuginfo.globals import declarations, declared

_NAMES = [(module, name) for module, names in declarations().items() for name in names]
_LEAST = 80
"""Declared variables that each kernel of the lab has."""


def shape(type_: drgn.Type) -> Any:
    """Return what is compared of a type: not its qualifiers, nor its aliases."""
    match type_.kind:
        case TypeKind.TYPEDEF:
            return shape(type_.type)
        case TypeKind.POINTER | TypeKind.ARRAY:
            return type_.kind, getattr(type_, "length", None), shape(type_.type)
        case TypeKind.STRUCT | TypeKind.UNION | TypeKind.ENUM if type_.tag is not None:
            return type_.kind, type_.tag
        case TypeKind.STRUCT | TypeKind.UNION:
            members = [(each.name, each.bit_offset, shape(each.type)) for each in type_.members]
            return type_.kind, type_.size, members
        case TypeKind.INT | TypeKind.BOOL:
            return type_.kind, type_.size, getattr(type_, "is_signed", None)
    return type_.kind


@pytest.fixture(scope="module")
def prog(mixed_target: Target) -> drgn.Program:
    # Modules that are not loaded have no variables to compare.
    assert mixed_target.need_modules(*declarations()) == []
    return mixed_target.prog


def test_each_declaration_is_the_type_in_dwarf(prog: drgn.Program) -> None:
    compared = []
    for module, name in _NAMES:
        try:
            variable = prog.variable(name)
        except LookupError:
            continue
        type_ = declared(prog, name, lambda name: prog.symbol(name).size)
        assert shape(type_) == shape(variable.type_), (module, name)
        compared.append(name)
    assert len(compared) >= _LEAST


def test_names_are_sorted_and_declared_once() -> None:
    names = [name for _, name in _NAMES]
    assert len(names) == len(set(names))
    for module, variables in declarations().items():
        assert list(variables) == sorted(variables, key=str.lower), module
