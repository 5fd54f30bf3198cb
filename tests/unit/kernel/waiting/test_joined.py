# SPDX-License-Identifier: LGPL-2.1-or-later
"""Waits and requests that are joined by pointers, or by their sectors only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kcensus.engine.memory import Numbers
from kcensus.kernel.block.bios import Bios
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.tasks.stacks import Stacks
from kcensus.kernel.waiting import joined as joined_module
from kcensus.kernel.waiting.finders.io.xfs_logs import XfsLogs
from kcensus.kernel.waiting.joined import SAME_SECTORS, RequestPlaces, joined_with
from kcensus.kernel.waiting.waits import Waits
from tests.unit.fakekernel import FakeKernel
from tests.unit.kernel.waiting.making import waits_of, words

BUFFER, DIO, FOLIO, TASK, LOG, DISK = (
    0xFFFF_8880_0000_0000 + 0x1000 * step for step in range(1, 7)
)
_LOG_TYPES = """
struct bio 16
struct xlog_in_core 256 : 64 struct bio ic_bio
"""


def numbers(*values: int) -> Numbers:
    return np.array(values, np.int64)


def columns() -> Bios:
    """Bios of three requests: one of two bios, one of one, one of one with two pages."""
    none = words(0, 0, 0, 0)
    return Bios(
        address=none,
        group=none,
        origin_end_io=none,
        inode=words(0, 0, 0),
        request=numbers(0, 0, 1, 2),
        origin=words(0x10, 0x20, 0x30, 0x40),
        origin_private=words(0, BUFFER, DIO, 0),
        page_bio=numbers(0, 3, 3),
        page=words(0x500, FOLIO + 64, 0x600),
        folio=words(0x500, FOLIO, 0x600),
    )


def waits(*objects: tuple[WaitKind, int, str]) -> Waits:
    count = len(objects)
    stacks = Stacks(numbers(), words(), words(), np.zeros(count, np.bool_), {}, 16384)
    tasks = words(*(TASK + 8 * row for row in range(count)))
    found = waits_of(tasks, np.arange(count), [""] * count, stacks)
    for row, (kind, address, type_) in enumerate(objects):
        found.kind[row], found.object[row], found.type[row] = kind, address, type_
    return found


@pytest.fixture
def synthetic() -> Kernel:
    return Kernel(FakeKernel("6.10", _LOG_TYPES).prog)


PLACES = RequestPlaces(words(DISK, DISK, DISK), numbers(100, 200, 300), numbers(8, 8, 8))


def test_pointers_prove_a_join(synthetic: Kernel) -> None:
    known = waits(
        (WaitKind.XFS_BUF, BUFFER, "struct xfs_buf"),
        (WaitKind.REQUEST, DIO, "struct iomap_dio"),
        (WaitKind.FOLIO, FOLIO, "struct folio"),
        (WaitKind.TAG, 0x99, "struct sbitmap_queue"),
        (WaitKind.XFS_BUF, BUFFER, "struct xfs_buf"),
    )
    found = joined_with(synthetic, known, columns(), PLACES)
    # The folio is one page of a bio that begins in its middle; nothing leads to the tag's request.
    assert found.wait.tolist() == [0, 1, 2, 4]
    assert found.request.tolist() == [0, 1, 2, 0]
    assert found.is_proven.all()
    assert found.evidence[2] == "bio_vec.bv_page"
    # Without a wait, or a bio.
    none, rows = words(), numbers()
    empty = Bios(none, rows, none, none, none, none, none, rows, none, none)
    places = RequestPlaces(words(), numbers(), numbers())
    assert len(joined_with(synthetic, waits(), columns(), PLACES)) == 0
    assert len(joined_with(synthetic, waits((WaitKind.FOLIO, FOLIO, "")), empty, places)) == 0


def test_a_bio_may_name_the_task_and_be_within_a_log_buffer(synthetic: Kernel) -> None:
    origin = words(0x10, 0x20, LOG + 64, 0x40)
    bios = replace(columns(), origin_private=words(0, 0, 0, TASK), origin=origin)
    known = waits((WaitKind.REQUEST, 0, ""), (WaitKind.LOG, LOG, "struct xlog_in_core"))
    found = joined_with(synthetic, known, bios, PLACES, XfsLogs.bios)
    assert (found.request.tolist(), found.is_proven.tolist()) == ([2, 1], [True, True])
    assert found.evidence[1] == "xlog_in_core.ic_bio"


def test_the_same_sectors_are_only_likely(synthetic: Kernel) -> None:
    unknown, other = (WaitKind.XFS_BUF, 0x77, "struct xfs_buf"), 0x78
    known = waits(unknown, (WaitKind.XFS_BUF, other, "struct xfs_buf"), unknown)
    known.disk[:], known.sectors[:] = words(DISK, DISK, 0x55), 8
    # The first one overlaps the end of a request, the second begins behind another one.
    known.sector[:] = numbers(207, 308, 200)
    found = joined_with(synthetic, known, columns(), PLACES)
    assert (found.wait.tolist(), found.request.tolist()) == ([0], [1])
    assert found.evidence == [SAME_SECTORS]
    assert not found.is_proven.any()


def test_many_tasks_behind_many_bios_are_bounded(
    synthetic: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 40
    known = waits(*[(WaitKind.XFS_BUF, BUFFER, "struct xfs_buf")] * count)
    known.disk[:], known.sector[:], known.sectors[:] = DISK, 100, 8
    bios = replace(
        columns(),
        request=np.repeat(np.arange(count), 3),
        origin=np.zeros(3 * count, np.uint64),
        origin_private=np.full(3 * count, BUFFER, np.uint64),
        page_bio=numbers(),
        page=words(),
        folio=words(),
    )
    disk = np.full(count, DISK, np.uint64)
    places = RequestPlaces(disk, np.full(count, 100), np.full(count, 8))
    found = joined_with(synthetic, known, bios, places)
    # The three bios of a request are one join.
    assert (len(found), found.dropped) == (count * count, 0)
    monkeypatch.setattr(joined_module, "_MAX_PAIRS", 200)
    found = joined_with(synthetic, known, bios, places)
    assert (len(found), found.dropped) == (200, count * count - 200)
    assert np.unique(found.wait).tolist() == list(range(count))
    # So are the pairs of the same sectors.
    found = joined_with(synthetic, known, replace(bios, origin_private=disk), places)
    assert len(found) == 200
    assert not found.is_proven.any()


def test_sectors_against_all_pairs(synthetic: Kernel) -> None:
    choice = np.random.default_rng(7)
    known = waits(*[(WaitKind.XFS_BUF, 0x77, "struct xfs_buf")] * 60)
    known.disk[:], known.sector[:] = DISK, choice.integers(0, 2000, 60)
    known.sectors[:] = choice.integers(1, 40, 60)
    # One request is far longer than the others, and one has no sectors.
    length = choice.integers(1, 40, 50)
    length[7], length[9] = 900, 0
    start = choice.integers(0, 2000, 50)
    places = RequestPlaces(np.full(50, DISK, np.uint64), start, length)
    empty = replace(columns(), page_bio=numbers(), page=words(), folio=words())
    found = joined_with(synthetic, known, replace(empty, origin_private=words(1, 2, 3, 4)), places)
    expected = [
        (wait, request)
        for wait in range(60)
        for request in range(50)
        if length[request]
        and start[request] < known.sector[wait] + known.sectors[wait]
        and known.sector[wait] < start[request] + length[request]
    ]
    assert list(zip(found.wait.tolist(), found.request.tolist(), strict=True)) == expected
