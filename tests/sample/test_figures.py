# SPDX-License-Identifier: LGPL-2.1-or-later
"""The figures of the samples against what the guests' kernels counted and their workloads made."""

from __future__ import annotations

import json
import re

import pytest

import kcensus
from kcensus import cli
from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.render.schema import error
from tests.catalogue import PATCHES
from tests.lab.trials import meminfo_bytes
from tests.sample.conftest import IO, NAMES, WAITS, Sample, open_sample

# Lookups of missing names by the workload, by pattern of the names.
PATTERNS = {
    "tmp.XXXXXX": 12000,
    "<hex>.lock": 8000,
    "part-<digits>": 4000,
    "event-<digits>.json": 3000,
    "message-<digits>.a-name-too-long-for-the-dentry.eml": 2000,
    "libvendor<digits>.so": 24 * 20,
}


def test_dentries_are_those_of_dentry_state(sample: Sample) -> None:
    state = [int(word) for word in sample.truth["dentry-state"].split()]
    summary = sample.run("dentries").summary
    assert summary["dentries"].value == state[0]
    assert summary["negative"].value == state[4]


def test_memory_is_that_of_meminfo(sample: Sample) -> None:
    machine = sample.run("slab").machine
    assert machine is not None
    counted = meminfo_bytes(sample.truth["meminfo"])
    names = {"free": "MemFree", "anonymous": "AnonPages", "shmem": "Shmem", "per_cpu": "Percpu"}
    for use, name in names.items():
        assert machine.memory[use] == pytest.approx(counted[name], abs=1 << 20), use


def test_dentries_have_the_patterns_of_the_workload(sample: Sample) -> None:
    frame = sample.run("dentries").tables["patterns"].frame
    found = dict(zip(frame["pattern"], frame["negative"], strict=True))
    assert {pattern: found.get(pattern) for pattern in PATTERNS} == PATTERNS


def test_the_watched_directory_is_the_first_to_cost(sample: Sample) -> None:
    first = sample.run("dentries").tables["walk_cost"].frame.iloc[0]
    assert (first["directory"], first["watched"], first["negative"]) == ("/srv/watched", True, 3000)


def test_list_lru_has_the_memory_cgroups_of_cgroup_stat(sample: Sample) -> None:
    stat = dict(line.split() for line in sample.truth["cgroup.stat"].splitlines())
    summary = sample.run("list-lru").summary
    assert summary["memcgs_online"].value == int(stat["nr_descendants"]) + 1  # the root
    assert summary["memcgs_offline"].value == int(stat["nr_dying_descendants"])


def test_list_lru_before_and_after(before: Sample, after: Sample) -> None:
    """One workload: arrays for every memcg that ever existed, then lists on demand."""
    now = before.run("list-lru").summary
    assert int(str(now["dead_slot_bytes"].value)) > 1 << 20
    assert after.run("list-lru").summary["dead_slot_bytes"].value == 0


def copies(sample: Sample) -> dict[str, int]:
    """Return the used sectors of the COW device by snapshot, from ``dmsetup status``."""
    found = re.findall(r"^(\S+): 0 \d+ snapshot (\d+)/", sample.truth["dmsetup-status"], re.M)
    return {name: int(sectors) for name, sectors in found}


