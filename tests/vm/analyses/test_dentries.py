# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus dentries`` on real kernels, against the guest's own counters and a slow walk."""

from __future__ import annotations

import json
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import drgn
import pandas as pd
import pytest
from drgn.helpers.linux.fs import for_each_file
from drgn.helpers.linux.mm import virt_to_phys
from drgn.helpers.linux.pid import for_each_task

from kcensus.analyses.dentries import PARTS
from kcensus.analyses.dentries.tables import NO_MEMCG
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.vfs.open_files import open_paths
from kcensus.results import CheckStatus, Remedy, Result
from kcensus.sources import Target, open_target
from tests.lab import Dump, build
from tests.lab.trials import returned_by
from tests.running import on, runner
from tests.vm import elf_edit
from tests.vm.oracles.dentries import OracleDentries

run = runner("dentries")

PAGE = 4096


class Case(NamedTuple):
    """A dump, what we say of it, and what the slow walk says."""

    dump: Dump
    prog: drgn.Program
    result: Result
    oracle: OracleDentries

    def table(self, name: str) -> Any:  # pandas-stubs: a cell may be any scalar
        return self.result.tables[name].frame

    def figure(self, name: str) -> Any:
        return self.result.summary[name].value

    @property
    def created(self) -> list[dict[str, Any]]:
        """What the workload made: per directory and pattern the names that are and that are not."""
        found: list[dict[str, Any]] = json.loads(self.dump.truth["created.json"])["names"]
        return found


@pytest.fixture(scope="module")
def case(mixed_dump: Dump, mixed_target: Target) -> Case:
    prog = mixed_target.prog
    context = on(prog)
    return Case(mixed_dump, prog, run(context), OracleDentries(prog))


def dentry_state(dump: Dump) -> list[int]:
    return [int(field) for field in dump.truth["dentry-state"].split()]


def test_totals_are_those_the_guest_read_last(case: Case) -> None:
    """dentry-state is the last thing it read, and it makes no system call until the dump."""
    total, unused, _, _, negative, _ = dentry_state(case.dump)
    assert case.figure("dentries") - case.figure("dead") == total
    assert case.figure("on_lru") + case.figure("on_shrink_lists") == unused
    checks = {check.source: check for check in case.result.checks}
    assert checks["nr_dentry_negative"].ours == negative


def test_totals_equal_the_slow_walk(case: Case) -> None:
    oracle = case.oracle
    dentries, negatives = list(oracle.dentries.values()), oracle.negatives
    unused = [dentry for dentry in negatives if dentry.unused]
    assert case.figure("dentries") == len(dentries)
    assert case.figure("negative") == len(negatives)
    assert case.figure("negative_unused") == len(unused)
    assert case.figure("unused") == sum(dentry.unused for dentry in dentries)
    assert case.figure("dead") == sum(dentry.count < 0 for dentry in dentries)
    bits = oracle.bits
    on_list = [dentry for dentry in dentries if dentry.flags & bits.lru]
    shrinking = sum(bool(dentry.flags & bits.shrink) for dentry in on_list)
    assert case.figure("on_lru") == len(on_list) - shrinking
    assert case.figure("on_shrink_lists") == shrinking
    assert case.figure("referenced") == sum(
        bool(dentry.flags & bits.referenced) for dentry in dentries
    )
    assert case.figure("external_name_bytes") == sum(dentry.external for dentry in dentries) > 0
    assert case.figure("negative_bytes") == oracle.bytes_of(negatives)


