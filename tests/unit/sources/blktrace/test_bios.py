# SPDX-License-Identifier: LGPL-2.1-or-later
"""Events become bios and requests, whatever happens to them."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from kcensus.sources.blktrace.bios import NEVER, Bios, pair
from kcensus.sources.blktrace.events import DISCARD
from kcensus.sources.blktrace.files import read_trace
from tests.unit.sources.blktrace.recorded import READ, WRITE, Event, life, packed

PASSTHROUGH = 1 << 9


def paired(directory: Path, made: list[Event]) -> Bios:
    made = sorted(made, key=lambda each: each.time)
    (directory / "x.blktrace.0").write_bytes(packed(made))
    return pair(read_trace(str(directory / "x")))


def rows(bios: Bios) -> dict[tuple[int, int], tuple[int, ...]]:
    columns = (bios.got, bios.merged, bios.inserted, bios.dispatched, bios.issued, bios.completed)
    return {
        (int(bios.queued[row]), int(bios.sector[row])): tuple(int(each[row]) for each in columns)
        for row in range(len(bios))
    }


def test_a_request_has_the_times_of_its_events(tmp_path: Path) -> None:
    bios = paired(tmp_path, life(64, 0, 1, 2, 30, 40, flags=WRITE, pid=7, error=-5))
    assert rows(bios) == {(0, 64): (1, NEVER, 2, 30, 30, 40)}
    assert (bios.bytes[0], bios.pid[0], bios.error[0], bios.requeues[0]) == (4096, 7, -5, 0)
    # A requeued request left the scheduler once, and is issued again.
    bios = paired(tmp_path, life(0, 0, 1, 2, 3, 4, 5, 6, letters="QGIDRDC"))
    assert rows(bios) == {(0, 0): (1, NEVER, 2, 3, 5, 6)}
    assert bios.requeues.tolist() == [1]


def test_a_merged_bio_is_not_completed_by_a_request_that_ends_inside_of_it(tmp_path: Path) -> None:
    made = [*life(100, 0, 1), *life(108, 2, 3, letters="QM", sectors=16)]
    made += life(100, 7, 8, letters="DC", sectors=12)
    assert rows(paired(tmp_path, made))[2, 108][-1] == NEVER
    # Nor is it dispatched by a request of another direction.
    made = [*life(0, 0, 1, flags=WRITE), *life(8, 2, 3, letters="QM", flags=WRITE)]
    made += [Event("I", 4, 0, 16, flags=WRITE), *life(0, *range(10, 15), sectors=16)]
    assert rows(paired(tmp_path, made))[2, 8] == (NEVER, 3, NEVER, NEVER, NEVER, NEVER)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("far", [1 << 20, (1 << 48) - 4096])
def test_requests_that_are_merged_share_what_follows(
    tmp_path: Path, devices: int, far: int
) -> None:
    """The elevator merges three of them, of which the last one has a bio that was merged.

    :param far: a sector; places of large ones do not fit into numbers with their rows
    """
    made = [*life(0, 0, 1, 2, flags=WRITE), *life(8, 10, 11, 12, flags=WRITE)]
    made += life(16, 20, 21, flags=WRITE) + life(24, 22, 23, letters="QM", flags=WRITE)
    made.append(Event("I", 24, 16, 16, flags=WRITE))
    made += life(0, 30, 40, 50, 60, letters="DRDC", sectors=32, flags=WRITE)
    made += life(8, 70, 71, 72, 73, 74, flags=WRITE)
    made += life(8, 35, 36, 37, 38, 39)  # another direction
    made += [*life(8, 0, 1, 2, device=1 << 20)] * (devices - 1)
    others = {(step, far + 8 * step): (101, NEVER, 102, 103, 103, 104) for step in range(100)}
    for step in range(100):
        made += life(far + 8 * step, step, 101, 102, 103, 104)
    bios = paired(tmp_path, made)
    assert rows(bios) == {
        **others,
        (0, 0): (1, NEVER, 2, 30, 50, 60),
        (10, 8): (11, NEVER, 12, 30, 50, 60),
        (20, 16): (21, NEVER, 24, 30, 50, 60),
        (22, 24): (NEVER, 23, NEVER, 30, 50, 60),
        (70, 8): (71, NEVER, 72, 73, 73, 74),
        (35, 8): (36, NEVER, 37, 38, 38, 39),
        **({(0, 8): (1, NEVER, 2, NEVER, NEVER, NEVER)} if devices > 1 else {}),
    }
    assert (bios.orphans, int(bios.is_lost.sum())) == (0, 0)
    assert bios.requeues[bios.issued == 50].tolist() == [1, 1, 1, 1]
    # The last one has the event of its merge.
    assert sorted(bios.sector[bios.is_absorbed].tolist()) == [8, 16]


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ([*life(0, 20, 21, 22, 23, 24, sectors=16)], "it was inserted with these sectors"),
        ([*life(0, 11, 11, letters="DC", sectors=16)], "it was dispatched before"),
        ([*life(0, 20, 21, letters="DC", sectors=12)], "it ends inside of the other one"),
        (
            [Event("M", 11, 16), Event("I", 13, 8, 16), *life(0, 20, 21, letters="DC", sectors=20)],
            "it ends inside of the bios that were merged into the other one",
        ),
        ([*life(0, 20, 21, letters="DC", sectors=16, flags=READ)], "it is a read"),
    ],
)
def test_a_request_that_is_passed_is_not_merged(
    tmp_path: Path, others: list[Event], why: str
) -> None:
    made = [*life(8, 9, 10, 12, flags=WRITE), Event("P", 0, flags=0)]
    for each in others:
        each.flags = READ if why == "it is a read" else WRITE
    times = rows(paired(tmp_path, [*made, *others]))[9, 8]
    assert times[-3:] == (NEVER, NEVER, NEVER), why


def test_a_request_takes_nothing_of_the_next_one_at_its_sector(tmp_path: Path) -> None:
    """The first one's events are lost; what follows could be of either one."""
    made = [*life(8, 0, 1, 2), *life(8, 30, 31, 32, 40)]
    made += life(0, 35, 36, letters="DC", sectors=16)
    assert rows(paired(tmp_path, made))[30, 8] == (31, NEVER, 32, 40, 40, NEVER)


