# SPDX-License-Identifier: LGPL-2.1-or-later
"""Growths that share bytes: the memory of all analyses together, and all memory in use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import kcensus
from kcensus.analyses import analyses
from kcensus.engine.memory import Floats
from kcensus.results import MEMORY_USES, Machine, Severity
from kcensus.store.ceilings import AVAILABLE, TOGETHER, USED
from kcensus.store.growth import growth
from kcensus.store.records import record
from kcensus.store.together import together
from kcensus.store.trends import amounts
from tests.unit.store.histories import GIB, SLAB, Key, history, write_store
from tests.unit.store.making import ANALYSIS, NOON, report

pytestmark = pytest.mark.ends

_DAYS = 40
_MIB = 1 << 20
_HALF_DAY = 43200.0
_STEPS: Floats = np.arange(2.0 * _DAYS)


def summary(analysis: str, metric: str) -> Key:
    return analysis, "summary", metric, "", "bytes"


_OFFLINE = summary("memcgs", "offline_bytes")
_PER_CPU, _SHMEM = summary("memcgs", "per_cpu_bytes"), summary("memcgs", "shmem_bytes")
_FILE = summary("memcgs", "file_bytes")
_STRUCTURES = summary("memcgs", "structure_bytes")


def shared() -> dict[Key, Any]:
    """Slab memory, and offline memory cgroups whose structures are slab memory."""
    structures, per_cpu, shmem = (GIB + rate * _MIB * _STEPS for rate in (20, 5, 10))
    return {
        SLAB: GIB + structures, _STRUCTURES: structures, _PER_CPU: per_cpu, _SHMEM: shmem,
        _FILE: np.full(len(_STEPS), 7.0), _OFFLINE: structures + per_cpu + shmem + 7,
    }  # fmt: skip


def rows_of(series: dict[Key, Any], ram: int = 8 * GIB) -> pd.DataFrame:
    return history(series, step=_HALF_DAY, ram_bytes=ram)


def memory(used: Floats, ram: float = 16 * GIB) -> dict[Key, Floats]:
    """RAM by use: what is not in use is free."""
    uses = dict.fromkeys(MEMORY_USES, np.zeros(len(used)))
    uses |= {"anonymous": used, "free": ram - used, "available": ram - used, "used": used}
    return {summary("machine", f"{use}_bytes"): values for use, values in uses.items()}


def test_each_byte_counts_once() -> None:
    series = shared()
    made = together(rows_of(series))
    assert {(*kind,) for kind in made[["analysis", "metric"]].to_numpy().tolist()} == {TOGETHER}
    expected = series[SLAB] + series[_PER_CPU] + series[_SHMEM]
    assert made["value"].to_list() == pytest.approx(expected.tolist())


def test_structures_outside_of_slabs_count() -> None:
    place: Key = ("list-lru", "structures", "bytes", "arrays: ", "bytes")
    total = summary("list-lru", "structural_bytes")
    sizes = {"vmalloc": 5.0, "pages": 7.0, "kmalloc-8k": 100.0}
    named = {(*place[:3], place[3] + name, place[4]): [size] for name, size in sizes.items()}
    pages = summary("kcopyd", "page_bytes")
    rows = history({SLAB: [1000.0], total: [112.0], **named, pages: [50.0]})
    assert together(rows)["value"].to_list() == [1062.0]


def test_records_without_an_analysis_have_no_sum() -> None:
    series = shared()
    lost = series | {
        key: np.where(_STEPS == 70, np.nan, series[key]) for key in series if key != SLAB
    }
    made = together(rows_of(lost))
    assert len(made) == len(_STEPS) - 1
    # Slab memory alone is no sum.
    assert together(rows_of({SLAB: series[SLAB]})).empty
    # An analysis that was recorded once does not hide those of every day.
    once = summary("kcopyd", "total_bytes")
    few = rows_of(series | {once: np.where(_STEPS == 3, 1.0, np.nan)})
    assert len(together(few)) == len(_STEPS)


def test_the_finding_is_about_all_of_it() -> None:
    result = growth(amounts(rows_of(shared())), "store")
    growths = result.tables["growths"].frame
    assert growths["growth"].iloc[0] == "kernel memory together"
    assert {*growths["part_of"]} == {"", "kernel memory together"}
    (finding,) = result.findings
    assert finding.title.startswith("db1: kernel memory together grows")
    assert finding.figures["value"].value == pytest.approx(
        sum(shared()[key][-1] for key in (SLAB, _PER_CPU, _SHMEM))
    )
    # What fills RAM first is the sum, before each of both.
    assert growths["expected"].is_monotonic_increasing
    assert [each.reason.split(":")[0] for each in result.gaps] == [
        "no record has the memory in use"
    ]


def test_parts_are_of_the_growth_and_count_once() -> None:
    cache: Key = ("slab", "caches", "bytes", "kmalloc-4k", "bytes")
    dentries: Key = ("dentries", "directories", "negative_bytes", "/srv", "bytes")
    mount: Key = ("memcgs", "mounts", "bytes", "tmpfs: /run", "bytes")
    pin: Key = ("memcgs", "pins", "bytes", "shmem", "bytes")
    series = shared()
    more = {
        cache: series[_STRUCTURES], dentries: 3 * series[_STRUCTURES],
        mount: series[_SHMEM], pin: series[_SHMEM],
    }  # fmt: skip
    result = growth(amounts(rows_of(series | more)), "store")
    parts = result.tables["growths"].frame.set_index("growth")["parts"]
    assert parts["offline memory cgroups"] == "structures 40.0 MiB/d, shmem 20.0 MiB/d"
    assert parts["slab memory"] == "kmalloc-4k 40.0 MiB/d"
    assert parts["kernel memory together"] == "kmalloc-4k 40.0 MiB/d, shmem 20.0 MiB/d"
    assert "dentries" not in result.findings[0].evidence


def test_a_bundled_store_has_the_sum_by_name() -> None:
    found = kcensus.trend("sample-series", metric=".".join(TOGETHER)).result
    (row,) = found.tables["growing"].frame.to_dict("records")
    last = kcensus.history("sample-series", part="summary").groupby("time").get_group
    rows = last(kcensus.history("sample-series")["time"].max()).set_index(["analysis", "metric"])
    parts = [("slab", "slab_bytes"), ("memcgs", "per_cpu_bytes"), ("memcgs", "shmem_bytes")]
    whole = sum(rows["value"][part] for part in parts) + rows["value"]["memcgs", "anon_bytes"]
    assert found.tables["forecast_points"].frame.query("not is_trend")["value"].iloc[-1] == whole
    assert row["metric"] == ".".join(TOGETHER)


@pytest.mark.parametrize("name", ["sample", "sample-after", "sample-io"])
def test_it_is_the_ram_that_analyses_account_for(name: str) -> None:
    """Page cache is left out, and list_lrus are by place."""
    made = kcensus.report(name)
    uses = [
        use
        for key, result in made.results.items()
        if (ram := analyses()[key].ram if key in analyses() else None)
        for use in ram(result.result)
    ]
    accounted = sum(use.bytes for use in uses if use.is_total or not use.in_slabs)
    cache = made.results["memcgs"].result.amount("file_bytes")
    entry = record(made.report, [*analyses().values()], NOON)
    (value,) = together(entry.rows.to_pandas())["value"]
    assert value == accounted - cache


def test_a_record_has_ram_by_use() -> None:
    made = report()
    uses = {"free": 100, "page_cache": 50, "slab_reclaimable": 25, "anonymous": 800, "evil": 1}
    made.head.machine = Machine("h", NOON, ram_bytes=1000, memory=uses)
    entry = record(made, [ANALYSIS], NOON)
    rows = entry.rows.to_pandas().query("analysis == 'machine'").set_index("metric")
    assert rows["value"].to_dict() == {
        "free_bytes": 100, "page_cache_bytes": 50, "slab_reclaimable_bytes": 25,
        "anonymous_bytes": 800, "available_bytes": 175, "used_bytes": 825,
    }  # fmt: skip
    # Neither does it change the identity, nor is a part of RAM all of it.
    made.head.machine = Machine("h", NOON, ram_bytes=1000, memory={"free": 100})
    bare = record(made, [ANALYSIS], NOON)
    assert bare.id == entry.id
    assert "machine" not in bare.rows["analysis"].to_pylist()
    assert {*AVAILABLE} < {*MEMORY_USES}


def test_memory_in_use_is_the_whole() -> None:
    used = 5 * GIB + 110 * _MIB * _STEPS
    rows = rows_of(shared() | memory(used), 16 * GIB)
    result = growth(amounts(rows), "store")
    growths = result.tables["growths"].frame
    assert growths["growth"].iloc[0] == "memory in use"
    assert growths["used"].iloc[0] == f"{used[-1] / (16 * GIB):.0%} of RAM"
    # Free memory is no growth, and has no limit.
    assert "free memory" not in {*growths["growth"]}
    (finding,) = result.findings
    assert finding.title.startswith("db1: memory in use grows")
    assert "anonymous" in finding.evidence
    assert [gap.reason for gap in result.gaps] == []
    table = result.tables["memory"].frame.set_index("use")
    assert table["bytes"]["memory in use"] == used[-1]
    assert table["state"]["free memory"] == "shrinking"


@pytest.mark.parametrize("is_slab", [True, False])
def test_memory_that_the_kernel_can_give_to_others_is_no_part(is_slab: bool) -> None:
    """Reclaimable slabs are not in use; page cache of memory cgroups is not counted together."""
    fast, slow = GIB + 100 * _MIB * _STEPS, GIB + _MIB * _STEPS
    slab, offline = (fast, GIB + 0 * _STEPS) if is_slab else (slow, fast)
    series = {SLAB: slab, summary("memcgs", "offline_bytes"): offline, _SHMEM: 0 * _STEPS}
    if not is_slab:
        series[summary("memcgs", "file_bytes")] = fast - GIB
    rows = rows_of(series | memory(20 * GIB + 3 * _MIB * _STEPS), 64 * GIB)
    found = growth(amounts(rows), "store").tables["growths"].frame.set_index("growth")["part_of"]
    both = "kernel memory together"
    assert found[both] == ("" if is_slab else "memory in use")
    assert found["slab memory"] == both
    assert found.get("offline memory cgroups", "") == ""


def test_programs_that_fill_their_memory_after_a_start_are_no_emergency() -> None:
    used = 2 * GIB + 600 * _MIB * _STEPS[:20]
    (finding,) = growth(history(memory(used), ram_bytes=16 * GIB), "store").findings
    assert finding.severity is Severity.WARNING
    (finding,) = growth(history(memory(used + 3 * GIB), ram_bytes=16 * GIB), "store").findings
    assert finding.severity is Severity.CRITICAL  # full


def test_metrics_of_the_machine_by_name(tmp_path: Any) -> None:
    used = 5 * GIB - 10 * _MIB * _STEPS
    store = write_store(
        tmp_path / "store", rows_of(shared() | memory(used), 16 * GIB).assign(live=False)
    )
    for name in (".".join(USED), ".".join(TOGETHER), "machine.available_bytes"):
        result = kcensus.trend(store, metric=name)
        found = [*result.tables["growing"]["metric"], *result.tables["shrinking"]["metric"]]
        assert found == [name]
    assert kcensus.trend(store, metric="machine.available_bytes").result.findings == []


def test_the_earliest_day_is_not_before_now() -> None:
    """The noise is as large as the distance to the limit."""
    noise = 0.5 * GIB * (-1) ** np.arange(len(_STEPS))
    values = 15 * GIB + 0.0075 * GIB * _STEPS + noise
    result = growth(rows_of({SLAB: values}, 16 * GIB), "store")
    row = result.tables["growths"].frame.iloc[0]
    (finding,) = result.findings
    assert (row["earliest"], finding.severity) == ("now", Severity.CRITICAL)
    assert "Act now" in finding.remedies[0].effect
