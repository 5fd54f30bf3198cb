# SPDX-License-Identifier: LGPL-2.1-or-later
"""Waits and requests that are joined by pointers, or by their sectors only."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest

from kcensus.engine.memory import Words
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.tasks.functions import WaitKind
from kcensus.kernel.tasks.joined import SAME_SECTORS, RequestPlaces, joined, rows_of_tags
from kcensus.kernel.tasks.stacks import Stacks
from kcensus.kernel.tasks.waits import Waits
from tests.unit.fakekernel import FakeKernel, add_types

Numbers = npt.NDArray[np.int64]

BUFFER, DIO, FOLIO, TASK, LOG, DISK = (
    0xFFFF_8880_0000_0000 + 0x1000 * step for step in range(1, 7)
)
_LOG_TYPES = {
    "struct bio": (16, ""),
    "struct xlog_in_core": (256, "64 struct bio ic_bio"),
}


def words(*values: int) -> Words:
    return np.array(values, np.uint64)


def numbers(*values: int) -> Numbers:
    return np.array(values, np.int64)


@dataclass
class Columns:
    """Bios of three requests: one of two bios, one of one, one of one with two pages."""

    request: Numbers
    origin: Words
    origin_private: Words
    page_bio: Numbers
    page: Words
    folio: Words


def columns() -> Columns:
    return Columns(
        request=numbers(0, 0, 1, 2),
        origin=words(0x10, 0x20, 0x30, 0x40),
        origin_private=words(0, BUFFER, DIO, 0),
        page_bio=numbers(0, 3, 3),
        page=words(0x500, FOLIO + 64, 0x600),
        folio=words(0x500, FOLIO, 0x600),
    )


def waits(*objects: tuple[WaitKind, int, str]) -> Waits:
    """Tasks that wait for objects; the n-th one is at ``TASK + 8 * n``."""
    count = len(objects)
    none, zero = np.full(count, -1), np.zeros(count, np.uint64)
    empty = Stacks(numbers(), words(), words(), np.zeros(count, np.bool_), {}, 16384)
    return Waits(
        task=words(*(TASK + 8 * row for row in range(count))),
        pid=np.arange(count),
        comm=["io"] * count,
        function=[""] * count,
        entry=[""] * count,
        kind=[kind for kind, _, _ in objects],
        object=words(*(address for _, address, _ in objects)),
        type=[type_ for _, _, type_ in objects],
        evidence=[""] * count,
        holder=zero,
        device=none,
        disk=zero.copy(),
        sector=none.copy(),
        sectors=np.zeros(count, np.int64),
        inode=zero,
        offset=none,
        since_ns=none,
        stacks=empty,
    )


@pytest.fixture
def synthetic() -> Kernel:
    k = FakeKernel("6.10")
    add_types(k.prog, _LOG_TYPES, "log")
    return Kernel(k.prog)


PLACES = RequestPlaces(words(DISK, DISK, DISK), numbers(100, 200, 300), numbers(8, 8, 8))


def test_pointers_prove_a_join(synthetic: Kernel) -> None:
    known = waits(
        (WaitKind.XFS_BUF, BUFFER, "struct xfs_buf"),
        (WaitKind.REQUEST, DIO, "struct iomap_dio"),
        (WaitKind.FOLIO, FOLIO, "struct folio"),
        (WaitKind.TAG, 0x99, "struct sbitmap_queue"),
        (WaitKind.XFS_BUF, BUFFER, "struct xfs_buf"),
    )
    found = joined(synthetic, known, columns(), PLACES)
    # The folio is one page of a bio that begins in its middle; nothing leads to the tag's request.
    assert found.wait.tolist() == [0, 1, 2, 4]
    assert found.request.tolist() == [0, 1, 2, 0]
    assert found.is_proven.all()
    assert found.evidence[2] == "bio_vec.bv_page"


def test_a_bio_may_name_the_task_itself(synthetic: Kernel) -> None:
    bios = replace(columns(), origin_private=words(0, 0, 0, TASK))
    found = joined(synthetic, waits((WaitKind.REQUEST, 0, "")), bios, PLACES)
    assert found.request.tolist() == [2]
    assert found.is_proven.tolist() == [True]


def test_a_log_buffer_has_its_bio_within(synthetic: Kernel) -> None:
    bios = replace(columns(), origin=words(0x10, 0x20, LOG + 64, 0x40))
    known = waits((WaitKind.LOG, LOG, "struct xlog_in_core"))
    found = joined(synthetic, known, bios, PLACES)
    assert found.request.tolist() == [1]
    assert found.evidence == ["xlog_in_core.ic_bio"]


def test_the_same_sectors_are_only_likely(synthetic: Kernel) -> None:
    unknown, other = (WaitKind.XFS_BUF, 0x77, "struct xfs_buf"), 0x78
    known = waits(unknown, (WaitKind.XFS_BUF, other, "struct xfs_buf"), unknown)
    known.disk[:], known.sectors[:] = words(DISK, DISK, 0x55), 8
    # The first one overlaps the end of a request, the second begins behind another one.
    known.sector[:] = numbers(207, 308, 200)
    found = joined(synthetic, known, columns(), PLACES)
    assert (found.wait.tolist(), found.request.tolist()) == ([0], [1])
    assert found.evidence == [SAME_SECTORS]
    assert not found.is_proven.any()


@pytest.mark.parametrize("is_pointer", [False, True])
def test_tags_by_their_bitmaps(is_pointer: bool) -> None:
    k = FakeKernel("6.10")
    kind = "struct sbitmap_queue *" if is_pointer else "struct sbitmap_queue"
    members = f"64 {kind} bitmap_tags\n128 {kind} breserved_tags"
    types = {"struct sbitmap_queue": (48, ""), "struct blk_mq_tags": (192, members)}
    add_types(k.prog, types, "tags")
    tags = [k.alloc("struct blk_mq_tags") for _ in range(2)]
    bitmaps = [int(each.address_) + 64 for each in tags]
    reserved = int(tags[1].address_) + 128
    if is_pointer:
        bitmaps, reserved = [0x1000, 0x2000], 0x3000
        for each, bitmap in zip(tags, bitmaps, strict=True):
            k.set(each.bitmap_tags, bitmap)
        k.set(tags[1].breserved_tags, reserved)
    addresses = words(*(int(each.address_) for each in tags))
    asked = words(bitmaps[1], 0x77, bitmaps[0], reserved)
    assert rows_of_tags(Kernel(k.prog), asked, addresses).tolist() == [1, -1, 0, 1]


def test_no_wait_and_no_bio(synthetic: Kernel) -> None:
    none = Columns(numbers(), words(), words(), numbers(), words(), words())
    places = RequestPlaces(words(), numbers(), numbers())
    assert len(joined(synthetic, waits(), columns(), PLACES)) == 0
    assert len(joined(synthetic, waits((WaitKind.FOLIO, FOLIO, "")), none, places)) == 0