def test_the_rests_of_a_split_bio_are_bios(tmp_path: Path) -> None:
    first, second = (struct.pack(">Q", sector) for sector in (16, 24))
    made = [Event("Q", 0, 0, 32), Event("X", 1, 0, 16, payload=first), *life(0, 2, letters="G")]
    made += [Event("X", 3, 16, 8, payload=second), Event("I", 4, 0, 16)]
    for sector in (16, 24):
        made += life(sector, 5, 6, 7, 8, letters="GIDC", sectors=8)
    made += [Event("D", 9, 0, 16), Event("C", 10, 0, 16)]
    bios = paired(tmp_path, made)
    assert rows(bios) == {
        (0, 0): (2, NEVER, 4, 9, 9, 10),
        (0, 16): (5, NEVER, 6, 7, 7, 8),
        (0, 24): (5, NEVER, 6, 7, 7, 8),
    }
    sizes = dict(zip(bios.sector.tolist(), (bios.bytes >> 9).tolist(), strict=True))
    assert sizes == {0: 16, 16: 8, 24: 8}


def test_bios_at_one_sector_at_once_are_told_apart_in_turn(tmp_path: Path) -> None:
    made = [each for step in range(3) for each in life(0, *range(step, 50, 10))]
    assert rows(paired(tmp_path, made)) == {
        (step, 0): (10 + step, NEVER, 20 + step, 30 + step, 30 + step, 40 + step)
        for step in range(3)
    }
    # A lost completion does not shift those that follow.
    made = life(0, 0, 1, 2, 3)  # without C
    for step in range(1, 4):
        made += life(0, *(10 * step + each for each in range(5)))
    bios = paired(tmp_path, made)
    assert bios.is_lost.tolist() == [True, False, False, False]
    assert rows(bios)[30, 0] == (31, NEVER, 32, 33, 33, 34)


def test_an_orphan_at_the_next_sector_does_not_end_a_turn(tmp_path: Path) -> None:
    """Bios overlap at both sectors; of the first one, a completion is lost."""
    made = [*life(0, 0, 1, letters="QG"), *life(0, 10, 11, 12, 13, 14)]
    made += [*life(100, 5, letters="C"), *life(100, 20, 21, letters="QG")]
    made += life(100, 30, 31, 32, 33, 34)
    times = rows(paired(tmp_path, made))
    for sector, first in ((0, 0), (100, 20)):
        assert times[first, sector] == (first + 1, *[NEVER] * 5)
        whole = (first + 11, NEVER, first + 12, first + 13, first + 13, first + 14)
        assert times[first + 10, sector] == whole


def test_events_before_the_trace_and_without_data_are_counted(tmp_path: Path) -> None:
    made = [*life(0, 3, 4, letters="DC"), *life(8, 3, letters="C"), Event("Q", 5, 0, 0)]
    made += [*life(16, 6, 7, flags=READ | PASSTHROUGH), Event("Q", 8, 1 << 60)]
    bios = paired(tmp_path, [*made, *life(24, 0, 1, 2)])
    assert (len(bios), bios.orphans, bios.flushes) == (2, 2, 1)
    assert (bios.passthrough, bios.unpaired) == (2, 1)
    # A second completion has no bio.
    bios = paired(tmp_path, [*life(0, 0, 1, 2, 3, 4), *life(0, 5, 6, letters="DC")])
    assert (bios.completed.tolist(), bios.orphans) == ([4], 2)


