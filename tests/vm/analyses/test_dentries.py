# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus dentries`` on real kernels, against the guest's own counters and a slow walk."""

from __future__ import annotations

import json
import time
from collections import Counter
from itertools import groupby, pairwise
from pathlib import Path
from typing import Literal

import drgn
import pandas as pd
import pytest
from drgn.helpers.linux.fs import for_each_file
from drgn.helpers.linux.mm import virt_to_phys
from drgn.helpers.linux.pid import for_each_task

from kcensus.analyses.dentries import PARTS
from kcensus.analyses.dentries.tables import NO_MEMCG
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.vfs.files import open_paths
from kcensus.results import CheckStatus
from kcensus.sources import Target, open_target
from tests.lab import Dump, build
from tests.lab.trials import kmalloc_slot, returned_by
from tests.running import rows
from tests.vm import cases, elf_edit
from tests.vm.cases import analyzed, opened, remedy
from tests.vm.oracles.dentries import REFERENCED, SHRINK, OracleDentries

pytestmark = pytest.mark.machines

Case = cases.Case[OracleDentries]


@pytest.fixture(scope="module")
def case(mixed_dump: Dump, mixed_target: Target) -> Case:
    return Case.of(mixed_dump, mixed_target, "dentries", OracleDentries)


def missing_below_srv(dump: Dump, key: str) -> Counter[str]:
    counts: Counter[str] = Counter()
    for made in json.loads(dump.truth["created.json"])["names"]:
        if made["dir"].startswith("/srv"):  # tmpfs keeps no negative dentries
            counts[made[key]] += made["negative"]
    return counts


def test_totals_are_those_the_guest_read_last(case: Case) -> None:
    """dentry-state is the last thing it read, and it makes no system call until the dump."""
    total, unused, _, _, negative, _ = map(int, case.dump.truth["dentry-state"].split())
    assert case.figure("dentries") - case.figure("dead") == total
    assert case.figure("on_lru") + case.figure("on_shrink_lists") == unused
    checks = {check.source: check for check in case.result.checks}
    assert checks["nr_dentry_negative"].ours == negative


def test_totals_equal_the_slow_walk(case: Case) -> None:
    oracle = case.oracle
    dentries, negatives = list(oracle.dentries.values()), oracle.negatives
    on_list = [dentry for dentry in dentries if dentry.flags & oracle.lru]
    shrinking = sum(bool(dentry.flags & SHRINK) for dentry in on_list)
    expected = {
        "dentries": len(dentries),
        "negative": len(negatives),
        "negative_unused": sum(dentry.unused for dentry in negatives),
        "unused": sum(dentry.unused for dentry in dentries),
        "dead": sum(dentry.count < 0 for dentry in dentries),
        "on_lru": len(on_list) - shrinking,
        "on_shrink_lists": shrinking,
        "referenced": sum(bool(dentry.flags & REFERENCED) for dentry in dentries),
        "external_name_bytes": sum(dentry.external for dentry in dentries),
        "negative_bytes": oracle.bytes_of(negatives),
    }
    assert {name: case.figure(name) for name in expected} == expected
    assert expected["external_name_bytes"] > 0


def test_kernels_own_counters(case: Case) -> None:
    assert [check.source for check in case.result.checks] == [
        "nr_dentry",
        "nr_dentry_unused",
        "nr_dentry_negative",
        "list_lru_node.nr_items of s_dentry_lru",
        "mnt_namespace.nr_mounts of init",
        "list_lru_node.nr_items of s_dentry_lru, without the root's",
    ]
    assert {check.status for check in case.result.checks} == {CheckStatus.AGREE}
    assert case.result.gaps == []


def test_super_blocks(case: Case) -> None:
    expected: dict[int, Counter[str]] = {}
    for dentry in case.oracle.dentries.values():
        sums = expected.setdefault(dentry.super_block, Counter())
        sums["dentries"] += 1
        if dentry.negative:
            sums["negative"] += 1
            sums["negative_unused"] += dentry.unused
            sums["negative_bytes"] += case.oracle.slot_size + dentry.external
    found = case.table("super_blocks").set_index("address")
    for name in ("dentries", "negative", "negative_unused", "negative_bytes"):
        values = {key: value for key, value in found[name].items() if value}
        assert values == {key: sums[name] for key, sums in expected.items() if sums[name]}, name
    (first, *_) = rows(case.result, "super_blocks", "mount", "type", "id", "state")
    assert first == ("/srv", "xfs", "ram0", "mounted")


