# SPDX-License-Identifier: LGPL-2.1-or-later
"""A redacted capsule of a guest that is full of names: none of them is left, nor any piece."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import drgn
import numpy as np
import numpy.typing as npt
import pytest
from drgn.helpers.linux.mm import follow_phys
from drgn.helpers.linux.pid import for_each_task

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.capsule import create
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.machine import machine
from kcensus.redaction.wiped import registers
from kcensus.sources import Target, open_target
from kcensus.sources.capsule.container import Reader
from tests.lab import build
from tests.vm.capsules import KEY, assert_same_without_names, page_size, pages
from tests.vm.cases import analyzed, opened

pytestmark = pytest.mark.machines

_VECTOR = b"kCq!"
"""The begin of 16 bytes in registers."""
_PIECE = 6
"""Bytes of a piece of a name."""
_HASH, _BITS = np.uint64(0x9E37_79B9_7F4A_7C15), np.uint64(64 - 20)
_SEEN = {"boot", "blocked", "cgroup", "dm", "host", "interface", "key", "log"}
_SEEN |= {"mount", "payload", "process", "register", "socket", "target-memory"}
"""Kinds of names on the pages of a capsule, so that redaction has to take them off."""
_ON_X86 = {"created", "xattr-memory"}
"""The same, beside what walks along stacks of x86-64 find."""


class Case(NamedTuple):
    target: Target
    redacted: Target
    planted: list[tuple[str, bytes]]
    """Kind and name."""
    was: bytes
    """The capsule's pages as they are in the dump."""
    now: bytes
    """The capsule's pages."""
    rest: bytes
    """What else it has."""


@pytest.fixture(scope="module")
def case(kernel: str, tmp_path_factory: pytest.TempPathFactory) -> Case:
    dump = build(kernel, "waits-freeze")
    target, path = opened(dump), tmp_path_factory.mktemp("planted") / "capsule"
    made = create(target, path, list(analyses().values()), redact=["names"], key=KEY, level=1)
    assert (made.failed, made.unredacted) == ({}, [])
    reader, size = Reader(str(path)), page_size(path)
    index = reader.index(size)
    was = b"".join(
        target.prog.read(first * size, count * size, physical=True)
        for first, count in zip(index.first.tolist(), index.pages.tolist(), strict=True)
    )
    sections = [reader.section(name) for name in ("lookups", "vmcoreinfo", "index")]
    rest = b"\0".join([*sections, json.dumps(reader.manifest).encode()])
    lines = [line.split(" ") for line in dump.truth["planted"].splitlines()]
    planted = [(kind, name.encode()) for kind, name in lines]
    return Case(target, open_target(str(path)), planted, was, pages(path), rest)


