# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mutated BTF of the modules in a dump, from a fixed seed; see ``fuzz_btf.py``."""

from __future__ import annotations

from pathlib import Path

import drgn
import pytest

from kcensus.sources.debuginfo.btf import places
from tests.lab import Dump
from tests.unit.fuzzing import add_up

SEED = 29
MAX_BYTES = 500 << 20
_MAX_MODULE = 1 << 15
"""Modules with more bytes take too long, each time."""


@pytest.mark.slow
@pytest.mark.kernels("7.3")
def test_modules_are_refused_or_usable(
    mixed_dump: Dump, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    prog = drgn.Program()
    prog.set_core_dump(str(mixed_dump.core))
    prog.load_debug_info([str(mixed_dump.debug[0])], main=True)
    names = ("__start_BTF", "__stop_BTF", "btf_modules")
    start, stop, head = (prog.symbol(name).address for name in names)
    kernel = places.from_memory(prog, start, stop)
    modules, _ = places.of_modules(prog, kernel, head)
    files = [tmp_path / name for name in ("vmlinux", *modules)]
    for file, btf in zip(files, (kernel, *modules.values()), strict=True):
        file.write_bytes(btf.data)
    small = [file for file in files[1:] if file.stat().st_size < _MAX_MODULE]
    cases = max(pytestconfig.getoption("--fuzz-cases"), 100)
    module = "tests.unit.sources.btf.fuzz_btf"
    add_up(module, SEED, cases, max_bytes=MAX_BYTES, more=(files[0], *small))
