# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus memcgs`` on real kernels, against the guest's own counters and a slow walk."""

from __future__ import annotations

from typing import Any, NamedTuple

import drgn
import pandas as pd
import pytest

from kcensus.analyses.runner import Context
from kcensus.results import CheckStatus, Remedy, Result
from kcensus.sources import open_target
from tests.lab import Dump, build
from tests.lab.trials import meminfo_bytes, pairs
from tests.running import on, runner
from tests.vm.oracles.memcgs import Oracle

run = runner("memcgs")

PODS, JOBS, NETS = 200, 200, 20
"""Memory cgroups that the scenario removes: with tmpfs files, other files, sockets."""
FILE, SHMEM, ANON = JOBS * 2 * 30 * 4096, PODS * 15 * 4096, NETS * 257 * 4096


class Case(NamedTuple):
    """A dump, what we say of it, and what the slow walk says."""

    dump: Dump
    prog: drgn.Program
    result: Result
    oracle: Oracle

    def figure(self, name: str) -> Any:
        return self.result.summary[name].value

    def table(self, name: str) -> Any:  # pandas-stubs: a cell may be any scalar
        return self.result.tables[name].frame

    def remedy(self, text: str) -> Remedy:
        """The remedy whose command or effect has ``text``."""
        (finding,) = (each for each in self.result.findings if each.id == "memcgs-offline")
        return next(each for each in finding.remedies if text in each.command + each.effect)


@pytest.fixture(scope="module")
def case(kernel: str) -> Case:
    dump = build(kernel, "memcgs-dying")
    target = open_target(str(dump.formats["elf"]), dump.debug)
    return Case(dump, target.prog, run(Context.of(target, jobs=1)), Oracle(target.prog))


def reparents_pages(case: Case) -> bool:
    """Since 7.1, pages go to the parent with the memory cgroup, and no longer pin it."""
    return case.dump.kernel == "7.3"