def test_directories(case: Case) -> None:
    oracle = case.oracle
    expected = []
    for address, children in oracle.directories.items():
        dentries = [oracle.dentries[child] for child in children]
        if negative := [dentry for dentry in dentries if not dentry.inode]:
            unused = sum(dentry.unused for dentry in negative)
            counts = len(negative), unused, len(children) - len(negative)
            expected.append((address, oracle.path(address), *counts, oracle.bytes_of(negative)))
    counted = ("negative", "negative_unused", "others", "negative_bytes")
    found = rows(case.result, "directories", "address", "directory", *counted)
    assert sorted(found) == sorted(expected)
    negatives = case.table("directories")["negative"]
    assert negatives.is_monotonic_decreasing
    assert negatives.sum() == case.figure("negative")


def test_directories_have_what_the_workload_made(case: Case) -> None:
    expected = missing_below_srv(case.dump, "dir")
    found = dict(rows(case.result, "directories", "directory", "negative"))
    # Looking for a directory that is not there yet leaves a negative dentry, which becomes positive
    # when it is made.
    assert {directory: found.get(directory, 0) for directory in expected} == expected
    assert expected.total() > 40_000


def test_patterns_equal_the_slow_walk(case: Case) -> None:
    found = rows(case.result, "patterns", "pattern", "negative", "negative_bytes", "directories")
    assert sorted(found) == sorted(
        (text, sums["negative"], sums["bytes"], sums["directories"])
        for text, sums in case.oracle.patterns().items()
    )
    assert case.table("patterns")["negative"].sum() == case.figure("negative")


def test_patterns_are_those_of_the_workload(case: Case) -> None:
    written = {
        "{d}": "<digits>",
        "tmp.{a6}": "tmp.XXXXXX",
        "{x16}.lock": "<hex>.lock",
        "{x16}": "<hex>",
        "lib{x6}.so": "lib<hex>.so",
        "event-{d}.json": "event-<digits>.json",
        "config-{d}": "config-<digits>",
        "a long name of more than forty bytes, kept outside {d6}": (
            "a long name of more than forty bytes, kept outside <digits>"
        ),
    }
    expected = +missing_below_srv(case.dump, "pattern")
    found = dict(rows(case.result, "patterns", "pattern", "negative"))
    assert {made: found[written[made]] for made in expected} == expected
    assert len(expected) == len(written)


def test_memory_cgroups(case: Case) -> None:
    frame = case.table("memcgs")
    found = frame.groupby("memcg")[["dentries", "negative", "negative_bytes"]].sum().T.to_dict()
    expected = dict(case.oracle.memcgs)
    expected[NO_MEMCG] = expected.pop("")
    assert found == expected
    assert len(found) > 40
    assert frame["dentries"].sum() == case.figure("dentries")


def test_hash_chains(case: Case) -> None:
    oracle = case.oracle
    negatives = [sum(oracle.dentries[node].negative for node in chain) for chain in oracle.chains]
    sizes = sorted(zip(map(len, oracle.chains), negatives, strict=True))
    by_length = {length: [*chains] for length, chains in groupby(sizes, lambda size: size[0])}
    assert rows(case.result, "chains", "length", "buckets", "negative") == [
        (length, len(chains), sum(negative for _, negative in chains))
        for length, chains in by_length.items()
    ]
    assert case.figure("buckets") == len(oracle.chains)
    assert case.figure("longest_chain") == max(by_length)
    runs = Counter(max(map(len, oracle.rows(chain)), default=0) for chain in oracle.chains)
    assert dict(rows(case.result, "negative_runs", "run", "buckets")) == runs
    assert case.figure("longest_negative_run") == max(runs)
    for bucket, *size in rows(case.result, "longest_chains", "bucket", "length", "negative"):
        assert size == [len(oracle.chains[bucket]), negatives[bucket]]
        assert size[0] >= 3


def test_what_the_limit_would_leave(case: Case) -> None:
    oracle = case.oracle
    trimmed = oracle.trimmed()
    assert case.figure("patched_negative") == len(oracle.negatives) - len(trimmed)
    bytes_left = oracle.bytes_of(oracle.negatives) - oracle.bytes_of(trimmed)
    assert case.figure("patched_bytes") == bytes_left
    fewer = len(oracle.negatives) - len(oracle.trimmed(16))
    assert case.figure("patched_negative_fewer_buckets") == fewer
    assert fewer < case.figure("patched_negative") < len(oracle.negatives)


