# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the debug info of a kernel has: types, members, symbols, enumerators, module parameters.

An answer is yes, no, or unknown with a reason. What belongs to a module is unknown where the
module's debug info is not there: that a type is not found proves nothing then.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import drgn
from drgn import TypeKind

from kcensus.patches.model import Probe, ProbeKind
from kcensus.sources.capsule import NotRecorded

_COMPOUND = (TypeKind.STRUCT, TypeKind.UNION, TypeKind.CLASS)


@dataclass(frozen=True)
class Answer:
    """Whether something is there."""

    value: bool | None
    """None: cannot tell."""
    reason: str
    """A clause: ``struct list_lru has no xa``."""


class Prober:
    """Asks one program.

    :param lacking: for each module whose debug info was looked for and not found, one sentence
    """

    def __init__(self, prog: drgn.Program, lacking: Sequence[str] = ()) -> None:
        self._prog = prog
        self._lacking = tuple(lacking)

    def ask(self, probe: Probe, modules: Sequence[str] = ()) -> Answer:
        """Whether ``probe`` is there.

        :param modules: the kernel modules to which it belongs; none if it is built in always
        """
        try:
            return self._ask(probe, modules)
        except NotRecorded:
            return Answer(None, f"whether there is {probe} was not recorded in this capsule")

    def number(self, name: str) -> int | None:
        """The value of a variable; None where it cannot be read."""
        try:
            return int(self._prog.variable(name).read_())
        except (LookupError, TypeError, ValueError, drgn.FaultError, NotRecorded):
            return None

    def _ask(self, probe: Probe, modules: Sequence[str]) -> Answer:
        kind, name = probe.kind, probe.name
        if kind is ProbeKind.TYPE:
            return self._type(name, modules)
        if kind is ProbeKind.MEMBER:
            return self._member(name, modules)
        if kind is ProbeKind.ENUMERATOR:
            return self._found(self._constant(name), f"enumerator {name}", modules)
        if kind is ProbeKind.PARAMETER:
            # module_param() and its kin leave a struct kernel_param of this name.
            module, _, parameter = name.partition(".")
            there = self._symbol(f"__param_{parameter}")
            return self._found(there, f"parameter {parameter} of {module}", (module, *modules))
        return self._found(self._symbol(name), f"symbol {name}", modules)

    def _type(self, name: str, modules: Sequence[str]) -> Answer:
        type_ = self._lookup(name)
        if type_ is not None and not _is_complete(type_):
            return Answer(None, f"{name} is declared in the debug info, but not described")
        return self._found(type_ is not None, name, modules)

    def _member(self, path: str, modules: Sequence[str]) -> Answer:
        name, *members = path.split(".")
        type_ = self._lookup(name)
        if type_ is None:
            return self._found(False, name, modules)
        for member in members:
            type_ = _target(type_)
            where = type_.type_name()
            if type_.kind not in _COMPOUND:
                return Answer(False, f"{where} has no members")
            if not type_.is_complete():
                return Answer(None, f"{where} is declared in the debug info, but not described")
            if not type_.has_member(member):
                return Answer(False, f"{where} has no {member}")
            type_ = type_.member(member).type
        return Answer(True, f"{where} has {member}")

    def _found(self, there: bool, name: str, modules: Sequence[str]) -> Answer:
        if there:
            return Answer(True, f"has {name}")
        if modules:
            words = re.compile(rf"\b({'|'.join(map(re.escape, modules))})\b")
            # The sentence itself says what to install, and stands among the gaps.
            missing = any(words.search(line) for line in self._lacking)
            which = " or ".join(dict.fromkeys(modules))
            absent = f"{which} is not loaded, or has none"
            why = f"{which} is loaded without debug info" if missing else absent
            return Answer(None, f"no {name}, but {why}")
        return Answer(False, f"no {name}")

    def _lookup(self, name: str) -> drgn.Type | None:
        try:
            return self._prog.type(name)
        except (LookupError, SyntaxError):  # a keyword of C, as a name, is the latter
            return None

    def _constant(self, name: str) -> bool:
        try:
            self._prog.constant(name)
        except LookupError:
            return False
        return True

    def _symbol(self, name: str) -> bool:
        # Debug info knows of inlined functions, the symbol table of those without debug info.
        try:
            self._prog.object(name, drgn.FindObjectFlags.ANY)
        except LookupError:
            pass
        else:
            return True
        try:
            self._prog.symbol(name)
        except LookupError:
            return False
        return True


def _is_complete(type_: drgn.Type) -> bool:
    while type_.kind == TypeKind.TYPEDEF:
        type_ = type_.type
    return type_.kind not in (*_COMPOUND, TypeKind.ENUM) or type_.is_complete()


def _target(type_: drgn.Type) -> drgn.Type:
    while type_.kind in (TypeKind.TYPEDEF, TypeKind.POINTER):
        type_ = type_.type
    return type_
