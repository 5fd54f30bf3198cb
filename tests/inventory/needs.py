# SPDX-License-Identifier: LGPL-2.1-or-later
"""What each function of kcensus needs of a type, and whether a kernel has it.

A *need* is a function, a type, and one variant for each way in which the recorded kernels served
the function: groups of alternative paths, of which one has to exist, and the members that it asked
for to choose a branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import drgn

from kcensus.engine.layout import _resolve


class State(Enum):
    """Whether a kernel serves a function."""

    SERVED = "served"
    OTHER = "another branch"
    """The kernel has no such type or member, nor has a recorded one that is served all the same."""
    ABSENT = "no such type"
    """All recorded kernels have the type."""
    GAP = "gap"
    """The kernel has the type, but no variant's members, unlike each recorded one."""


@dataclass(frozen=True)
class Variant:
    """Members that some recorded kernels have for a function."""

    needs: tuple[tuple[str, ...], ...]
    asks: Mapping[str, bool]

    def missing(self, type_: drgn.Type) -> list[str]:
        """Return the needed members that a type lacks; alternatives are joined by ``|``.

        A member is not needed if the function asks for it before.
        """
        return [
            "|".join(paths)
            for paths in self.needs
            if not any(path in self.asks or has(type_, path) for path in paths)
        ]

    def takes(self, type_: drgn.Type) -> bool:
        """Whether a type has and lacks the same members as the recorded one."""
        return all(has(type_, name) == there for name, there in self.asks.items() if name)


@dataclass(frozen=True)
class Need:
    """What one function needs of one type."""

    function: str
    type: str
    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class Verdict:
    """The state of one need on one kernel, with the missing members of the closest variant."""

    need: Need
    state: State
    missing: tuple[str, ...] = ()


def has(type_: drgn.Type, path: str) -> bool:
    """Whether a type has a member path."""
    return _resolve(type_, path) is not None


def read_needs(document: list[Any]) -> list[Need]:
    """Return needs from their JSON."""
    return [
        Need(function, type_, tuple(_variant(*each) for each in variants))
        for function, type_, variants in document
    ]


def _variant(needs: list[list[str]], asks: dict[str, bool]) -> Variant:
    return Variant(tuple(map(tuple, needs)), asks)


def judge(
    needs: Iterable[Need], prog: drgn.Program, recorded: Sequence[drgn.Program]
) -> list[Verdict]:
    """Hold the types of a kernel against needs.

    :param recorded: types of the kernels on which the needs were recorded
    """
    return [
        _verdict(need, _find(prog, need), [_find(each, need) for each in recorded])
        for need in needs
    ]


def _find(prog: drgn.Program, need: Need) -> drgn.Type | None:
    try:
        return prog.type(need.type)
    except LookupError:
        return None


def _verdict(need: Need, type_: drgn.Type | None, recorded: list[drgn.Type | None]) -> Verdict:
    if type_ is None:
        return Verdict(need, State.OTHER if None in recorded else State.ABSENT)
    meant = [each for each in need.variants if each.takes(type_)] or need.variants
    missing = min((each.missing(type_) for each in meant), key=len)
    if not missing:
        return Verdict(need, State.SERVED)
    asked = {name for each in need.variants for name in each.asks if name}
    paths = [path for group in missing for path in group.split("|")]
    for other in recorded:
        alike = other is not None and all(has(type_, each) == has(other, each) for each in asked)
        if other is not None and alike and not any(has(other, path) for path in paths):
            return Verdict(need, State.OTHER)
    return Verdict(need, State.GAP, tuple(missing))
