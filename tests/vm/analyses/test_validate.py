# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus validate`` and ``kcensus diff`` on pairs of real dumps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kcensus import cli
from tests.lab import build, symbols
from tests.vm.cases import command

Run = Callable[..., tuple[int, Any]]


def words(*dumps: tuple[str, str]) -> list[str]:
    """Targets of dumps (kernel, scenario), and their debug info."""
    built = [build(*dump) for dump in dumps]
    debug = dict.fromkeys(path for dump in built for path in dump.debug)
    return [*(str(dump.core) for dump in built), *symbols(debug)]


def traces(*names: str) -> list[str]:
    return [str(build("6.1", name).path / "traces") for name in names]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``kcensus ARGS --json``; (exit status, document)."""
    return lambda *args: command(capsys, *args)[:2]


def test_list_lru_series_from_5_10_to_6_1(run: Run) -> None:
    status, found = run(
        "validate", "list-lru-memory", *words(("5.10", "list-lru"), ("6.1", "list-lru"))
    )
    summary = found["summary"]
    assert (status, summary["verdict"]) == (0, "confirmed")
    # The figures are the analysis' own.
    for name, kernel in (("before", "5.10"), ("after", "6.1")):
        _, alone = run("list-lru", *words((kernel, "list-lru")))
        figures = alone["summary"]
        assert summary[name] == figures["structural_bytes"] - figures["shrinker_map_bytes"]
        stage = "arrays" if name == "before" else "xarray"
        assert summary[name] == figures[f"projected_{stage}_bytes"]
    assert summary["change"] == 1 - summary["after"] / summary["before"] > 0.5
    # With fewer lists than 6.1 has, the model cannot promise too little.
    assert summary["predicted"] < summary["after"]
    unlike = {row["condition"] for row in found["tables"]["conditions"] if row["alike"] != "yes"}
    assert unlike == {"kernels"}


@pytest.mark.parametrize(
    ("patch", "dumps", "sentence"),
    [
        # Snapshots, but next to no memory cgroups.
        (
            "list-lru-memory",
            (("5.10", "kcopyd-limited"), ("6.1", "kcopyd-limited")),
            "the workload is too small",
        ),
        (
            "list-lru-memory",
            (("5.10", "list-lru"), ("6.1", "mixed")),
            "the sides are not alike: super blocks",
        ),
        # mixed has snapshots and the limit, but another machine and a few copies in flight.
        ("dm-snapshot-cow-in-progress", (("6.1", "kcopyd-limit-off"), ("6.1", "mixed")), ""),
    ],
)
def test_pairs_that_prove_nothing_are_inconclusive(
    patch: str, dumps: tuple[tuple[str, str], ...], sentence: str, run: Run
) -> None:
    status, found = run("validate", patch, *words(*dumps))
    assert (status, found["summary"]["verdict"]) == (5, "inconclusive")
    assert sentence in found["findings"][0]["evidence"]


@pytest.mark.parametrize("patch", ["dm-snapshot-cow-semaphore", "dm-snapshot-cow-in-progress"])
def test_limit_of_jobs_off_and_on(patch: str, run: Run) -> None:
    dumps = words(("6.1", "kcopyd-limit-off"), ("6.1", "kcopyd-limited"))
    status, found = run("validate", patch, *dumps)
    summary = found["summary"]
    assert (status, summary["verdict"]) == (5, "inconclusive")  # the limit, not the patch
    status, given = run("validate", patch, *dumps, "--as-given")
    assert (status, given["summary"]["verdict"]) == (0, "confirmed")
    alone = {}
    for name, scenario in (("before", "kcopyd-limit-off"), ("after", "kcopyd-limited")):
        alone[name] = run("kcopyd", *words(("6.1", scenario)))[1]["summary"]
        assert summary[name] == alone[name]["job_bytes"]
    assert summary["predicted"] == alone["before"]["projected_job_bytes"]
    # The model packs slabs full; what CPUs and partial slabs keep is the rest.
    packed = summary["predicted"] / alone["before"]["projected_jobs"]
    assert packed <= summary["after"] / alone["after"]["jobs"]
    # It takes each of three snapshots to its limit; the one with larger chunks has half as many
    # copies when the limits of the others stop the writers.
    assert alone["before"]["projected_jobs"] / alone["after"]["jobs"] == pytest.approx(6 / 5, 0.01)
    claimed = {"dm-snapshot-cow-semaphore": pytest.approx(1 - 130 / 10240)}
    assert summary["claimed_change"] == claimed.get(patch)


LIMIT = """
id = "limit"
title = "A patch of our own"
subsystem = "dm"
status = "merged"
summary = "It limits copies in flight."
symptom = "Slab memory that cannot be reclaimed grows."
[[commits]]
subject = "one of ours"
[detect]
modules = ["dm_snapshot"]
[[detect.rules]]
state = "present"
has = [{ member = "struct dm_snapshot.in_progress" }]
[validate]
switch = "cow_threshold"
symptom-at-least = 33554432
metric = { analysis = "slab", key = "unreclaimable_bytes", what = "slabs that cannot be reclaimed" }
[[validate.workload]]
metric = { analysis = "slab", key = "caches", what = "slab caches" }
within = 0.02
at-least = 50
"""


def test_limit_of_copies_in_flight(run: Run, tmp_path: Path) -> None:
    """Both have the limit, one has it switched off; detected with a patch file of the user."""
    (tmp_path / "limit.toml").write_text(LIMIT)
    dumps = words(("6.1", "kcopyd-limit-off"), ("6.1", "kcopyd-limited"))
    status, found = run("validate", "limit", *dumps, "--catalogue", str(tmp_path))
    # The limit works; what the patch did, no side without it tells.
    assert (status, found["summary"]["verdict"]) == (5, "inconclusive")
    given = run("validate", "limit", *dumps, "--catalogue", str(tmp_path), "--as-given")
    status, summary = given[0], given[1]["summary"]
    assert (status, summary["verdict"]) == (0, "confirmed")
    (pair,) = found["tables"]["pairs"]
    assert (pair["switch_before"], pair["switch_after"]) == (4294967295, 2048)
    assert (pair["state_before"], pair["state_after"]) == ("present", "present")
    assert (
        "cow_threshold is 4,294,967,295 before and 2,048 after" in found["findings"][0]["evidence"]
    )
    # Tens of thousands of jobs of three kilobytes each.
    assert summary["before"] - summary["after"] > 40 << 20


def test_capsules_make_a_pair_as_their_dumps_do(run: Run, tmp_path: Path) -> None:
    (tmp_path / "limit.toml").write_text(LIMIT)
    pair = [("6.1", "kcopyd-limit-off"), ("6.1", "kcopyd-limited")]
    capsules = []
    for kernel, scenario in pair:
        capsules.append(str(tmp_path / f"{scenario}.capsule"))
        path, *debug = words((kernel, scenario))
        args = ["capsule", "create", path, capsules[-1], "--analyses", "slab", *debug]
        assert cli.main(args) == 0
    options = "--catalogue", str(tmp_path), "--as-given"
    _, dumps = run("validate", "limit", *words(*pair), *options)
    status, found = run("validate", "limit", *capsules, *options)
    assert status == 0
    assert found["summary"] == dumps["summary"]
    assert found["tables"]["conditions"] == dumps["tables"]["conditions"]


@pytest.mark.parametrize(
    ("patch", "names", "options", "why"),
    [
        # They starve under mq-deadline: no word of the user makes that BFQ's or CFQ's.
        ("cfq-async-starvation", ("starved-deadline", "deadline"), ["--as-given"], "superseded"),
        ("bfq-wakers", ("starved-deadline", "deadline"), ["--as-given"], "uses mq-deadline"),
        ("bfq-wakers", ("starved", "bfq"), [], "or pass --as-given"),
    ],
)
def test_dumps_that_are_no_pair(
    patch: str,
    names: tuple[str, ...],
    options: list[str],
    why: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dumps = words(*(("6.1", f"iosched-{name}") for name in names))
    assert cli.main(["validate", patch, *dumps, *options]) == 2
    assert why in capsys.readouterr().err


def test_waits_of_async_writes_by_dumps(run: Run) -> None:
    """One kernel, BFQ on both: a pair by the word of the user alone, in which no patch differs."""
    names = ("iosched-starved", "iosched-bfq")
    dumps = words(*(("6.1", name) for name in names))
    _, found = run("validate", "bfq-wakers", *dumps, "--as-given")
    summary = found["summary"]
    for side, name in zip(("before", "after"), names, strict=True):
        _, alone = run("iosched", *words(("6.1", name)))
        assert summary[side] == alone["summary"]["worst_async_delay"]
    assert "--as-given asserts" in found["findings"][0]["evidence"]
    assert not found["findings"][0]["patch"]


def test_a_trace_without_messages_proves_nothing_of_bfq(run: Run) -> None:
    pair = traces("iosched-starved", "iosched-deadline")
    status, found = run("validate", "bfq-wakers", *pair, "--traces")
    assert (status, found["summary"]["verdict"]) == (5, "inconclusive")


def test_waits_of_async_writes_by_traces(run: Run) -> None:
    pair = traces("iosched-starved", "iosched-bfq")
    _, found = run("validate", "bfq-wakers", *pair, "--traces")
    for name, each in zip(("before", "after"), pair, strict=True):
        _, alone = run("iosched", "--trace", each)
        assert found["summary"][name] == alone["summary"]["trace_worst_async_write_wait"]
    assert found["summary"]["before"] > 5
    # The other way around, the longest wait grows.
    status, _ = run("validate", "bfq-wakers", *reversed(pair), "--traces")
    assert status in (1, 5)


def test_diff_of_a_dump_with_itself_is_empty(run: Run) -> None:
    path, *debug = words(("6.1", "list-lru"))
    status, found = run("diff", path, path, *debug)
    assert status == 0
    assert found["tables"].keys() == {"targets", "figures"}
    assert found["tables"]["figures"] == []


def test_diff_is_the_difference_of_both(run: Run) -> None:
    one, other = ("5.10", "mixed"), ("6.1", "mixed")
    status, found = run("diff", *words(one, other), "--analyses", "slab")
    assert status == 0
    sides = [
        pd.DataFrame(run("slab", *words(dump))[1]["tables"]["caches"]).set_index("cache")["bytes"]
        for dump in (one, other)
    ]
    sizes = pd.concat(sides, axis=1, keys=["before", "after"]).fillna(0).astype(int)
    sizes = sizes[sizes["before"] != sizes["after"]]
    rows = pd.DataFrame(found["tables"]["slab_caches"]).set_index("cache")
    pd.testing.assert_frame_equal(
        rows.loc[sizes.index, ["before", "after", "change"]],
        sizes.assign(change=sizes["after"] - sizes["before"]),
    )
    assert rows["change"].abs().is_monotonic_decreasing