def test_snapshots_are_those_of_dmsetup_status(sample: Sample) -> None:
    frame = sample.run("kcopyd").tables["snapshots"].frame
    assert dict(zip(frame["device"], frame["used_bytes"] // 512, strict=True)) == copies(sample)


def test_copies_in_flight_are_bounded_only_after(before: Sample, after: Sample) -> None:
    unlimited, limited = (one.run("kcopyd").summary for one in (before, after))
    # 5,000 chunks were written, each copied to two snapshots that take minutes for it.
    assert unlimited["in_flight_cow"].value == 2 * 5000
    assert limited["cow_threshold"].value == 2048
    # A copy starts as long as no more than the threshold are in flight.
    assert limited["in_flight_cow"].value == 2 * (2048 + 1)
    assert limited["jobs"].value == limited["in_flight_cow"].value
    projected = unlimited["projected_job_bytes"].value
    assert int(str(projected)) < int(str(unlimited["job_bytes"].value)) / 2


@pytest.mark.parametrize("name", [*NAMES, IO, WAITS])
def test_every_check_of_the_report_agrees_or_says_why(name: str) -> None:
    report = open_sample(name).document
    assert error(report) == ""
    differing = [
        (analysis, check["name"])
        for analysis, result in report["analyses"].items()
        for check in result["checks"]
        if check["status"] == "differ" and not check["note"]
    ]
    assert differing == []


@pytest.mark.slow
def test_patches_are_detected_from_the_sample_alone(
    before: Sample, after: Sample, capsys: pytest.CaptureFixture[str]
) -> None:
    states = []
    for sample in (before, after):
        assert cli.main(["patches", sample.name, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["tables"]["patches"]
        states.append({row["patch"]: row["state"] for row in rows})
    assert (states[0]["list-lru-xarray"], states[1]["list-lru-xarray"]) == ("absent", "present")
    # The samples do not record whether names exist that the catalogue asks for since.
    may_be_unknown = {"blk-mq-async-depth", "sbitmap-shallow-depth"}
    may_be_unknown.add("negative-dentry-sysctl-limit")
    for patch in PATCHES.values():
        # The guests have no disk scheduler loaded whose types could tell; no type tells of these
        # inversions, or a module that is not loaded has it.
        is_inversion = "/locking/" in patch.file and patch.detection.undetectable
        if is_inversion or {"bfq", "mq_deadline"} & {*patch.detection.modules}:
            may_be_unknown.add(patch.id)
    for state in states:
        assert {patch for patch, what in state.items() if what == "undetermined"} <= may_be_unknown


def test_one_saving_of_the_list_lru_series(sample: Sample, before: Sample, after: Sample) -> None:
    """Prices, projection, model and validation; shrinker maps are in none of them."""
    lists = sample.run("list-lru")
    rows = lists.tables["projection"].frame.iloc[1:].set_index("patch")["bytes"]
    saved = rows[""] - rows
    patches = sample.report.results["patches"].tables
    priced = patches["prices"].frame.set_index("patch")["bytes"]
    shown = patches["patches"].frame.set_index("patch")
    total = saved["list-lru-xarray"]
    assert priced["list-lru-memory"] == total > 0
    is_old = sample is before
    column = "cost_bytes" if is_old else "saving_bytes"
    assert shown.loc["list-lru-memory", column] == total
    if is_old:
        for patch in saved.index.drop(""):
            assert priced[patch] == saved[patch] >= 0
    # The model of the same machine leaves out list_lrus that are not of super blocks.
    ids = lists.amount("nr_cache_ids") or lists.amount("nr_cache_ids_if_arrays")
    size = f"nodes={lists.amount('nodes')},mounts={lists.amount('super_blocks')},ids={ids}"
    model = analyses()["list-lru"]
    modelled = Context.without_target().run(model, what_if=size).tables["projection"].frame
    assert modelled["saved_bytes"].iloc[-1] == pytest.approx(total, rel=0.2)
    measured = lists.amount("structural_bytes") - lists.amount("shrinker_map_bytes")
    assert measured == rows["" if is_old else "list-lru-xarray"]
    verdict = kcensus.validate("list-lru-memory", before.target, after.target).summary
    assert verdict["before" if is_old else "after"] == measured


def test_every_patch_that_a_finding_names_can_be_looked_up(sample: Sample) -> None:
    known = set(PATCHES)
    named = {
        finding.patch
        for name in sample.analyses
        for finding in sample.run(name).findings
        if finding.patch
    }
    assert named or sample.name != "sample"  # that kernel lacks patches
    assert named <= known
