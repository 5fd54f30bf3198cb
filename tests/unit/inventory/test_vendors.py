# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernels of vendors have what kcensus needs, whatever they have backported.

``tests/inventory`` says what is compared. A new gap has one of three ends: kcensus learns another
alternative, the function is guarded (record its needs anew), or :data:`KNOWN` has the reason.
"""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import kcensus
from kcensus.kernel.waiting.identities import _offsets
from tests.inventory.needs import Need, State, Variant, judge
from tests.inventory.tables import program
from tests.inventory.vendors import kernels, needs, programs, verdicts

KNOWN = {
    ("struct timekeeper", "kernel.clock:_timekeeper"): "until v4.1, the clock has other sources",
    ("struct inode", "kernel.memcg.pins:_Search._files"): "only with bdi_writeback.b_attached",
    ("struct cfq_group", "kernel.block.schedulers.cfq:_queues"): "flat arrays of BTF are found",
    ("struct rq_wb", "kernel.waiting.finder:Finder._offset"): "only of waits in rq_qos_wait()",
}
"""Reasons of gaps, by type and function: none is reached on these kernels."""
COMPLETE = [each.name for each in kernels().values() if not each.partial and not each.recorded]


def _types() -> list[str]:
    return sorted({need.type for need in needs()})


@pytest.mark.parametrize("type_", _types())
def test_members(type_: str) -> None:
    some = [need for need in needs() if need.type == type_]
    gaps = {
        (kernel, verdict.need.function, verdict.missing)
        for kernel in kernels()
        for verdict in verdicts(kernel, some)
        if verdict.state == State.GAP and (type_, verdict.need.function) not in KNOWN
    }
    assert not gaps


@pytest.mark.parametrize("release", COMPLETE)
def test_types_of_modules_are_there(release: str) -> None:
    absent = {each.need.type for each in verdicts(release, needs()) if each.state == State.ABSENT}
    assert not absent


def test_every_kernel_has_a_source() -> None:
    assert set(programs()) == set(kernels())


def test_the_lock_of_a_memory_map_has_its_new_name() -> None:
    """RHEL 8 has both names of it, in a union."""
    both = [
        release
        for release, prog in programs().items()
        if all(prog.type("struct mm_struct").has_member(f"mmap_{each}") for each in ("lock", "sem"))
    ]
    assert any("el8" in release for release in both)
    for release in both:
        kernel = cast(Any, SimpleNamespace(prog=programs()[release]))
        assert "mmap_lock" in _offsets(kernel, "struct mm_struct").values()


def test_functions_with_needs_exist() -> None:
    """Otherwise, record the needs anew: ``python -m tests.inventory needs``."""
    assert {need.function for need in needs()} - _functions() == set()


def _functions() -> set[str]:
    root, found = Path(kcensus.__file__).parent, set()
    for path in root.rglob("*.py"):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        module = module.removesuffix(".__init__")
        found |= {f"{module}:{name}" for name in _names(ast.parse(path.read_text()), "")}
    return found


def _names(node: ast.AST, prefix: str) -> set[str]:
    names = set()
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inner = f"{prefix}{child.name}."
            names.add(inner[:-1])
        names |= _names(child, inner)
    return names


def test_a_missing_member_is_found() -> None:
    need = Need("a:b", "struct dentry", (Variant((("d_sb",), ("no", "d_never")), {}),))
    (verdict,) = verdicts(COMPLETE[0], [need])
    assert (verdict.state, verdict.missing) == (State.OTHER, ())
    table = {"struct dentry": ["struct", 8, [["d_sb", 0, "*void"]]]}
    lacks, gains = program(table), program({"struct dentry": ["struct", 8, [["no", 0, "u4"]]]})
    (verdict,) = judge([need], lacks, [gains])
    assert (verdict.state, verdict.missing) == (State.GAP, ("no|d_never",))
    (verdict,) = judge([need], program({}), [gains])
    assert verdict.state == State.ABSENT


def test_an_asked_member_is_not_needed() -> None:
    variants = (Variant((("new",),), {"new": True}), Variant((("old",),), {"new": False}))
    need = Need("a:b", "struct a", variants)
    both, old, none = (
        program({"struct a": ["struct", 8, [[name, 0, "u4"] for name in names]]})
        for names in (("new", "old"), ("old",), ())
    )
    states = [judge([need], each, [both])[0].state for each in (both, old, none)]
    assert states == [State.SERVED, State.SERVED, State.GAP]