def test_kernels_own_counters(case: Case) -> None:
    assert [check.source for check in case.result.checks] == [
        "nr_dentry",
        "nr_dentry_unused",
        "nr_dentry_negative",
        "list_lru_node.nr_items of s_dentry_lru",
        "mnt_namespace.nr_mounts of init",
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
    xfs = case.table("super_blocks").iloc[0]
    assert (xfs["mount"], xfs["type"], xfs["id"], xfs["state"]) == (
        "/srv",
        "xfs",
        "ram0",
        "mounted",
    )


def test_directories(case: Case) -> None:
    oracle = case.oracle
    expected = {}
    for address, children in oracle.directories.items():
        negative = [
            oracle.dentries[child] for child in children if not oracle.dentries[child].inode
        ]
        if negative:
            expected[address] = (
                oracle.path(address),
                len(negative),
                sum(dentry.unused for dentry in negative),
                len(children) - len(negative),
                oracle.bytes_of(negative),
            )
    frame = case.table("directories").set_index("address")
    columns = frame[["directory", "negative", "negative_unused", "others", "negative_bytes"]]
    found = dict(zip(frame.index, columns.itertuples(index=False, name=None), strict=True))
    assert found == expected
    assert frame["negative"].is_monotonic_decreasing
    assert frame["negative"].sum() == case.figure("negative")


def test_directories_have_what_the_workload_made(case: Case) -> None:
    expected: Counter[str] = Counter()
    for made in case.created:
        if made["dir"].startswith("/srv"):  # tmpfs keeps no negative dentries
            expected[made["dir"]] += made["negative"]
    frame = case.table("directories")
    found = dict(zip(frame["directory"], frame["negative"], strict=True))
    for directory, count in expected.items():
        # Looking for a directory that is not there yet leaves a negative dentry, which becomes
        # positive when it is made.
        assert found.get(directory, 0) == count, directory
    assert sum(expected.values()) > 40_000


def test_patterns_equal_the_slow_walk(case: Case) -> None:
    frame = case.table("patterns")
    found = {
        row.pattern: (row.negative, row.negative_bytes, row.directories)
        for row in frame.itertuples(index=False)
    }
    expected = {
        text: (sums["negative"], sums["bytes"], sums["directories"])
        for text, sums in case.oracle.patterns().items()
    }
    assert found == expected
    assert frame["negative"].sum() == case.figure("negative")


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
    expected: Counter[str] = Counter()
    for made in case.created:
        if made["dir"].startswith("/srv") and made["negative"]:
            expected[written[made["pattern"]]] += made["negative"]
    frame = case.table("patterns")
    found = dict(zip(frame["pattern"], frame["negative"], strict=True))
    assert {pattern: found[pattern] for pattern in expected} == dict(expected)
    assert len(expected) == len(written)


def test_memory_cgroups(case: Case) -> None:
    frame = case.table("memcgs")
    found: dict[str, Counter[str]] = {}
    for row in frame.itertuples(index=False):
        sums = found.setdefault(row.memcg, Counter())
        sums.update(dentries=row.dentries, negative=row.negative, bytes=row.negative_bytes)
    expected = dict(case.oracle.memcgs)
    expected[NO_MEMCG] = expected.pop("")
    assert found == expected
    assert len(found) > 40
    assert frame["dentries"].sum() == case.figure("dentries")


def test_hash_chains(case: Case) -> None:
    oracle = case.oracle
    frame = case.table("chains")
    buckets, negative = Counter[int](), Counter[int]()
    for chain in oracle.chains:
        buckets[len(chain)] += 1
        negative[len(chain)] += sum(oracle.dentries[node].negative for node in chain)
    assert dict(zip(frame["length"], frame["buckets"], strict=True)) == buckets
    assert dict(zip(frame["length"], frame["negative"], strict=True)) == negative
    assert case.figure("buckets") == len(oracle.chains)
    assert case.figure("longest_chain") == max(buckets)
    rows = Counter(
        max((len(row) for row in oracle.rows(chain)), default=0) for chain in oracle.chains
    )
    table = case.table("negative_runs")
    assert dict(zip(table["run"], table["buckets"], strict=True)) == rows
    assert case.figure("longest_negative_run") == max(rows)
    for row in case.table("longest_chains").itertuples(index=False):
        assert row.length == len(oracle.chains[row.bucket]) >= 3
        assert row.negative == sum(
            oracle.dentries[node].negative for node in oracle.chains[row.bucket]
        )


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
        sums["slabs"] += 1
        sums["dentries"] += len(dentries)
        sums["negative_unused"] += len(dentries) - pinned
    frame = case.table("fragmentation")
    found = {
        row.pinned_by: Counter(
            slabs=row.slabs, dentries=row.dentries, negative_unused=row.negative_unused
        )
        for row in frame.itertuples(index=False)
    }
    # Slabs without a single dentry are not in the slow walk, which goes by dentry.
    empty = int(case.figure("slab_bytes") // PAGE) - len(slabs)
    found[0]["slabs"] -= empty
    assert {at: +sums for at, sums in found.items()} == {at: +sums for at, sums in expected.items()}
    assert case.figure("pages_freeable") == expected[0]["slabs"] + empty
    assert (frame["dentries"] + frame["free_slots"]).sum() == case.figure("slab_bytes") // PAGE * 21


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


def opened(kernel: str, scenario: str) -> tuple[Dump, Result]:
    dump = build(kernel, scenario)
    return dump, run(on(open_target(str(dump.formats["elf"]), dump.debug).prog))


def remedy(result: Result, id_: str, command: str) -> Remedy:
    (finding,) = (each for each in result.findings if each.id == id_)
    (match,) = (each for each in finding.remedies if command in each.command)
    return match


def returned(dump: Dump, trial: str, after: str = "") -> int:
    """Bytes of dentries and of external names: nothing else is short-lived in the guest."""
    slabs = returned_by(dump.truth, trial, "slabinfo", after=after)
    return slabs["dentry"] + sum(
        size for name, size in slabs.items() if name in ("kmalloc-96", "kmalloc-rcl-96")
    )


@pytest.mark.usually("5.10", "7.3")
def test_what_dropping_returns(kernel: str) -> None:
    dump, result = opened(kernel, "dentries-drop")
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
    dump, result = opened(release, "dentries-memcg")
    reclaim = remedy(result, "dentries-negative", "/sys/fs/cgroup/app/memory.reclaim")
    assert reclaim.returns == pytest.approx(returned(dump, "reclaim"), rel=0.1)
    processes = result.tables["processes"].frame
    columns = ["directory", "comm", "cwd", "open_files"]
    assert processes[columns].to_numpy().tolist() == [["/srv/spool", "init", False, 3]]


def test_limits(case: Case) -> None:
    frame = case.table("limits")
    settings = dict(zip(frame["setting"], frame["value"], strict=True))
    assert settings["vm.vfs_cache_pressure"] == 100
    assert ("fs.dentry-negative" in settings) == ("dentry_negative_policy" in case.prog)


@pytest.mark.parametrize("options", [{"chunk_bytes": 64 << 10}, {"jobs": 2}])
def test_the_same_in_other_pieces(case: Case, options: dict[str, int]) -> None:
    context = on(case.prog, **options)
    again = run(context)
    assert again.summary == case.result.summary
    assert again.findings == case.result.findings
    assert list(again.tables) == list(case.result.tables)
    for name, table in again.tables.items():
        pd.testing.assert_frame_equal(table.frame, case.result.tables[name].frame)


def test_parts_are_those_of_the_whole(case: Case) -> None:
    context = on(case.prog)
    for part in PARTS:
        some = run(context, only=f"totals,{part}")
        assert some.tables.keys() >= {part, "limits"}
        for name, table in some.tables.items():
            pd.testing.assert_frame_equal(table.frame, case.result.tables[name].frame)
        assert all(case.result.summary[name] == figure for name, figure in some.summary.items())


def test_a_short_table_adds_up_the_rest(case: Case) -> None:
    context = on(case.prog)
    some = run(context, limit=3)
    for name in ("directories", "patterns"):
        frame, whole = some.tables[name].frame, case.table(name)
        assert len(frame) == 4
        pd.testing.assert_frame_equal(
            frame[["negative", "negative_bytes"]].head(3),
            whole[["negative", "negative_bytes"]].head(3),
        )
        assert frame["negative"].sum() == whole["negative"].sum()
        assert frame["negative_bytes"].sum() == whole["negative_bytes"].sum()
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
    for place, value in (
        (chain[1] + hash_link, chain[0] + hash_link),
        (ring[-1] + sibling, ring[10] + sibling),
    ):
        elf_edit.poke(dump, int(virt_to_phys(prog, place)), value.to_bytes(8, "little"))

    target = open_target(str(dump), case.dump.debug)
    start = time.monotonic()
    result = run(on(target.prog))
    assert time.monotonic() - start < 30
    summary = {name: figure.value for name, figure in result.summary.items()}
    assert summary["dentries"] == len(oracle.dentries) - len(gone)
    assert summary["negative"] == len(oracle.negatives) - len(gone)
    assert summary["negative_bytes"] == case.figure("negative_bytes") - oracle.bytes_of(gone)
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
