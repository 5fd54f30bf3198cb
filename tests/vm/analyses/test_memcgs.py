# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus memcgs`` on real kernels, against the guest's own counters and a slow walk."""

from __future__ import annotations

import drgn
import pytest

from kcensus.results import CheckStatus
from tests.lab import build
from tests.lab.trials import pairs, returned_by, slabinfo
from tests.vm import cases
from tests.vm.cases import analyzed, opened, remedy
from tests.vm.oracles.memcgs import Oracle

pytestmark = pytest.mark.machines

Case = cases.Case[Oracle]

PODS, JOBS, NETS = 200, 200, 20
"""Memory cgroups that the scenario removes: with tmpfs files, other files, sockets."""


@pytest.fixture(scope="module")
def case(kernel: str) -> Case:
    dump = build(kernel, "memcgs-dying")
    return Case.of(dump, opened(dump), "memcgs", Oracle)


def in_pages(size: int, page: int) -> int:
    return -(-size // page) * page


def reparents_pages(case: Case) -> bool:
    """Since 7.1, pages go to the parent with the memory cgroup, and no longer pin it."""
    return case.dump.like == "7.3"


def test_equals_the_slow_walk(case: Case) -> None:
    kinds = ("file", "shmem", "anon", "kernel")
    columns = ["memcg", "references", "structure_bytes", "per_cpu_bytes"]
    columns += [f"{kind}_bytes" for kind in kinds]
    frame = case.table("offline").set_index("address")[columns]
    assert dict(zip(frame.index, frame.itertuples(index=False, name=None), strict=True)) == {
        address: (
            *(truth.path, truth.references, truth.slab_bytes, truth.per_cpu),
            *(truth.pages[kind] * case.page for kind in kinds),
        )
        for address, truth in case.oracle.memcgs.items()
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
    # But for larger pages of arm64, a process has written to one more.
    is_fewer = case.page > 4096 and "arm64" in case.dump.kernel
    written = (1 << 20) + (0 if is_fewer else case.page)
    assert ours == {
        "file": JOBS * 2 * in_pages(120_000, case.page),
        "shmem": PODS * in_pages(60_000, case.page),
        "anon": NETS * written,
    }
    if case.dump.like != "5.10":  # there, memory.stat is folded in batches of 32 pages per CPU
        assert counted["file"] == ours["file"] + ours["shmem"]
        assert counted["shmem"] == ours["shmem"]
        assert counted["anon"] == ours["anon"]
    assert f"nr_dying_descendants {case.figure('memcgs_offline')}" in truth["cgroup.stat:/gone"]


def test_structures_are_what_slabs_grew_by(case: Case) -> None:
    """Large objects: of small ones, the scenario makes many others."""
    if reparents_pages(case):
        return
    ours, grown = 0, 0
    before, now = (slabinfo(case.dump.truth[name]) for name in ("slabinfo.before", "slabinfo.4"))
    for place, objects in case.table("structures").groupby("place")["objects"].sum().items():
        if place in now and now[place].slot_size >= 2048:
            ours += int(objects) * now[place].slot_size
            grown += (now[place].active - before[place].active) * now[place].slot_size
    assert ours > 3 << 20
    assert ours == pytest.approx(grown, rel=0.05)


def test_per_cpu_areas_are_what_the_parent_is_charged(case: Case) -> None:
    """The kernel charges an area and, for each 4 bytes of it, a pointer to its owner."""
    if case.dump.like not in ("6.1", "6.12"):
        return
    truth = case.dump.truth
    grown = (pairs(truth[name])["percpu"] for name in ("memory.stat:/gone", "memory.stat.before"))
    charged = next(grown) - next(grown)
    prog, cpus = case.prog, case.oracle.cpus
    # Not charged: statistics of the cgroup, and of its stalls, and of writeback.
    others = ("struct cgroup_rstat_cpu", "struct psi_group_cpu")
    free = 4 + sum(-(-drgn.sizeof(prog.type(name)) // 4) * 4 for name in others)
    accounted = case.figure("per_cpu_bytes") - free * cpus * case.figure("memcgs_offline")
    # The kernel adds up counters of CPUs once they have enough pages, and a larger page holds more.
    share = 0.01 if case.page < 1 << 16 else 0.05
    assert charged == pytest.approx(accounted * (cpus + 2) / cpus, rel=share)


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
    assert tmpfs["bytes"].sum() == PODS * in_pages(60_000, case.page)
    jobs = {f"/srv/jobs/job-{i}-{d}" for i in range(JOBS) for d in range(2)}
    assert {*files[files["kind"] == "page cache"]["path"]} == jobs
    of_memcg = files["path"].str.replace(r".*/(\w+-\d+)-\d+$", r"/gone/\1", regex=True)
    assert (of_memcg == files["memcg"]).all()


def test_checks_agree_and_nothing_is_missing(case: Case) -> None:
    states = {check.name: check.status for check in case.result.checks}
    older = case.dump.like in ("5.10", "6.1")
    assert states.pop("offline memory cgroups") == (
        CheckStatus.ABSENT if older else CheckStatus.AGREE
    )
    assert {*states.values()} == {CheckStatus.AGREE}
    assert case.result.gaps == []


def returned(case: Case, trial: str, after: str = "") -> int:
    """What a trial gave back: charged pages, structures in slabs, per-CPU areas."""
    truth = case.dump.truth
    before, now = (
        slabinfo(truth[f"slabinfo{f'@{name}' if name else '.4'}"]) for name in (after, trial)
    )
    objects = sum(
        (before[name].active - now[name].active) * before[name].slot_size
        for name in {*case.table("structures")["place"]} & {*before}
        if before[name].slot_size >= 1024
    )
    dying = [
        pairs(truth[f"cgroup.stat@{name}" if name else "cgroup.stat:/gone"])["nr_dying_descendants"]
        for name in (after, trial)
    ]
    each = case.figure("per_cpu_bytes") // case.figure("memcgs_offline")
    cached = returned_by(truth, trial, "meminfo", after)["Cached"]
    return int(cached + objects + (dying[0] - dying[1]) * each)


def test_remedies_return_what_they_claim(case: Case) -> None:
    """Within a tenth; see the scenario's trials."""
    claims = {
        "5.10": (("drop-caches", "echo 1", ""), ("drop-inodes", "echo 3", "")),
        "6.1": (("reclaim", "memory.reclaim", ""),),
        "6.12": (("drop-caches", "echo 1", ""),),
        "7.3": (),
    }[case.dump.like]
    if reparents_pages(case):
        assert not [each for each in case.result.findings if each.id == "memcgs-offline"]
        return
    for trial, command, after in (*claims, ("remove-files", "tmpfs files", claims[-1][0])):
        claimed = remedy(case.result, "memcgs-offline", command).returns
        assert returned(case, trial, after) == pytest.approx(claimed, rel=0.1), trial


def test_findings_are_sound(case: Case) -> None:
    for finding in case.result.findings:
        assert finding.holds == finding.figures["bytes"].value


def test_a_report_of_the_workload_of_list_lrus(kernel: str) -> None:
    """Where files of XFS pin some, on 5.10 with the structures of their writeback."""
    dump = build(kernel, "list-lru")
    result = analyzed(opened(dump), "memcgs")
    assert {check.status for check in result.checks} <= {CheckStatus.AGREE, CheckStatus.ABSENT}
    assert result.summary["references_unexplained"].value == 0
    held = dict(result.tables["pins"].frame[["kind", "memcgs"]].itertuples(index=False, name=None))
    if dump.like == "7.3":
        # It ends by itself; files pin none there.
        assert {*held} <= {"writeback"}
    else:
        assert (held["shmem"], held["page cache"]) == (580, 40)
        assert held.get("writeback", 0) == (40 if dump.like == "5.10" else 0)