def test_equals_the_slow_walk(case: Case) -> None:
    frame = case.table("offline").set_index("address")
    assert {*frame.index} == {*case.oracle.memcgs}
    for address, truth in case.oracle.memcgs.items():
        row = frame.loc[address]
        found = {
            "path": row["memcg"],
            "references": row["references"],
            "slab": row["structure_bytes"],
            "per_cpu": row["per_cpu_bytes"],
            **{kind: row[f"{kind}_bytes"] // 4096 for kind in ("file", "shmem", "anon", "kernel")},
        }
        assert found == {
            "path": truth.path,
            "references": truth.references,
            "slab": truth.slab_bytes,
            "per_cpu": truth.per_cpu,
            **{kind: truth.pages[kind] for kind in ("file", "shmem", "anon", "kernel")},
        }


def test_equals_what_the_guest_counts(case: Case) -> None:
    """memory.stat of the parent, which has nothing else."""
    truth = case.dump.truth
    counted = pairs(truth["memory.stat:/gone"])
    ours = {name: case.figure(f"{name}_bytes") for name in ("file", "shmem", "anon")}
    if reparents_pages(case):
        assert case.figure("memcgs_offline") == NETS
        assert ours == dict.fromkeys(ours, 0)
        return
    assert case.figure("memcgs_offline") == PODS + JOBS + NETS
    assert ours == {"file": FILE, "shmem": SHMEM, "anon": ANON}
    if case.dump.kernel != "5.10":  # there, memory.stat is folded in batches of 32 pages per CPU
        assert counted["file"] == ours["file"] + ours["shmem"]
        assert counted["shmem"] == ours["shmem"]
        assert counted["anon"] == ours["anon"]
    assert f"nr_dying_descendants {case.figure('memcgs_offline')}" in truth["cgroup.stat:/gone"]


def test_structures_are_what_slabs_grew_by(case: Case) -> None:
    """Large objects: of small ones, the scenario makes many others."""
    if reparents_pages(case):
        return
    ours, grown = 0, 0
    before, now = (
        slab_objects(case.dump.truth[name]) for name in ("slabinfo.before", "slabinfo.4")
    )
    frame = case.table("structures")
    frame = frame[frame["place"].isin([*now])].groupby("place")[["objects"]].sum()
    for place, objects in frame["objects"].items():
        if now[place][1] >= 2048:
            ours += int(objects) * now[place][1]
            grown += (now[place][0] - before[place][0]) * now[place][1]
    assert ours > 3 << 20
    assert ours == pytest.approx(grown, rel=0.05)


def test_per_cpu_areas_are_what_the_parent_is_charged(case: Case) -> None:
    """The kernel charges an area and, for each 4 bytes of it, a pointer to its owner."""
    if case.dump.kernel not in ("6.1", "6.12"):
        return
    truth = case.dump.truth
    grown = (pairs(truth[name])["percpu"] for name in ("memory.stat:/gone", "memory.stat.before"))
    charged = next(grown) - next(grown)
    prog, cpus = case.prog, case.oracle.cpus
    # Not charged: statistics of the cgroup, and of its stalls, and of writeback.
    others = ("struct cgroup_rstat_cpu", "struct psi_group_cpu")
    free = 4 + sum(-(-drgn.sizeof(prog.type(name)) // 4) * 4 for name in others)
    accounted = case.figure("per_cpu_bytes") - free * cpus * case.figure("memcgs_offline")
    assert charged == pytest.approx(accounted * (cpus + 2) / cpus, rel=0.01)


def test_what_pins_them(case: Case) -> None:
    frame = case.table("pins").set_index("kind")
    assert frame.loc["sockets", "memcgs"] == NETS
    assert frame.loc["sockets", "references"] == NETS * 6
    assert case.figure("references_unexplained") == 0
    assert case.figure("references") == frame["references"].sum()
    objects = case.table("objects")
    assert {*objects["what"]} <= {"UNIX", "UNIX-STREAM"}
    assert objects["objects"].sum() == NETS * 6
    if reparents_pages(case):
        assert {*frame.index} == {"sockets"}
        return
    assert frame.loc["shmem", "memcgs"] == PODS
    assert frame.loc["page cache", "memcgs"] == JOBS
    files = case.table("files")
    tmpfs = files[files["type"] == "tmpfs"]
    assert {*tmpfs["path"]} == {f"/run/pods/pod-{i}-0" for i in range(PODS)}
    assert tmpfs["bytes"].sum() == SHMEM
    jobs = {f"/srv/jobs/job-{i}-{d}" for i in range(JOBS) for d in range(2)}
    assert {*files[files["kind"] == "page cache"]["path"]} == jobs
    of_memcg = files["path"].str.replace(r".*/(\w+-\d+)-\d+$", r"/gone/\1", regex=True)
    assert (of_memcg == files["memcg"]).all()


def test_checks_agree_and_nothing_is_missing(case: Case) -> None:
    states = {check.name: check.status for check in case.result.checks}
    older = case.dump.kernel in ("5.10", "6.1")
    assert states.pop("offline memory cgroups") == (
        CheckStatus.ABSENT if older else CheckStatus.AGREE
    )
    assert {*states.values()} == {CheckStatus.AGREE}
    assert case.result.gaps == []


def slab_objects(slabinfo: str) -> dict[str, tuple[int, int]]:
    """Active objects and the size of a slot, by cache."""
    lines = (line.split() for line in slabinfo.splitlines()[2:])
    return {name: (int(active), int(size)) for name, active, _, size, *_ in lines}


def returned(case: Case, trial: str, after: str = "") -> int:
    """What a trial gave back: charged pages, structures in slabs, per-CPU areas."""
    truth = case.dump.truth
    names = f"@{after}" if after else "", f"@{trial}"
    cached = [meminfo_bytes(truth[f"meminfo{name}"])["Cached"] for name in names]
    slabs = [slab_objects(truth[f"slabinfo{name or '.4'}"]) for name in names]
    dying = [
        pairs(truth[f"cgroup.stat{name}" if name else "cgroup.stat:/gone"])["nr_dying_descendants"]
        for name in names
    ]
    places = {*case.table("structures")["place"]} & {*slabs[0]}
    objects = sum(
        (slabs[0][name][0] - slabs[1][name][0]) * slabs[0][name][1]
        for name in places
        if slabs[0][name][1] >= 1024
    )
    each = case.figure("per_cpu_bytes") // case.figure("memcgs_offline")
    return int(cached[0] - cached[1] + objects + (dying[0] - dying[1]) * each)


def test_remedies_return_what_they_claim(case: Case) -> None:
    """Within a tenth; see the scenario's trials."""
    claims = {
        "5.10": (("drop-caches", "echo 1", ""), ("drop-inodes", "echo 3", "")),
        "6.1": (("reclaim", "memory.reclaim", ""),),
        "6.12": (("drop-caches", "echo 1", ""),),
        "7.3": (),
    }[case.dump.kernel]
    if reparents_pages(case):
        assert not [each for each in case.result.findings if each.id == "memcgs-offline"]
        return
    for trial, command, after in claims:
        claimed = case.remedy(command).returns
        assert returned(case, trial, after) == pytest.approx(claimed, rel=0.1), trial
    last = claims[-1][0]
    claimed = case.remedy("tmpfs files").returns
    assert returned(case, "remove-files", last) == pytest.approx(claimed, rel=0.1)


def test_findings_are_sound(case: Case) -> None:
    for finding in case.result.findings:
        assert finding.holds == finding.figures["bytes"].value
        returns = [remedy.returns or 0 for remedy in finding.remedies]
        assert all(0 < each <= (finding.holds or 0) for each in returns)
        assert finding.remedies or finding.no_remedy


def test_small_chunks_and_two_processes_give_the_same(case: Case) -> None:
    for options in ({"chunk_bytes": 64 << 10}, {"jobs": 2}):
        again = run(on(case.prog, **options))
        assert again.summary == case.result.summary
        for name, table in again.tables.items():
            pd.testing.assert_frame_equal(table.frame, case.result.tables[name].frame)


def test_a_report_of_the_workload_of_list_lrus(kernel: str) -> None:
    """Where files of XFS pin some, on 5.10 with the structures of their writeback."""
    dump = build(kernel, "list-lru")
    prog = open_target(str(dump.formats["elf"]), dump.debug).prog
    result = run(on(prog))
    assert {check.status for check in result.checks} <= {CheckStatus.AGREE, CheckStatus.ABSENT}
    assert result.summary["references_unexplained"].value == 0
    held = dict(result.tables["pins"].frame[["kind", "memcgs"]].itertuples(index=False, name=None))
    if kernel == "7.3":
        # It ends by itself; files pin none there.
        assert {*held} <= {"writeback"}
    else:
        assert (held["shmem"], held["page cache"]) == (580, 40)
        assert held.get("writeback", 0) == (40 if kernel == "5.10" else 0)
