# SPDX-License-Identifier: LGPL-2.1-or-later
"""Analyses give the same with types of BTF; symbols and other variables are those of debug info."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcensus.analyses import analyses
from kcensus.capsule import create
from kcensus.sources import Target, open_target
from kcensus.sources.debuginfo.btf import places
from kcensus.sources.debuginfo.btf.finders import TYPES, Types, register
from tests.lab import Dump
from tests.vm.cases import document, opened

pytestmark = pytest.mark.kernels("6.1", "6.12", "7.3")


@pytest.fixture(scope="module")
def target(mixed_dump: Dump) -> Target:
    opened_dump = opened(mixed_dump)
    prog = opened_dump.prog
    names = ("__start_BTF", "__stop_BTF", "btf_modules")
    start, stop, head = (prog.symbol(name).address for name in names)
    kernel = places.from_memory(prog, start, stop)
    types = Types(kernel)
    modules, sentences = places.of_modules(prog, kernel, head)
    assert sentences == []
    for name, module in modules.items():
        types.add(name, module)
    register(prog, types)
    prog.set_enabled_type_finders([TYPES])
    return opened_dump


def test_documents_are_those_with_debug_info(mixed_dump: Dump, target: Target) -> None:
    expected = opened(mixed_dump)
    for analysis in analyses().values():
        assert document(target, analysis) == document(expected, analysis), analysis.name


def test_a_capsule_can_be_recorded(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "btf.capsule"
    wanted = [*analyses().values()]
    create(target, path, wanted)
    capsule = open_target(str(path), ())
    for analysis in wanted:
        assert document(capsule, analysis) == document(target, analysis), analysis.name
