# SPDX-License-Identifier: LGPL-2.1-or-later
"""The questions in FORMAT.md, asked of a store of records of the samples."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import kcensus
from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.reports import report
from kcensus.sources import open_target
from kcensus.store import dataset, layout, records
from tests.unit.store.making import ask

FORMAT = Path(layout.__file__).with_name("FORMAT.md").read_text()
QUERIES = re.findall(r"```sql\n(.*?)```", FORMAT, re.DOTALL)
(PYTHON,) = re.findall(r"```python\n(.*?)```", FORMAT, re.DOTALL)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "series"
    dataset.prepare(path)
    for name in ("sample", "sample-after"):
        wanted = [*analyses().values()]
        made = report(Context.of(open_target(name)), wanted)
        assert dataset.add(path, records.record(made, wanted, 0.0))
    return path


@pytest.fixture
def here(store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the directory of the store the current one, as the questions have it."""
    monkeypatch.chdir(store.parent)
    return store


@pytest.mark.slow
def test_growth(here: Path) -> None:
    answer = ask(QUERIES[0], here)
    assert len(answer) == 10
    # Two machines, so each has one record, and nothing grew.
    assert answer["grown_bytes"].eq(0).all()
    assert set(answer["boot"]) <= set(kcensus.history(here)["boot"])


@pytest.mark.slow
def test_utilization(here: Path) -> None:
    rows = kcensus.history(here, analysis="slab", part="summary", metric="utilization")
    assert ask(QUERIES[1], here)["utilization"].tolist() == pytest.approx([rows["value"].mean()])


@pytest.mark.slow
def test_directories(here: Path) -> None:
    expected = kcensus.dentries(open_target("sample")).tables["directories"]
    largest = expected.sort_values("negative").iloc[-1]
    answer = ask(QUERIES[2], here)
    assert len(answer) == 2
    assert answer["negative"].iloc[0] == largest["negative"]


@pytest.mark.slow
def test_findings(here: Path) -> None:
    severe: dict[str, Any] = {
        finding.id: finding.holds
        for finding in kcensus.report(open_target("sample-after")).findings
        if finding.severity >= 2
    }
    answer = ask(QUERIES[3], here)
    assert set(answer["subject"]) == set(severe)
    assert answer["holds_bytes"].is_monotonic_decreasing or len(answer) < 2


@pytest.mark.slow
def test_dying_memory_cgroups_with_pandas(here: Path) -> None:
    names: dict[str, Any] = {"DeltaTable": DeltaTable}
    exec(PYTHON, names)
    offline = names["offline"]
    expected = [
        kcensus.memcgs(open_target(name)).summary["memcgs_offline"]
        for name in ("sample", "sample-after")
    ]
    assert offline["(none)"].tolist() == expected


def test_the_format_describes_every_column() -> None:
    described = {
        name
        for line in re.findall(r"^\| (`.*?) \|", FORMAT, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", line)
    }
    assert described == set(layout.COLUMNS)
