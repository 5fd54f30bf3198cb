# SPDX-License-Identifier: LGPL-2.1-or-later
"""Look up types, members, symbols, enumerators and module parameters in the debug info.

An answer is yes, no, or unknown with a reason. A name of a module whose debug info is not loaded
is unknown, because a failed lookup proves nothing then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import drgn
from drgn import TypeKind

from kcensus.catalogue.model import Probe, ProbeKind
from kcensus.sources.capsule import NotRecorded

_COMPOUND = (TypeKind.STRUCT, TypeKind.UNION, TypeKind.CLASS)


@dataclass(frozen=True)
class Answer:
    """Whether a name exists."""

    value: bool | None
    """None: unknown."""
    reason: str
    """A clause: ``struct list_lru has no xa``."""


class Prober:
    """Looks up names in one program.

    :param lacking: one sentence for each module whose debug info is missing
    """

    def __init__(self, prog: drgn.Program, lacking: Sequence[str] = ()) -> None:
        self._prog = prog
        self._lacking = tuple(lacking)

    def ask(self, probe: Probe, modules: Sequence[str] = ()) -> Answer:
        """Return whether the name of ``probe`` exists.

        :param modules: the kernel modules that may define it; none if it is always built in
        """
        try:
            return self._ask(probe, modules)
        except NotRecorded:
            return Answer(None, f"this capsule does not record whether {probe} exists")

    def number(self, name: str) -> int | None:
        """Return the value of an integer variable, or None if it cannot be read."""
        try:
            return int(self._prog.variable(name).read_())
        except (LookupError, TypeError, ValueError, drgn.FaultError, NotRecorded):
            return None

    def _ask(self, probe: Probe, modules: Sequence[str]) -> Answer:
        kind, name = probe.kind, probe.name
        if kind in (ProbeKind.TYPE, ProbeKind.MEMBER):
            return self._member(name, modules)
        if kind is ProbeKind.ENUMERATOR:
            exists = _exists(self._prog.constant, name)
        elif kind is ProbeKind.PARAMETER:
            # module_param() defines a struct kernel_param of this name.
            module, _, name = name.partition(".")
            exists = self._symbol(f"__param_{name}")
            name, modules = f"{name} of {module}", (module, *modules)
        else:
            exists = self._symbol(name)
        return self._answer(exists, f"{kind.value} {name}", modules)

    def _member(self, path: str, modules: Sequence[str]) -> Answer:
        """Return whether a type exists, or a member of one if ``path`` has dots."""
        name, *members = path.split(".")
        try:
            type_ = self._prog.type(name)
        except (LookupError, SyntaxError):  # the latter for a C keyword
            return self._answer(False, name, modules)
        if not members and not _is_complete(type_):
            return Answer(None, f"{name} is only declared in the debug info, without members")
        reason = f"has {name}"
        for member in members:
            type_ = _target(type_)
            where = type_.type_name()
            if type_.kind not in _COMPOUND:
                return Answer(False, f"{where} has no members")
            if not type_.is_complete():
                return Answer(None, f"{where} is only declared in the debug info, without members")
            if not type_.has_member(member):
                return Answer(False, f"{where} has no {member}")
            type_ = type_.member(member).type
            reason = f"{where} has {member}"
        return Answer(True, reason)

    def _answer(self, exists: bool, name: str, modules: Sequence[str]) -> Answer:
        if exists:
            return Answer(True, f"has {name}")
        if not modules:
            return Answer(False, f"no {name}")
        words = re.compile(rf"\b({'|'.join(map(re.escape, modules))})\b")
        # The sentence in `lacking`, which says what to install, is reported as a gap.
        is_missing = any(words.search(sentence) for sentence in self._lacking)
        which = " or ".join(dict.fromkeys(modules))
        why = "loaded without debug info" if is_missing else "not loaded, or does not have it"
        return Answer(None, f"no {name}, but {which} is {why}")

    def _symbol(self, name: str) -> bool:
        # Inlined functions are only in the debug info; assembly functions only in the symbol table.
        any_object = drgn.FindObjectFlags.ANY
        return _exists(self._prog.object, name, any_object) or _exists(self._prog.symbol, name)


def _exists(look_up: Callable[..., object], *args: object) -> bool:
    try:
        look_up(*args)
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