def _forms(name: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield what has the pieces of a name, and the bytes of a piece."""
    yield name, _PIECE
    yield name[::-1], _PIECE
    for form in ("utf-16-le", "utf-16-be"):
        yield name.decode().encode(form), 8


def _found(data: bytes, names: list[tuple[str, bytes]]) -> set[tuple[str, bytes]]:
    """Return the names of which a piece is in memory."""
    found = set()
    for size in (_PIECE, 8):
        pieces = {
            int.from_bytes(form[at : at + size], "little"): (kind, name)
            for kind, name in names
            for form, length in _forms(name)
            if length == size
            for at in range(len(form) - size + 1)
        }
        wanted = np.array(sorted(pieces), np.uint64)
        for value in _windows(data, size, wanted).tolist():
            found.add(pieces[value])
    return found


def _windows(data: bytes, size: int, wanted: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
    """Return which of some numbers of ``size`` bytes are in memory, at any address."""
    table = np.zeros(1 << 20, np.bool_)
    table[(wanted * _HASH) >> _BITS] = True
    mask, found = np.uint64((1 << 8 * size) - 1), []
    for start in range(8):
        words = np.frombuffer(data, "<u8", (len(data) - start) // 8, start) & mask
        maybe = words[table[(words * _HASH) >> _BITS]]
        found.append(maybe[np.isin(maybe, wanted)])
    return np.unique(np.concatenate(found))


def test_the_search_finds_all_forms() -> None:
    name = b"gTqLmRvKzWyHsP"
    for form in (name, name[::-1], name[4:10], name.decode().encode("utf-16-be")[3:]):
        for before in range(9):
            assert _found(b"x" * before + form + b"y" * 9, [("dm", name)]) == {("dm", name)}
    assert _found(name[:5] + b"." + name[6:11], [("dm", name)]) == set()


def test_no_piece_of_a_name_is_left(case: Case) -> None:
    assert len(case.planted) > 120
    was = _found(case.was, case.planted)
    is_amd64 = case.target.prog.platform.arch is drgn.Architecture.X86_64
    assert {kind for kind, _ in was} >= (_SEEN | _ON_X86 if is_amd64 else _SEEN)
    assert len(was) > 90
    assert _found(case.now, case.planted) == set()
    assert _found(case.rest, case.planted) == set()


def test_no_guard_of_a_stack_and_no_key_is_left(case: Case) -> None:
    """Arm64 also has keys with which each program, and the kernel for it, signs pointers."""
    tasks = [*for_each_task(case.target.prog), case.target.prog["init_task"]]
    secrets = {task.stack_canary.value_() for task in tasks}
    assert len(secrets) == len(tasks) > 40
    for task in tasks:
        for name in ("keys_user", "keys_kernel"):
            if task.thread.type_.has_member(name):
                keys = task.thread.member_(name)
                raw = case.target.prog.read(keys.address_, drgn.sizeof(keys))
                secrets |= set(np.frombuffer(raw, "<u8").tolist())
    secrets.discard(0)
    assert not secrets & set(np.frombuffer(case.now, "<u8").tolist())


def test_the_boot_is_known_without_a_guard(case: Case) -> None:
    boot = machine(Kernel(case.target.prog)).boot
    assert boot
    assert Context.of(case.redacted).machine.boot == boot
    assert machine(Kernel(case.redacted.prog)).boot == ""  # as kcensus did before


@pytest.mark.parametrize("name", ["dentries", "iosched", "memcgs", "slab", "waits"])
def test_figures_are_those_of_the_dump(case: Case, name: str) -> None:
    assert_same_without_names(analyzed(case.redacted, name), analyzed(case.target, name))


def test_the_log_can_stay(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "capsule"
    create(case.target, path, [analyses()["memcgs"]], redact=["names"], keep=["log"], level=1)
    left = {kind for kind, _ in _found(pages(path), case.planted)}
    # Lines of the kernel have its command line, the program in core_pattern, and hung tasks.
    assert {"log"} <= left <= {"blocked", "boot", "crashed", "interface", "log", "sysctl"}
    assert Reader(str(path)).manifest["kept"] == ["log"]


@pytest.mark.kernels("6.12-arm64", "7.3-arm64")
@pytest.mark.usually
def test_no_vector_register_is_left(kernel: str, tmp_path: Path) -> None:
    target = opened(build(kernel, "vectors"))
    wiped, filled = registers(Kernel(target.prog), ScanReport()), Counter[str]()
    for task in for_each_task(target.prog):
        if task.comm.string_() != b"vector-load":
            continue
        lengths = [length.value_() for length in task.thread.vl]
        sizes = {"sve_state": max(lengths) // 16 * 546, "sme_state": lengths[1] ** 2}
        for name, size in sizes.items():
            if not task.thread.type_.has_member(name) or not task.thread.member_(name):
                continue
            place = task.thread.member_(name).value_()
            filled[name] += target.prog.read(place, len(_VECTOR)) == _VECTOR
            # Objects of slabs are together in physical memory, too.
            physical = follow_phys(target.prog["init_mm"].address_of_(), place).value_()
            assert wiped.inside(physical, size)[0].all()
    is_new = kernel == "7.3-arm64"
    assert filled["sve_state"] >= 7
    assert filled["sme_state"] == (2 if is_new else 0)
    paths = [tmp_path / name for name in ("whole", "redacted")]
    for path, redact in zip(paths, ([], ["names"]), strict=True):
        create(target, path, list(analyses().values()), redact=redact, key=KEY, level=1)
    assert [_VECTOR in pages(path) for path in paths] == [True, False]
