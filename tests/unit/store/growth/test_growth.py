# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus trend`` and ``kcensus.trend()``: what they say, and how they fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import kcensus
from kcensus.cli import main
from kcensus.commands import Exit
from kcensus.explain import explanation
from kcensus.render.terminal import write_terminal
from kcensus.results import Danger, Severity
from kcensus.store.growth import BLOCKS, LETTERS, course, growth
from kcensus.store.growth.chart import HEIGHT, chart
from kcensus.store.layout import bounded_host
from kcensus.store.trends import trends
from kcensus.text import printable
from tests.unit.store import histories
from tests.unit.store.histories import DENTRY, GIB, MEMCG_IDS, NEGATIVE, SLAB, history, write_store
from tests.unit.store.test_statistics import scatter

pytestmark = pytest.mark.ends

_DAY = 86400.0
_HOSTILE = "<b>\x1b[31m‮db\n1"


def growing(host: str = "db1", start: str = "2026-01-01T00:00Z") -> pd.DataFrame:
    """The history of a host whose slab fills 8 GiB in a day, or half of it; most is dentries."""
    random = np.random.default_rng(0)
    grown = 20e6 * np.arange(60)
    return history(
        {
            SLAB: GIB + grown + random.normal(0, 1e6, 60),
            DENTRY: GIB / 2 + 0.9 * grown + random.normal(0, 1e6, 60),
            NEGATIVE: 1000 + random.normal(0, 10, 60).round(),
            MEMCG_IDS: np.full(60, 100),
        },
        host=host,
        start=start,
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("growing") / "store", growing())


def test_finding_of_what_fills_ram() -> None:
    result = growth(growing(), "store")
    assert {key: figure.value for key, figure in result.summary.items()} == {
        "growing": 2, "grew": 0, "shrinking": 0, "no_trend": 2, "too_few_points": 0,
        "hosts": 1, "boots": 1, "records": 60, "span_seconds": 59 * 300,
    }  # fmt: skip
    finding = result.findings[0]
    assert [each.id for each in result.findings] == ["reaches-limit:db1:RAM"]
    assert (finding.severity, finding.danger) == (Severity.CRITICAL, Danger.OOM)
    figures = {key: figure.value for key, figure in finding.figures.items()}
    low, high = (float(figures[f"rate_per_day_{end}"] or 0) for end in ("low", "high"))
    assert low <= 20e6 * 288 <= high
    assert "of dentry" in finding.evidence
    assert explanation(finding.id) is not None
    tables = result.tables
    frame = tables["growing"].frame
    # One growth: the cache is a part of the slab memory.
    (both,) = tables["growths"].frame.to_dict("records")
    assert (both["growth"], both["leader"], both["series"]) == ("slab memory", "slab.slab_bytes", 2)
    assert both["parts"].startswith("dentry ")
    assert [*frame["metric"]] == ["slab.slab_bytes", "slab.caches.bytes"]
    assert [*frame["subject"]] == ["", "dentry"]
    row = frame.iloc[0]
    assert row["rate_per_day_low"] < row["rate_per_day"] < row["rate_per_day_high"]
    assert row["limit_seconds_earliest"] < row["limit_seconds"] < row["limit_seconds_latest"]
    assert (row["limit"], row["limit_value"], row["points"]) == ("RAM", 8 * GIB, 60)
    assert [*tables["steady"].frame["state"]] == ["no trend", "no trend"]
    assert tables["boots"].frame["records"].tolist() == [60]