def test_walk_cost(case: Case) -> None:
    oracle = case.oracle
    frame = case.table("walk_cost")
    shown = frame.set_index("address")
    blocks = case.table("super_blocks").set_index("address")["mount"]

    def rank(at: int) -> tuple[bool, bool, int]:
        hidden = not blocks[oracle.dentries[at].super_block]
        return not oracle.is_watched(at), hidden, -len(oracle.directories[at])

    # Those of cgroups and their files are many more.
    expected = sorted(oracle.directories, key=rank)[: len(frame)]
    assert len(frame) == 100
    assert frame["children"].tolist() == [len(oracle.directories[at]) for at in expected]
    for address, row in shown.iterrows():
        kinds = [bool(oracle.dentries[child].inode) for child in oracle.directories[address]]
        sweeps = sum(a < b for a, b in pairwise(kinds))
        assert row["sweeps"] == sweeps, row
        assert row["at_tail"] == ((sweeps == 0) if False in kinds else None)
        assert row["watched"] == oracle.is_watched(address)
        assert (row["children"], row["negative"]) == (len(kinds), kinds.count(False))
        assert row["directory"] == oracle.path(address)
        assert not row["damaged"]
    watched = frame[frame["watched"]]
    assert watched["directory"].tolist() == ["/srv/watched"]
    assert frame["directory"].iloc[0] == "/srv/watched"
    assert any(frame["sweeps"] > 1000), "files removed among others leave negatives among positives"


def test_fragmentation(case: Case) -> None:
    expected: dict[int, Counter[str]] = {}
    slabs = case.oracle.slabs
    for dentries in slabs.values():
        pinned = sum(not (dentry.negative and dentry.unused) for dentry in dentries)
        sums = expected.setdefault(pinned, Counter())
        sums.update(slabs=1, dentries=len(dentries), negative_unused=len(dentries) - pinned)
    # Slabs without a single dentry are not in the slow walk, which goes by dentry.
    count = int(case.figure("slab_bytes")) // case.page
    expected[0]["slabs"] += count - len(slabs)
    frame = case.table("fragmentation")
    counted = frame.set_index("pinned_by")[["slabs", "dentries", "negative_unused"]]
    assert {at: +Counter(sums) for at, sums in counted.T.to_dict().items()} == {
        at: +sums for at, sums in expected.items()
    }
    assert case.figure("pages_freeable") == expected[0]["slabs"]
    slots = case.page // drgn.sizeof(case.prog.type("struct dentry"))
    assert (frame["dentries"] + frame["free_slots"]).sum() == count * slots


def test_processes(case: Case) -> None:
    """In the mixed scenario, those that hold files have no directory of most negatives."""
    prog = case.prog
    paths = open_paths(Kernel(prog))
    expected = Counter[tuple[int, str, int, bool]]()
    for task in for_each_task(prog, idle=False):
        if task.tgid != task.pid:
            continue
        pid, comm = int(task.pid), task.comm.string_().decode()
        if task.fs:
            expected[pid, comm, int(task.fs.pwd.dentry), False] += 1
        if task.files:
            for _, file in for_each_file(task):
                expected[pid, comm, int(file.f_path.dentry), True] += 1
    found = Counter(
        (int(paths.pid[row]), paths.comm[row], dentry, is_file)
        for row, dentry, is_file in zip(
            paths.process.tolist(), paths.dentry.tolist(), paths.is_file.tolist(), strict=True
        )
    )
    assert found == expected
    assert paths.is_file.sum() > 1000
    assert (paths.damaged, paths.faults) == (0, {})


# What remedies return


def returned(dump: Dump, trial: str, after: str = "") -> int:
    """Bytes of dentries and of external names: nothing else is short-lived in the guest."""
    slabs = returned_by(dump.truth, trial, "slabinfo", after=after)
    slot = kmalloc_slot(slabs, 96)
    names = (f"kmalloc-{slot}", f"kmalloc-rcl-{slot}")
    return slabs["dentry"] + sum(slabs[name] for name in names if name in slabs)


@pytest.mark.usually("5.10", "7.3")
def test_what_dropping_returns(kernel: str) -> None:
    dump = build(kernel, "dentries-drop")
    result = analyzed(opened(dump), "dentries")
    main = "dentries-negative"
    drop = remedy(result, main, "drop_caches").returns
    assert drop == pytest.approx(returned(dump, "drop-caches", "again"), rel=0.1)
    rmdir = remedy(result, "dentries-directory:/srv/spool/tmp", "rmdir").returns
    assert rmdir == pytest.approx(returned(dump, "rmdir"), rel=0.1)
    # The guest removed the directory first.
    remount = (remedy(result, main, "remount").returns or 0) - (rmdir or 0)
    assert remount == pytest.approx(returned(dump, "remount", "rmdir"), rel=0.1)


@pytest.mark.usually("6.12")
@pytest.mark.parametrize("release", ["6.1", "6.12", "7.3"])
def test_what_reclaim_of_a_cgroup_returns(release: str) -> None:
    dump = build(release, "dentries-memcg")
    result = analyzed(opened(dump), "dentries")
    reclaim = remedy(result, "dentries-negative", "/sys/fs/cgroup/app/memory.reclaim")
    assert reclaim.returns == pytest.approx(returned(dump, "reclaim"), rel=0.1)
    processes = rows(result, "processes", "directory", "comm", "cwd", "open_files")
    assert processes == [("/srv/spool", "init", False, 3)]