@pytest.mark.parametrize(
    ("letters", "expected"),
    [
        ("DC", [(NEVER, 1, 1, 2)]),
        ("DCDC", [(NEVER, 1, 1, 2), (NEVER, 3, 3, 4)]),
        ("DRDC", [(NEVER, 1, 3, 4)]),
        ("RIDC", [(2, 3, 3, 4)]),
        ("DDC", [(NEVER, 1, 1, NEVER), (NEVER, 2, 2, 3)]),
        ("DIDC", [(NEVER, 1, 1, NEVER), (2, 3, 3, 4)]),
        ("D", [(NEVER, 1, 1, NEVER)]),
        ("IC", [(1, NEVER, NEVER, 2)]),
        *((letter, []) for letter in "CRGMX"),
    ],
)
def test_requests_begin_with_the_first_event_that_was_recorded(
    tmp_path: Path, letters: str, expected: list[tuple[int, ...]]
) -> None:
    """As with ``blktrace -a issue -a complete``."""
    made = [Event("P", 0, flags=0), *life(8, *range(1, 1 + len(letters)), letters=letters)]
    bios = paired(tmp_path, made)
    columns = (bios.inserted, bios.dispatched, bios.issued, bios.completed)
    assert [*zip(*(column.tolist() for column in columns), strict=True)] == expected
    assert (bios.queued == NEVER).all()
    assert (bios.pid == 0).tolist() == [times[0] == NEVER for times in expected]
    starts = sum(times[0] == NEVER and times[1] != NEVER for times in expected)
    assert bios.orphans == starts + (letters == "C")


@pytest.mark.parametrize("dispatched", [[], [200, 201]])
@pytest.mark.parametrize("devices", [1, 2])
def test_directions_do_not_mix(tmp_path: Path, dispatched: list[int], devices: int) -> None:
    """A write waits at a sector, where a read and a discard come and go."""
    made = life(8, 0, 1, 2, *dispatched, flags=WRITE)
    made += [*life(8, 10, 11, 12, 13, 14), *life(8, 20, 21, 22, 23, 24, flags=WRITE | DISCARD)]
    made += [*life(8, 50, 51, 52, 53, 54, device=1 << 20)] * (devices - 1)
    bios = paired(tmp_path, made)
    left, done = dispatched or [NEVER, NEVER]
    others = {(50, 8): (51, NEVER, 52, 53, 53, 54)}
    assert rows(bios) == {
        (0, 8): (1, NEVER, 2, left, left, done),
        (10, 8): (11, NEVER, 12, 13, 13, 14),
        (20, 8): (21, NEVER, 22, 23, 23, 24),
        **(others if devices > 1 else {}),
    }
    assert not bios.is_lost.any()


@pytest.mark.ends
@pytest.mark.parametrize("seed", range(25))
def test_random_requests_are_what_they_were_made_as(tmp_path: Path, seed: int) -> None:
    """Requests of one to six bios, merged at both ends, on few sectors, of several disks."""
    chance = random.Random(seed)
    made, clock = list[Event](), 0
    truth: dict[tuple[int, int], tuple[int, ...]] = {}
    free_at: dict[tuple[int, int], int] = {}
    for _ in range(400):
        clock += chance.randrange(1, 50)
        device, base = chance.randrange(1, 4) << 20, 1000 * chance.randrange(12)
        clock = max(clock, free_at.get((device, base), 0) + 1)
        first, last = base + 480, base + 488
        time = clock
        bios = [(time, first, "G", time + 1)]
        for _ in range(chance.choice([0, 0, 1, 5])):
            time += chance.randrange(2, 9)
            is_front = chance.random() < 0.5
            first, last = first - 8 * is_front, last + 8 * (not is_front)
            bios.append((time, *((first, "F") if is_front else (last - 8, "M")), time + 1))
        inserted, dispatched, completed = time + 5, time + 9, time + chance.randrange(11, 900)
        free_at[device, base] = completed
        for queued, sector, letter, moment in bios:
            made += life(sector, queued, moment, letters=f"Q{letter}", device=device)
            is_merged = letter != "G"
            truth[queued, (device << 12) + sector] = (
                NEVER if is_merged else moment,
                moment if is_merged else NEVER,
                inserted if sector == first else NEVER,
                dispatched,
                dispatched,
                completed,
            )
        moments, sectors = (inserted, dispatched, completed), last - first
        made += life(first, *moments, letters="IDC", sectors=sectors, device=device)
    found = paired(tmp_path, [Event("P", 0, flags=0), *made])
    found.sector = found.sector + (found.device.astype("int64") << 12)
    assert rows(found) == truth
    assert not found.is_lost.any()