def test_a_host_that_is_recorded_no_more_is_a_finding(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trend", str(store), "--json", "--fail-on", "warning"]) == Exit.FINDING
    document = json.loads(capsys.readouterr().out)
    found = {each["id"]: each for each in document["findings"]}
    assert {*found} == {"host-silent", "reaches-limit:db1:RAM"}
    assert {each["severity"] for each in found.values()} == {"warning"}
    # Its limit was due long ago.
    reached = found["reaches-limit:db1:RAM"]
    assert reached["figures"]["limit_seconds"]["value"] == 0
    assert re.fullmatch(
        r"db1: slab memory grew by [\d.]+ MiB/h, and all of RAM \(2[.]1 GiB of 8[.]0 GiB\) was due"
        r" 2026-01-02 07:\d\d \(last record 2026-01-01 04:55 UTC\)",
        reached["title"],
    )


def test_a_host_with_dumps_only_is_a_gap() -> None:
    now = pd.Timestamp("2026-01-20", tz="UTC").timestamp()
    result = growth(growing().assign(live=False), "store", now=now)
    assert [each.severity for each in result.findings] == [Severity.NOTICE]
    assert [each.what for each in result.gaps] == ["hosts"]
    assert "2026-01-02 07:" in result.findings[0].title


def test_the_first_limit_comes_first_and_times_count_from_now() -> None:
    now = pd.Timestamp("2026-01-03", tz="UTC").timestamp()
    late = growing("late", "2026-01-02T19:05Z")
    early = growing("early", "2026-01-02T12:00Z")
    result = growth(pd.concat([late, early]), "store", now=now)
    assert [*result.tables["growths"].frame["host"]] == ["early", "late"]
    assert [each.id for each in result.findings] == [
        "host-silent", "reaches-limit:early:RAM", "reaches-limit:late:RAM",
    ]  # fmt: skip
    early_left, late_left = (each.figures["limit_seconds"].value for each in result.findings[1:])
    assert float(late_left or 0) - float(early_left or 0) == pytest.approx(7 * 3600 + 300, abs=5)


def test_the_day_to_act_before_is_the_earliest_of_all_growths() -> None:
    memory: histories.Key = ("memcgs", "summary", "offline_bytes", "", "bytes")
    grown, random = 20e6 * np.arange(60), np.random.default_rng(0)
    rows = history({memory: GIB + grown, SLAB: GIB + 0.95 * grown + random.normal(0, 9e7, 60)})
    result = growth(rows, "store")
    (finding,) = result.findings
    first = min(result.tables["growths"].frame["earliest"])
    assert f"before {first}" in finding.remedies[0].effect


def test_growth_of_a_boot_that_is_over_is_marked() -> None:
    values = np.r_[GIB + 20e6 * np.arange(60), np.full(3, GIB)]
    result = growth(history({SLAB: values}, boots=["a"] * 60 + ["b"] * 3), "store")
    assert (result.summary["growing"].value, result.summary["grew"].value) == (0, 1)
    row = result.tables["growing"].frame.iloc[0]
    assert (row["limit_in"], row["is_over"]) == ("boot is over", True)
    assert [each.count for each in result.gaps] == [1]
    assert result.findings == []
    # So is a name of several machines.
    gaps = growth(growing("(none)"), "store").gaps
    assert [each.what for each in gaps] == ["hosts"]
    assert growth(growing("db1"), "store").gaps == []


@pytest.mark.slow
@pytest.mark.parametrize(("share", "most"), [(0.8, Severity.NOTICE), (0.1, Severity.CRITICAL)])
def test_reclaimable_memory_is_not_urgent(share: float, most: Severity, tmp_path: Path) -> None:
    reclaimable: histories.Key = ("slab", "summary", "reclaimable_bytes", "", "bytes")
    start = (pd.Timestamp.now(tz="UTC").floor("min") - pd.Timedelta(hours=5)).isoformat()
    grown = 20e6 * np.arange(60)
    rows = history({SLAB: GIB + grown, reclaimable: GIB / 2 + share * grown}, start=start)
    (finding,) = growth(rows, "store").findings
    assert finding.severity is most
    assert finding.danger is (Danger.OOM if most is Severity.CRITICAL else Danger.NONE)
    # The same where only one metric is asked for.
    store = write_store(tmp_path / "store", rows)
    (finding,) = kcensus.trend(store, metric="slab_bytes").result.findings
    assert finding.severity is most


def test_limit_of_copies_with_one_metric(tmp_path: Path) -> None:
    in_flight: histories.Key = ("kcopyd", "snapshots", "in_flight", "dev", "count")
    threshold: histories.Key = ("kcopyd", "snapshots", "limit", "dev", "count")
    rows = history({in_flight: 1000 + 10 * np.arange(60), threshold: np.full(60, 2048)})
    store = write_store(tmp_path / "store", rows.assign(live=False))
    found = {
        (finding.id, finding.severity)
        for metric in (None, "in_flight")
        for finding in kcensus.trend(store, metric=metric).result.findings
    }
    # Tasks wait there, as they are meant to.
    assert found == {("reaches-limit:db1:snapshot_cow_threshold", Severity.NOTICE)}


@pytest.mark.slow
def test_caches_that_fill_after_a_boot_are_not_urgent() -> None:
    random = np.random.default_rng(0)
    reclaimable: histories.Key = ("slab", "summary", "reclaimable_bytes", "", "bytes")
    for count in (8, 12, 24, 40, 80):
        filled = 2e9 * (1 - np.exp(-np.arange(count) / 20)) + random.normal(0, 2e6, count)
        rows = history({SLAB: GIB + filled, reclaimable: GIB / 2 + 0.9 * filled})
        severities = [each.severity for each in growth(rows, "store").findings]
        assert max(severities, default=Severity.INFO) <= Severity.NOTICE


def test_a_sawtooth_is_no_finding() -> None:
    random = np.random.default_rng(0)
    values = GIB + (np.arange(400) % 60) * 20e6 + random.normal(0, 5e6, 400)
    assert growth(history({SLAB: values}), "store").findings == []


def test_few_points_are_at_most_a_warning() -> None:
    """They cannot show that growth slows; here it goes on, and fills RAM within the day."""
    for count, severity in ((15, Severity.WARNING), (16, Severity.CRITICAL)):
        rows = history({SLAB: GIB + 100e6 * np.arange(count) + scatter(count, 1e6)})
        (finding,) = growth(rows, "store").findings
        assert finding.severity is severity
    # Full memory is a finding in the first record.
    (finding,) = growth(history({SLAB: [7.95 * GIB]}), "store").findings
    assert finding.severity is Severity.CRITICAL
    assert finding.figures["limit_seconds"].value == 0


def test_a_host_by_the_name_that_the_kernel_has(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", growing(bounded_host(printable(_HOSTILE))))
    assert kcensus.trend(store, host=_HOSTILE).summary["growing"] == 2


@pytest.mark.parametrize("rows", [0, 3, 40])
def test_without_growth_one_sentence_says_so(rows: int) -> None:
    result = growth(history({SLAB: np.full(40, GIB)}).iloc[:rows], "store")
    assert result.findings == []
    assert result.nothing
    assert result.nothing.startswith("Nothing grows: 1 series of 1 host") == (rows == 40)


def test_course_shows_the_shape() -> None:
    trend = trends(history({SLAB: np.minimum(np.arange(48), 24) * 1e6})).all[0]
    shown = course(trend)
    assert (shown[0], shown[-1], len(shown)) == (BLOCKS[0], BLOCKS[-1], 12)
    assert [*shown] == sorted(shown)
    assert {*course(trend, LETTERS)} <= {*LETTERS}


@pytest.mark.parametrize("levels", [BLOCKS, LETTERS])
def test_a_chart_shows_records_trend_and_limit(levels: str) -> None:
    trend = trends(growing()).all[0]
    limit, *rows, times = chart(trend, lambda trend, value: f"{value:.0f}", levels)
    assert len(rows) == HEIGHT
    assert limit.split()[0] == str(8 * GIB)
    assert limit.endswith("RAM")
    # The records end below, and the trend goes to the top.
    full, point = levels[-1], "·" if levels == BLOCKS else "."
    assert full in rows[-1]
    assert full not in rows[0]
    assert rows[0].rstrip().endswith(point)
    columns = [row.index(point) for row in rows if point in row]
    assert columns == sorted(columns, reverse=True)
    assert "01-01 00:00" in times
    assert max(map(len, rows)) <= 80


def test_command_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = pd.Timestamp.now(tz="UTC").floor("min") - pd.Timedelta(hours=5)
    store = write_store(tmp_path / "store", growing(start=start.isoformat()))
    assert main(["trend", str(store), "--json", "--fail-on", "warning"]) == Exit.FINDING
    document = json.loads(capsys.readouterr().out)
    assert document["analysis"] == "trend"
    assert document["tables"]["growing"][0]["metric"] == "slab.slab_bytes"
    # A day and more are expected, and the earliest end is nearer.
    assert main(["trend", str(store), "--json", "--fail-on", "critical"]) == Exit.FINDING
    figures = json.loads(capsys.readouterr().out)["findings"][0]["figures"]
    assert figures["limit_seconds_earliest"]["value"] < _DAY < figures["limit_seconds"]["value"]


def test_command_on_a_screen(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trend", str(store)]) == Exit.DONE
    shown = capsys.readouterr().out
    assert "slab.slab_bytes" in shown
    assert "list-lru.ids_in_use" not in shown


@pytest.mark.slow
def test_every_form(store: Path, tmp_path: Path) -> None:
    outputs = {form: tmp_path / form for form in ("csv", "parquet", "html")}
    options = [word for form, path in outputs.items() for word in (f"--{form}", str(path))]
    assert main(["trend", str(store), *options]) == Exit.DONE
    table = pd.read_csv(outputs["csv"] / "growing.csv")
    assert table["limit"].tolist() == ["RAM", "RAM"]
    assert len(pd.read_parquet(outputs["parquet"] / "growing.parquet")) == 2
    page = outputs["html"].read_text()
    assert "slab.slab_bytes" in page
    assert "The way to the limits" not in page  # it has real charts


@pytest.mark.parametrize(
    "name", ["slab_bytes", "slab.slab_bytes", "slab.summary.slab_bytes", "ids_in_use"]
)
def test_one_metric(name: str, store: Path) -> None:
    result = kcensus.trend(store, metric=name).result
    (series,) = (
        row for table in ("growing", "steady") for row in result.tables[table].frame["metric"]
    )
    assert series.endswith(name.rpartition(".")[2])


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--metric", "slab.slab_byte"], "slab_bytes"),
        (["--host", "db2"], "db1"),
        (["--since", "yesterday"], "2026-01-31"),
        (["--table", "nope"], "growing"),
    ],
)
def test_wrong_options(
    options: list[str], reason: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trend", str(store), *options]) in (Exit.USAGE, Exit.TARGET)
    error = capsys.readouterr().err
    assert reason in error
    assert "Traceback" not in error


def test_since_takes_the_latest_records_only(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trend", str(store), "--json", "--since", "2026-01-01T04:00"]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["summary"]["records"] == 12
    assert main(["trend", str(store), "--json", "--since", "1d"]) == Exit.DONE
    document = json.loads(capsys.readouterr().out)
    assert document["summary"]["records"] == 0
    assert [(each["what"], each["count"]) for each in document["gaps"]] == [("hosts", 1)]


def test_what_is_not_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name in ("missing", "file", "empty"):
        assert main(["trend", str(tmp_path / name)]) == Exit.TARGET
        assert "is not a store" in capsys.readouterr().err


def test_function_takes_a_history(store: Path) -> None:
    rows = kcensus.history(store, metric="slab_bytes")
    result = kcensus.trend(rows)
    assert result.summary["growing"] == 1
    assert result.tables["growing"]["rate_per_day"].iloc[0] > 0
    assert "slab memory grew" in repr(kcensus.trend(store))


def test_hostile_names_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    rows = growing(_HOSTILE).assign(subject=_HOSTILE)
    write_terminal(growth(rows, "store"), Console(width=200), every=True)
    shown = capsys.readouterr().out
    assert not {"\x1b", "‮"} & {*shown}
    assert "\\x1b[31m" in shown


@pytest.mark.slow
def test_ascii_terminal(store: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kcensus", "trend", str(store)],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "200"},
        capture_output=True,
        check=True,
    )
    assert done.stdout.isascii()
    assert b"\\u" not in done.stdout
