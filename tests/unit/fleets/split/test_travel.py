# SPDX-License-Identifier: LGPL-2.1-or-later
"""Functions of tasks go to another program, and come back as results and filled rows."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import drgn
import numpy as np
import pytest

from kcensus.engine.workers import Columns
from kcensus.fleets.split import identity, travel

_TYPES: dict[str, np.dtype[Any]] = {"few": np.dtype(np.uint16), "many": np.dtype(np.int64)}


def test_a_program_stays_at_home() -> None:
    here, there = drgn.Program(), drgn.Program()
    work, columns = travel.unpacked(travel.packed(lambda task: (here, task))[0], there)
    assert work(3) == (there, 3)
    assert columns == []


def test_rows_that_tasks_fill_come_back() -> None:
    out = Columns(_TYPES, 12, shared=True)
    same = out["few"]

    def work(task: int) -> int:
        rows = np.array([task, task + 4])
        out["few"][rows] = task + 1
        out["many"][8 + task : 9 + task][...] = -task
        assert same is out["few"]
        return 10 * task

    content, columns = travel.packed(work)
    assert len(columns) == 2
    done, theirs = travel.unpacked(content, drgn.Program())
    for tasks in (range(2, 4), range(2)):  # in any order
        assert travel.taken(travel.answer(done, theirs, tasks), columns) == [
            10 * task for task in tasks
        ]
    assert out["few"].tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 0, 0, 0, 0]
    assert out["many"].tolist() == [0] * 8 + [0, -1, -2, -3]


def test_filled_columns_travel_with_their_values() -> None:
    out = Columns(_TYPES, 4, shared=True)
    out["few"][1] = 7
    content, columns = travel.packed(lambda task: int(out["few"][task]) + int(out["many"][task]))
    assert [each is out["many"] for each in columns] == [True]
    work, _ = travel.unpacked(content, drgn.Program())
    assert [work(task) for task in range(4)] == [0, 7, 0, 0]


def _masked(out: Columns) -> None:
    out["few"][np.arange(12) % 3 == 1] = 5


def _copied(out: Columns) -> None:
    np.copyto(out["few"][2:9], 7)


@pytest.mark.parametrize("fill", [_masked, _copied])
def test_ways_to_fill_columns(fill: Callable[[Columns], None]) -> None:
    out, expected = (Columns(_TYPES, 12, shared=True) for _ in range(2))
    content, columns = travel.packed(lambda task: fill(out))
    work, theirs = travel.unpacked(content, drgn.Program())
    travel.taken(travel.answer(work, theirs, range(1)), columns)
    fill(expected)
    assert out["few"].tolist() == expected["few"].tolist() != [0] * 12


def _whole(out: Columns) -> None:
    np.copyto(out["few"], 7, where=np.arange(12) > 3)


def _summed(out: Columns) -> None:
    np.add(out["few"], np.uint16(1), out=out["few"])


def _flat(out: Columns) -> None:
    out["few"].reshape(4, 3)[0] = 1


def _again(out: Columns) -> None:
    out["many"][3] = 1


@pytest.mark.parametrize("fill", [_whole, _summed, _flat, _again])
def test_what_would_be_lost_raises(fill: Callable[[Columns], None]) -> None:
    out = Columns(_TYPES, 12, shared=True)
    out["many"][0] = 1
    work, theirs = travel.unpacked(travel.packed(lambda task: fill(out))[0], drgn.Program())
    with pytest.raises(ValueError, match="read-only"):
        travel.answer(work, theirs, range(1))


def test_what_has_no_name_does_not_travel() -> None:
    prog = drgn.Program(drgn.host_platform)
    struct = drgn.Object(prog, prog.struct_type(None, 4, ()), address=0)
    with pytest.raises(pickle.PicklingError):
        travel.packed(lambda task: struct)


def test_identity_is_of_size_and_content(tmp_path: Path) -> None:
    path = tmp_path / "vmcore"
    digests = set()
    for content in (b"", b"a", b"a" * 5_000_000, b"a" * 4_999_999 + b"b"):
        path.write_bytes(content)
        digests.add(identity((str(path),))[str(path)])
    assert len(digests) == 4
