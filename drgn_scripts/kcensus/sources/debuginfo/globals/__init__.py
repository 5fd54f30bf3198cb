# SPDX-License-Identifier: LGPL-2.1-or-later
"""Global variables of a kernel whose types come without them: BTF has only per-CPU ones.

``declarations.toml`` has their C types.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from importlib import resources

import drgn

from kcensus.sources.types.nodes import NotRecorded

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_DIMENSIONS = re.compile(r"(?P<element>.*?)\s*(?P<lengths>(\[\w*\])+)")
_STRUCT = re.compile(r"struct \{ (?P<members>.+) \}")
_MEMBER = re.compile(r"(?P<type>[^;]+) (?P<name>\w+);\s*")

SymbolSize = Callable[[str], int | None]
"""Returns the bytes from a symbol to the next one."""


class Undeclared(NotRecorded):
    """A variable has a symbol and no declaration: it exists, and its type is unknown."""

    def __init__(self, variable: str) -> None:
        super().__init__(
            f"the type of the variable {variable} is unknown without debug info: pass the vmlinux "
            "with -s"
        )


@functools.cache
def declarations() -> dict[str, dict[str, list[tuple[str, str]]]]:
    """Return by kernel module (``vmlinux`` for the kernel itself) and name of a variable its
    declarations: the condition, empty without one, and the C type."""
    text = resources.files(__package__).joinpath("declarations.toml").read_text("utf-8")
    return {
        module: {
            name: [("", each)]
            if isinstance(each, str)
            else [(one.get("with", ""), one["type"]) for one in each]
            for name, each in variables.items()
        }
        for module, variables in tomllib.loads(text).items()
    }


@functools.cache
def _by_name() -> dict[str, list[tuple[str, str]]]:
    return {name: each for names in declarations().values() for name, each in names.items()}


def declared(prog: drgn.Program, name: str, size: SymbolSize) -> drgn.Type:
    """Return the type of a variable.

    :param size: for arrays of unknown length
    :raises Undeclared: it has no declaration
    :raises LookupError: its declaration names an unknown type
    """
    eras = _by_name().get(name)
    if eras is None:
        raise Undeclared(name)
    type_ = next((type_ for condition, type_ in eras if _holds(prog, condition)), None)
    if type_ is None:
        raise LookupError(f"no declaration of {name} fits this kernel")
    return _parsed(prog, type_, lambda: size(name))


def _holds(prog: drgn.Program, condition: str) -> bool:
    if not condition:
        return True
    kind, _, member = condition.partition(".")
    try:
        if kind.isupper():
            prog.constant(kind)
        elif member:
            drgn.offsetof(prog.type(kind), member)
        else:
            prog.type(kind)
    except (LookupError, TypeError):
        return False
    return True


def _parsed(prog: drgn.Program, text: str, size: Callable[[], int | None]) -> drgn.Type:
    if array := _DIMENSIONS.fullmatch(text):
        type_ = _parsed(prog, array["element"], size)
        for length in reversed(array["lengths"][1:-1].split("][")):
            type_ = prog.array_type(type_, _length(prog, length, type_, size))
        return type_
    if struct := _STRUCT.fullmatch(text):
        return _struct(prog, struct["members"])
    return prog.type(text)


def _length(
    prog: drgn.Program, text: str, element: drgn.Type, size: Callable[[], int | None]
) -> int | None:
    if text:
        return int(text) if text.isdigit() else int(prog.constant(text))
    space = size()
    return None if space is None else space // drgn.sizeof(element)


def _struct(prog: drgn.Program, text: str) -> drgn.Type:
    """Return an untagged struct with naturally aligned members."""
    members, end, most = [], 0, 1
    for member in _MEMBER.finditer(text):
        type_ = prog.type(member["type"])
        alignment = drgn.alignof(type_)
        offset = -(-end // alignment) * alignment
        members.append(drgn.TypeMember(type_, member["name"], 8 * offset))
        end, most = offset + drgn.sizeof(type_), max(most, alignment)
    return prog.struct_type(None, -(-end // most) * most, members)
