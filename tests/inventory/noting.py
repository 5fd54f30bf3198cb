# SPDX-License-Identifier: LGPL-2.1-or-later
"""Note which members each function of kcensus needs, by rewriting its modules on import.

:func:`install` comes before the first import of kcensus. A read of ``object.member``,
``type.member(…)``, ``type.has_member(…)``, ``drgn.offsetof(…)``, ``prog.type(…)`` and ``layout(…)``
is then noted with the function that does it.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import drgn
from drgn import TypeKind

_PACKAGE = Path(__file__).parents[2] / "drgn_scripts" / "kcensus"
_CALLS = {"has_member", "member", "offsetof", "type"}
_NOTE = "__inventory_note__"
_PROBES = ("engine.layout:", "catalogue.", "commands.")
"""Functions for which the absence of a member is an answer."""


class Notes:
    """Needs by function and type: ``needed`` and ``asked`` of one run."""

    def __init__(self) -> None:
        self.needed: dict[tuple[str, str], set[tuple[str, ...]]] = defaultdict(set)
        """Alternative paths, of which one has to exist."""
        self.asked: dict[tuple[str, str], dict[str, bool]] = defaultdict(dict)
        """Members whose presence chooses a branch; the key ``""`` is the type itself."""

    def take(self) -> Iterator[tuple[tuple[str, str], set[tuple[str, ...]], dict[str, bool]]]:
        """Yield function and type, the needed groups and the asked members; forget them."""
        for key in sorted({*self.needed, *self.asked}):
            if not key[0].startswith(_PROBES):
                yield key, self.needed.get(key, set()), self.asked.get(key, {})
        self.needed.clear()
        self.asked.clear()


NOTES = Notes()


def label(type_: drgn.Type) -> str:
    """Return a name such as ``struct page``, of the target of a pointer; empty without one."""
    while type_.kind in (TypeKind.TYPEDEF, TypeKind.POINTER, TypeKind.ARRAY):
        type_ = type_.type
    if type_.kind in (TypeKind.STRUCT, TypeKind.UNION) and type_.tag:
        return f"{type_.kind.name.lower()} {type_.tag}"
    return ""


def _caller(depth: int = 2) -> str:
    frame = sys._getframe(depth)
    while frame.f_code.co_name.startswith("<") and frame.f_back is not None:
        frame = frame.f_back
    name = frame.f_globals.get("__name__", "").removeprefix("kcensus.")
    return f"{name}:{frame.f_code.co_qualname.replace('.<locals>', '')}"


def _need(function: str, type_: drgn.Type, *paths: str) -> None:
    if name := label(type_):
        NOTES.needed[function, name].add(paths)


def _note(value: Any, name: str) -> Any:
    """Return an attribute, and note it if it is a member of a kernel object, or asks for one."""
    kind = type(value)
    if kind is drgn.Object and name not in _CALLS:
        found = getattr(value, name)
        _need(_caller(), value.type_, name)
        return found
    if kind is drgn.Type and name in ("has_member", "member"):
        return _type_call(value, name, _caller())
    if kind is drgn.Program and name == "type":
        return _lookup(value, _caller())
    if value is drgn and name == "offsetof":
        return _offsetof(_caller())
    return getattr(value, name)


def _type_call(type_: drgn.Type, name: str, function: str) -> Callable[[str], Any]:
    def call(member: str) -> Any:
        found = getattr(type_, name)(member)
        if name == "has_member":
            if known := label(type_):
                NOTES.asked[function, known][member] = bool(found)
        else:
            _need(function, type_, member)
        return found

    return call


def _lookup(prog: drgn.Program, function: str) -> Callable[..., drgn.Type]:
    def find(name: Any, *rest: Any) -> drgn.Type:
        is_named = isinstance(name, str) and name.startswith(("struct ", "union "))
        try:
            found = prog.type(name, *rest)
        except LookupError:
            if is_named:
                NOTES.asked[function, name][""] = False
            raise
        if is_named:
            NOTES.asked[function, name].setdefault("", True)
        return found

    return find


def _offsetof(function: str) -> Callable[[drgn.Type, str], int]:
    def offset(type_: drgn.Type, path: str) -> int:
        found = int(drgn.offsetof(type_, path))
        _need(function, type_, path)
        return found

    return offset


def _noted_layout(layout: Callable[..., Any]) -> Callable[..., Any]:
    def noted(
        prog: drgn.Program,
        type_name: str | drgn.Type,
        members: Sequence[str] | Mapping[str, Any],
        optional: Mapping[str, Any] | None = None,
    ) -> Any:
        function = _caller()
        found = layout(prog, type_name, members, optional)
        type_ = prog.type(type_name) if isinstance(type_name, str) else type_name
        paths: Iterable[Any] = members.values() if isinstance(members, Mapping) else members
        for path in paths:
            _need(function, type_, *([path] if isinstance(path, str) else path))
        return found

    return noted


class _Rewriter(ast.NodeTransformer):
    def __init__(self, names: set[str]) -> None:
        self._names = names

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load) or node.attr not in self._names:
            return node
        call = ast.Call(ast.Name(_NOTE, ast.Load()), [node.value, ast.Constant(node.attr)], [])
        return ast.copy_location(call, node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_Match(self, node: ast.Match) -> ast.AST:
        for case in node.cases:
            case.body = [self.visit(each) for each in case.body]
        node.subject = self.visit(node.subject)
        return node


class _Loader(importlib.machinery.SourceFileLoader):
    names: set[str] = set()

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = _Rewriter(self.names).visit(ast.parse(Path(path).read_text(), path))
        code: CodeType = compile(ast.fix_missing_locations(tree), path, "exec")
        return code

    def exec_module(self, module: ModuleType) -> None:
        vars(module)[_NOTE] = _note
        super().exec_module(module)
        if module.__name__ == "kcensus.engine.layout":
            vars(module)["layout"] = _noted_layout(vars(module)["layout"])


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if not name.startswith("kcensus"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path)
        return spec


def install() -> None:
    """Rewrite all modules of kcensus that are imported from now on."""
    lookups = json.loads((_PACKAGE / "sources/debuginfo/lookups.json").read_text())
    members = {name for names in lookups["types"].values() for name in names}
    _Loader.names = (members | _CALLS) - {""}
    sys.meta_path.insert(0, _Finder())
