# SPDX-License-Identifier: LGPL-2.1-or-later
"""A recorded trace has the figures that blkparse and btt have of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from kcensus.analyses.iosched.trace.figures import Figures
from kcensus.sources.blktrace.events import Act, Trace
from kcensus.sources.blktrace.files import read_trace
from tests.unit.sources.blktrace.recorded import averages, unpack

FORMS = {"binary": "starved", "text": "starved.txt"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("traces"), "starved")


@pytest.fixture(scope="module", params=[*FORMS.values()], ids=[*FORMS])
def trace(request: pytest.FixtureRequest, directory: Path) -> Trace:
    return read_trace(str(directory / request.param))


def test_averages_and_extremes_are_those_of_btt(trace: Trace) -> None:
    figures = Figures(trace)
    # btt calls phases of virtual disks (major 254) so, as if they were those of dm.
    compared = {"Q2G", "G2I", "Q2M", "I2D", "M2D", "D2C", "Q2Cdm"}
    seen = set()
    for phase, least, average, most, count in averages("starved.btt"):
        if phase in compared:
            seen.add(phase)
            took = figures.phase(phase.removesuffix("dm"))
            seconds = took[took >= 0] / 1e9
            assert len(seconds) == count, phase
            assert (seconds.min().round(9), seconds.max().round(9)) == (least, most)
            assert seconds.mean() == pytest.approx(average, abs=1e-9), phase
    assert seen == compared
    # Q2I is the sum of the phases of btt.
    figures, printed = Figures(trace), {row[0]: row for row in averages("starved.btt")}
    took = figures.phase("Q2I")
    total = sum(printed[phase][2] * printed[phase][4] for phase in ("Q2G", "G2I"))
    assert took[took >= 0].sum() / 1e9 == pytest.approx(total, abs=1e-6)


def test_events_are_counted_as_blkparse_prints_them(directory: Path, trace: Trace) -> None:
    lines = (directory / "starved.txt").read_text().splitlines()
    words = [line.split() for line in lines]
    printed = Counter(each[5] for each in words if len(each) > 6 and "," in each[0])
    assert {Act(action).letters: count for (_, action), count in trace.counts.items()} == printed
    assert not +trace.losses


def test_text_and_files_have_the_same_events(directory: Path) -> None:
    binary, text = (read_trace(str(directory / name)) for name in FORMS.values())
    names = ("sector", "action", "time", "bytes", "pid", "device", "cpu", "error")
    both = [pd.DataFrame({name: each.column(name) for name in names}) for each in (binary, text)]
    first, second = (each.sort_values([*names[:3]], ignore_index=True) for each in both)
    # blkparse does not print the length of U and P, nor sectors of what has none.
    shown = ~first["action"].isin((9, 10, 11))
    pd.testing.assert_frame_equal(first[shown], second[shown])
