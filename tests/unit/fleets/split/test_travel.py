# SPDX-License-Identifier: LGPL-2.1-or-later
"""Functions of tasks go to another program, and come back as results and filled rows."""

from __future__ import annotations

import pickle
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