def test_limits(case: Case) -> None:
    settings = dict(rows(case.result, "limits", "setting", "value"))
    assert settings["vm.vfs_cache_pressure"] == 100
    assert ("fs.dentry-negative" in settings) == ("dentry_negative_policy" in case.prog)


def test_parts_are_those_of_the_whole(case: Case) -> None:
    for part in PARTS:
        some = analyzed(case.target, "dentries", only=f"totals,{part}")
        assert some.tables.keys() >= {part, "limits"}
        for name, table in some.tables.items():
            pd.testing.assert_frame_equal(table.frame, case.result.tables[name].frame)
        assert all(case.result.summary[name] == figure for name, figure in some.summary.items())


def test_a_short_table_adds_up_the_rest(case: Case) -> None:
    some = analyzed(case.target, "dentries", limit=3)
    for name in ("directories", "patterns"):
        frame, whole = (
            table[["negative", "negative_bytes"]]
            for table in (some.tables[name].frame, case.table(name))
        )
        assert len(frame) == 4
        pd.testing.assert_frame_equal(frame.head(3), whole.head(3))
        pd.testing.assert_series_equal(frame.sum(), whole.sum())
    assert len(some.tables["walk_cost"].frame) == 3


def test_damage(case: Case, tmp_path: Path) -> None:
    """A chain and a list of children in a ring, and pages that were filtered out."""
    oracle, prog = case.oracle, case.prog
    chain = next(chain for chain in oracle.chains if len(chain) >= 4)
    ring = next(
        children
        for address, children in oracle.directories.items()
        if oracle.path(address) == "/srv/spool/locks"
    )
    # Two slab pages of nothing but unused negatives, none of them in what is damaged besides.
    touched = {*chain, *ring}
    whole = [
        (start, dentries)
        for start, dentries in oracle.slabs.items()
        if all(dentry.negative for dentry in dentries)
        and not touched & {dentry.address for dentry in dentries}
    ]
    lost = [whole[0], whole[-1]]
    gone = [dentry for _, dentries in lost for dentry in dentries]
    pages = [int(virt_to_phys(prog, start)) >> 12 for start, _ in lost]
    type_ = prog.type("struct dentry")
    hash_link = drgn.offsetof(type_, "d_hash")
    sibling = drgn.offsetof(type_, "d_sib" if type_.has_member("d_sib") else "d_child")
    dump = tmp_path / "damaged"
    elf_edit.without_pages(case.dump.formats["elf"], dump, pages)
    is_little = bool(prog.platform.flags & drgn.PlatformFlags.IS_LITTLE_ENDIAN)
    order: Literal["little", "big"] = "little" if is_little else "big"
    for place, value in (
        (chain[1] + hash_link, chain[0] + hash_link),
        (ring[-1] + sibling, ring[10] + sibling),
    ):
        elf_edit.poke(dump, int(virt_to_phys(prog, place)), value.to_bytes(8, order))

    target = open_target(str(dump), case.dump.debug)
    start = time.monotonic()
    result = analyzed(target, "dentries")
    assert time.monotonic() - start < 30
    assert result.amount("dentries") == len(oracle.dentries) - len(gone)
    assert result.amount("negative") == len(oracle.negatives) - len(gone)
    assert result.amount("negative_bytes") == case.figure("negative_bytes") - oracle.bytes_of(gone)
    checks = {check.name: check for check in result.checks}
    assert checks["dentries"].status is CheckStatus.DIFFER
    assert checks["dentries"].difference == len(gone)
    gaps = {gap.what: gap.count for gap in result.gaps}
    assert gaps["slab pages"] == 2
    assert gaps["lists of children"] >= 1
    frame = result.tables["walk_cost"].frame.set_index("directory")
    assert frame.loc["/srv/spool/locks", "damaged"]
    assert frame.loc["/srv/spool/locks", "children"] == len(ring)
    # The chain ends early, and so do those that led through the lost pages.
    hashed = {dentry.address for dentry in gone if dentry.hashed}
    reached = cut = 0
    for bucket in oracle.chains:
        for node in bucket:
            if node in hashed:
                cut += 1
                break
            reached += 1
            if node == chain[1]:
                cut += 1
                break
    assert gaps["hash chains"] == cut
    assert (
        gaps["dentries"]
        == sum(dentry.hashed for dentry in oracle.dentries.values()) - len(hashed) - reached
    )
