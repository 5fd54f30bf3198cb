# SPDX-License-Identifier: LGPL-2.1-or-later
"""All analyses on RHEL 7.9, against /proc of the guests and slow walks with drgn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import drgn
import numpy as np
from drgn.helpers.linux.list import list_count_nodes, list_for_each_entry

from kcensus.analyses import analyses
from kcensus.analyses.iosched.kernel import figures as iosched
from kcensus.analyses.iosched.kernel.sleepers import behind_tasks
from kcensus.analyses.runner import Context
from kcensus.kernel.memcg.memcgs import memcgs
from kcensus.render.reply import reply
from kcensus.reports import examine
from kcensus.results import CheckStatus
from kcensus.sources import open_target
from tests.lab.trials import meminfo_bytes, slabinfo
from tests.sample.block.poked import Poked
from tests.sample.guest import Guest
from tests.sample.rhel7.conftest import DATA


def test_no_gap_and_no_counter_that_differs(guest: Guest) -> None:
    for name, result in guest.results.items():
        assert not result.gaps, name
        assert not [each for each in result.checks if each.status is CheckStatus.DIFFER], name


def test_slab_is_that_of_slabinfo(guest: Guest) -> None:
    caches = slabinfo(guest.truth["slabinfo"])
    frame = guest.results["slab"].tables["caches"].frame.set_index("cache")
    same = [
        name
        for name, row in caches.items()
        if name in frame.index
        and [*frame.loc[name, ["objects_total", "slabs"]]] == [row.total, row.slabs]
    ]
    # Between slabinfo and the dump a few caches change.
    assert len(same) > 0.95 * len(frame)
    assert {"dentry", "xfs_inode", "kmalloc-512"} <= {*same}
    counted = meminfo_bytes(guest.truth["meminfo"])["Slab"]
    assert abs(guest.value("slab", "slab_bytes") - counted) <= 256 << 10


def test_dentries_are_those_of_dentry_state(guest: Guest) -> None:
    guest.check_dentry_state()


def test_lists_of_super_blocks_are_as_long_as_their_counters(guest: Guest) -> None:
    blocks = guest.results["list-lru"].tables["super_blocks"].frame
    assert blocks["dentries"].sum() == guest.value("dentries", "on_lru")
    walked: Counter[str] = Counter()
    for block in list_for_each_entry(
        "struct super_block", guest.prog["super_blocks"].address_of_(), "s_list"
    ):
        name = block.s_id.string_().decode()
        walked[f"{name} dentries"] += list_count_nodes(block.s_dentry_lru.address_of_())
        walked[f"{name} inodes"] += list_count_nodes(block.s_inode_lru.address_of_())
    found: Counter[str] = Counter()
    for name, dentries, inodes in blocks[["id", "dentries", "inodes"]].values.tolist():
        found[f"{name} dentries"] += dentries
        found[f"{name} inodes"] += inodes
    assert +found == +walked


def test_memory_cgroups_are_those_of_proc_cgroups(guest: Guest) -> None:
    assert guest.value("memcgs", "memcgs_online") == guest.truth["cgroups"]["memory"]
    assert guest.value("memcgs", "memcgs_offline") == 0
    number = int(guest.prog["mem_cgroup_subsys"].subsys_id)

    def walk(cgroup: drgn.Object, path: str) -> Iterator[tuple[str, int]]:
        yield path or "/", int(cgroup.subsys[number])
        children = cgroup.children.address_of_()
        for child in list_for_each_entry("struct cgroup", children, "sibling"):
            yield from walk(child, f"{path}/{child.name.name.string_().decode()}")

    groups, root = memcgs(guest.kernel), guest.prog["root_mem_cgroup"].css.cgroup
    css = drgn.offsetof(guest.prog.type("struct mem_cgroup"), "css")
    found = dict(zip(groups.path, (groups.address + np.uint64(css)).tolist(), strict=True))
    assert found == dict(walk(root, ""))


def test_child_caches_are_those_of_kmem_slabinfo(mixed: Guest) -> None:
    slab_map, groups = mixed.kernel.slab_map, memcgs(mixed.kernel)
    _, owners = slab_map.lineage
    found: dict[str, set[str]] = {}
    for cache, row in zip(slab_map.caches, groups.rows(owners).tolist(), strict=True):
        if row >= 0:
            found.setdefault(groups.path[row], set()).add(cache.name.partition("(")[0])
    assert len(found) == 30
    for path, caches in mixed.truth["kmem.slabinfo"].items():
        assert found[path] == {*caches}, path
        # All of them are empty.
        assert not any(map(any, caches.values()))
    frame = mixed.results["slab"].tables["memcgs"].frame
    assert frame[frame["state"] == "online"]["objects"].sum() == 0


def test_requests_are_those_in_flight(cfq: Guest) -> None:
    in_flight = int(cfq.truth["stat"].split()[8])
    assert in_flight == sum(map(int, cfq.truth["inflight"].split()))
    assert cfq.value("iosched", "requests") == in_flight


def test_stacks_are_those_of_proc_pid_stack(cfq: Guest) -> None:
    truth = cfq.truth["stacks"]
    assert cfq.stacks() == truth
    assert cfq.value("waits", "tasks_blocked") == len(truth)


def test_every_task_in_state_d_has_a_root(cfq: Guest) -> None:
    edges = cfq.results["waits"].tables["tasks"].frame
    assert len(edges) > 0
    assert cfq.value("iosched", "sleepers") > 0


def test_no_jobs_of_kcopyd(guest: Guest) -> None:
    assert guest.value("kcopyd", "jobs") == 0
    rows = slabinfo(guest.truth["slabinfo"])
    assert rows["kcopyd_job"].active == 0


def test_an_awaited_free_request_is_named_by_its_disk(cfq: Guest) -> None:
    objects = cfq.results["waits"].tables["objects"].frame
    (name,) = objects[objects["kind"] == "tags"]["name"]
    assert name == "of sda (requests: 167 not dispatched, 1 in the driver)"
    assert cfq.value("iosched", "requests") == 167 + 1


def test_the_limit_of_negative_dentries_is_read(mixed: Guest) -> None:
    result = mixed.results["dentries"]
    limits = result.tables["limits"].frame.set_index("setting")["value"]
    # Neither the guest nor the kernel sets it.
    assert limits["fs.negative-dentry-limit"] == 0
    (finding,) = (each for each in result.findings if each.id == "dentries-negative")
    commands = [each.command for each in finding.remedies if "negative-dentry" in each.command]
    assert commands == ["sysctl -w fs.negative-dentry-limit=10"]


def test_a_limit_that_is_set_is_not_offered_again() -> None:
    target = open_target(DATA / "mixed.capsule")
    variable = target.prog["dcache_negative_dentry_limit_sysctl"]
    Poked(target.prog).write(variable.address_, (10).to_bytes(4, "little"))
    result = Context.of(target).run(analyses()["dentries"])
    limits = result.tables["limits"].frame.set_index("setting")["value"]
    assert limits["fs.negative-dentry-limit"] == 10
    (finding,) = (each for each in result.findings if each.id == "dentries-negative")
    assert not any("negative-dentry" in each.command for each in finding.remedies)


def test_list_lrus_without_lists_per_memory_cgroup(mixed: Guest) -> None:
    result = mixed.results["list-lru"]
    assert "per_memcg_lists" in result.summary
    assert not {"nr_cache_ids", "ids_in_use", "highest_id"} & {*result.summary}
    assert not len(result.tables["memcgs"].frame)
    assert mixed.value("list-lru", "items") == mixed.value("dentries", "on_lru")


def test_child_caches_are_counted_without_slabs_too(mixed: Guest, cfq: Guest) -> None:
    names = {cache.name for cache in mixed.kernel.slab_map.caches}
    children = sum("(" in name for name in names)
    assert mixed.value("slab", "child_caches") == children == 120
    assert mixed.value("slab", "child_caches_without_slabs") == children
    assert mixed.value("slab", "caches") == len(mixed.kernel.slab_map.caches) - children
    assert "child_caches" not in cfq.results["slab"].summary


def test_tasks_behind_a_holder_that_waits_for_a_request(cfq: Guest) -> None:
    figures = iosched.Figures(cfq.kernel)
    blocked = np.setdiff1d(np.arange(len(figures.waits)), figures.joins.wait)
    rows = behind_tasks(figures.waiting, blocked)
    assert {*figures.waits.pid[rows].tolist()} == {799, 800}


def test_system_calls_of_sleepers(cfq: Guest) -> None:
    sleepers = cfq.results["iosched"].tables["sleepers"].frame.set_index("pid")["entry"]
    assert {*sleepers[[793, 794, 795, 796]]} == {"pwrite64"}
    assert all(sleepers)


def test_a_switch_of_the_scheduler_can_be_kept(cfq: Guest) -> None:
    findings = cfq.results["iosched"].findings
    (remedy,) = (each for found in findings for each in found.remedies)
    assert "elevator=deadline" in remedy.until


def test_a_reply_names_the_limit_that_the_kernel_has() -> None:
    report = examine(Context.of(open_target(DATA / "mixed.capsule")))
    (line,) = (each for each in reply(report).splitlines() if each.startswith("Kernel with a fix"))
    assert "fs.negative-dentry-limit" in line
