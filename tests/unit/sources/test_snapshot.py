# SPDX-License-Identifier: LGPL-2.1-or-later
"""Capsules of a *synthetic* kernel that changes while it is recorded."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import drgn
import numpy as np
import pytest

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.capsule import Recording
from kcensus.reports import report
from kcensus.sources import open_target
from kcensus.sources.capsule.snapshot import Snapshot
from tests.unit.capsules import kernel_with_slabs, target_of
from tests.unit.fakekernel import DIRECT_MAP, PAGE, FakeKernel

_FRAME = 300
_FEW = 70
"""Pages: more than an analysis reads of the machine, and less than twice its array of pages."""
_ADDRESS = _FRAME * PAGE


@pytest.fixture
def file() -> Iterator[int]:
    with tempfile.TemporaryFile() as opened:
        yield opened.fileno()


@pytest.fixture
def machine() -> FakeKernel:
    made = FakeKernel()
    made.write_words(DIRECT_MAP + _ADDRESS, 1)
    made.write_words(DIRECT_MAP + _ADDRESS + PAGE, 2)
    return made


def test_the_first_read_counts(machine: FakeKernel, file: int) -> None:
    snapshot = Snapshot(machine.prog, file, 1 << 20)
    assert snapshot.read(_ADDRESS, 8) == (1).to_bytes(8, "little")
    for number in (0, 1):
        machine.write_words(DIRECT_MAP + _ADDRESS + number * PAGE, 77)
    assert snapshot.read(_ADDRESS, 8) == (1).to_bytes(8, "little")
    both = snapshot.read(_ADDRESS, PAGE + 8)
    assert both[:8] == (1).to_bytes(8, "little")
    assert both[PAGE:] == (77).to_bytes(8, "little")
    assert not snapshot.is_full


def test_without_room_memory_is_that_of_now(machine: FakeKernel, file: int) -> None:
    snapshot = Snapshot(machine.prog, file, PAGE)
    assert snapshot.read(_ADDRESS, 8)[0] == 1
    assert snapshot.read(_ADDRESS + PAGE, 8)[0] == 2
    assert snapshot.is_full
    for number in (0, 1):
        machine.write_words(DIRECT_MAP + _ADDRESS + number * PAGE, 77)
    assert snapshot.read(_ADDRESS, 8)[0] == 1
    assert snapshot.read(_ADDRESS + PAGE, 8)[0] == 77


def test_pages_taken_at_once(machine: FakeKernel, file: int) -> None:
    frames = np.array([_FRAME, _FRAME + 1, 1 << 50])
    assert not Snapshot(machine.prog, file, 2 * PAGE).take(frames)
    snapshot = Snapshot(machine.prog, file, 4 * PAGE)
    assert snapshot.take(frames)
    machine.write_words(DIRECT_MAP + _ADDRESS + PAGE, 77)
    assert snapshot.read(_ADDRESS + PAGE, 8)[0] == 2


def test_a_fault_stays(machine: FakeKernel, file: int) -> None:
    snapshot = Snapshot(machine.prog, file, 1 << 20)
    beyond = int(machine.prog["max_pfn"]) * PAGE
    for _ in range(2):
        with pytest.raises((drgn.FaultError, ValueError)):
            snapshot.read(beyond - PAGE if beyond > PAGE else beyond, 2 * PAGE)


def test_a_capsule_of_a_changing_kernel(file: int, tmp_path: Path) -> None:
    """It gives the figures of the report, although slabs have changed before it was written."""
    kernel = kernel_with_slabs()
    target = replace(target_of(kernel), live=True)
    recording = Recording(target, snapshot=Snapshot(kernel.prog, file, 1 << 30))
    recording.take_slabs()
    made = report(Context.of(recording.target), [analyses()["slab"]])
    before = made.results["slab"].summary
    for slab in (slab for cache in kernel.caches for slab in cache.slabs):
        kernel.set(slab.struct.inuse, 0)
        kernel.write_words(slab.address, *[0] * (PAGE // 8))
    path = tmp_path / "case.capsule"
    recording.write(path, made)
    replayed = report(Context.of(open_target(path)), [analyses()["slab"]])
    after = replayed.results["slab"].summary
    assert {key: figure.value for key, figure in after.items()} == {
        key: figure.value for key, figure in before.items()
    }
    assert before["slab_bytes"].value not in (None, 0)


def test_without_room_for_all_pages_no_slabs_are_taken(file: int, tmp_path: Path) -> None:
    """What was read before is kept, and has a capsule."""
    kernel = kernel_with_slabs()
    target = replace(target_of(kernel), live=True)
    snapshot = Snapshot(kernel.prog, file, _FEW * PAGE)
    recording = Recording(target, snapshot=snapshot)
    made = report(Context.of(recording.target), [analyses()["memcgs"]])
    kept = int(recording.recorder.touched.sum())
    assert 0 < kept < _FEW
    assert not recording.take_slabs()
    assert not snapshot.is_full
    path = tmp_path / "case.capsule"
    assert recording.write(path, made).stored == kept
