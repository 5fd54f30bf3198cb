# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus dentries`` on *synthetic* kernels, in layouts that cannot be booted."""

from __future__ import annotations

import pytest

from kcensus.analyses import ParamError
from kcensus.engine.slub import scan
from kcensus.results import CheckStatus
from tests.running import on, rows, runner
from tests.unit.analyses.dentries.scenes import census, damage, figures, mounted, populate, watch
from tests.unit.fakekernel.dcache import BUCKETS, NAME_SLOT, SLOT, FakeDcache

pytestmark = pytest.mark.ends


def test_all_states_in_every_era(dcache: FakeDcache) -> None:
    populate(dcache)
    special = "lookup" in dcache.bits
    negative = 30 + 5 + 3
    dcache.count("nr_dentry", len(dcache.made) + 4, -5)
    dcache.count("nr_dentry_unused", 38, 0)
    result = census(dcache)
    assert figures(
        result, "dentries", "negative", "negative_unused", "dead", "in_lookup", "cursors"
    ) == (len(dcache.made), negative, negative - 1, 1, int(special), int(special))
    assert figures(result, "on_lru", "on_shrink_lists", "referenced") == (37, 1, 2)
    assert figures(result, "external_name_bytes", "negative_bytes") == (
        5 * NAME_SLOT,
        negative * SLOT + 5 * NAME_SLOT,
    )
    status = {check.source: check.status for check in result.checks}
    assert status["nr_dentry"] is CheckStatus.AGREE
    assert status["nr_dentry_unused"] is CheckStatus.AGREE
    negative_check = status["nr_dentry_negative"]
    assert (negative_check is CheckStatus.ABSENT) == (not dcache.era.negative_counter)
    assert rows(result, "super_blocks", "mount", "dentries", "negative") == [
        ("/", len(dcache.made), negative)
    ]
    assert rows(result, "directories", "directory", "negative", "others") == [
        ("/dir", negative, 1 + 2 * special)
    ]
    assert rows(result, "patterns", "pattern", "negative") == [
        ("tmp.<digits>", 30),
        ("a name that is too long for the dentry itself <digits>", 5),
        ("XXXX", 2),  # seen and held
        ("going", 1),
    ]
    assert result.findings == []
    # Bucket 2, from its head: held and seen end no row, since none has begun; then the file, then
    # thirty unreferenced ones. Bucket 3 has five. Buckets 1 and 18 have one dentry each.
    assert figures(result, "buckets", "longest_chain", "longest_negative_run") == (BUCKETS, 33, 30)
    left = 38 - 27 - 2
    assert figures(result, "patched_negative", "patched_bytes") == (
        left,
        left * SLOT + 3 * NAME_SLOT,
    )
    # With a sixteenth of the buckets the first sixteen are one, in the order of their first
    # dentries: those of bucket 2 (held, after all others), and of bucket 3 before, do not join.
    assert figures(result, "patched_negative_fewer_buckets") == (38 - 29,)
    assert rows(result, "chains", "length", "buckets", "negative") == [
        (0, BUCKETS - 4, 0),
        (1, 2, 1),
        (5, 1, 5),
        (33, 1, 32),
    ]
    assert damage(result) == {}


def test_walks_and_pages(dcache: FakeDcache) -> None:
    _, made = populate(dcache, 60)
    watch(dcache, made["dir"])
    result = census(dcache)
    special = 2 * ("lookup" in dcache.bits)
    assert rows(result, "walk_cost", "directory", "watched", "children", "negative", "sweeps") == [
        ("/dir", True, 69 + special, 68, 1),
        ("/", False, 1, 0, 0),
    ]
    assert rows(result, "walk_cost", "at_tail", "damaged") == [(False, False), (None, False)]
    per_slab = 4096 // SLOT
    pinning = [0] * len(dcache.slabs)
    for dentry in made.values():
        unused = dentry.name.startswith((b"tmp", b"a name", b"seen", b"going"))
        pinning[dcache.slabs.index(dentry.slab)] += not unused
    pinning[0] += 1  # the root
    assert rows(result, "fragmentation", "pinned_by", "slabs") == [
        (count, pinning.count(count)) for count in sorted(set(pinning))
    ]
    assert figures(result, "pages_freeable") == (pinning.count(0),)
    assert pinning.count(0) > 0
    frame = result.tables["fragmentation"].frame
    assert (frame["dentries"] + frame["free_slots"]).sum() == per_slab * len(dcache.slabs)


def test_memory_cgroups() -> None:
    dcache = FakeDcache()
    k = dcache.machine
    online, offline = k.memcg("a", k.root), k.memcg("d", k.root, flags=16)
    populate(dcache)
    first = [dentry for dentry in dcache.made.values() if dentry.slab is dcache.slabs[0]]
    owners = {dentry.slot: (online, offline)[dentry.slot % 2] for dentry in first}
    k.charge(dcache.slabs[0], owners)
    negative = {dentry.slot for dentry in first if dentry.name.startswith(b"tmp")}
    found = rows(census(dcache), "memcgs", "memcg", "state", "dentries", "negative")
    odd = sum(slot % 2 for slot in negative)
    assert sorted(found) == sorted(
        [
            ("/a", "online", 10, len(negative) - odd),
            ("/d", "offline", 9, odd),
            ("(no memory cgroup)", "none", len(dcache.made) - 19, 38 - len(negative)),
        ]
    )


def test_places_without_a_path() -> None:
    """Removed, not mounted, without a super block, or seen by a container alone."""
    dcache, root = mounted()
    away = dcache.super_block("sdc")
    dcache.files.mount(away, None, namespace=dcache.machine.alloc("struct mnt_namespace"))
    for above in (root, away.s_root[0]):
        dcache.dentry(b"x1", above)
    other = dcache.super_block("sdb")
    removed = dcache.dentry(b"removed", root, directory=True, count=1).object
    dcache.dentry(b"x1", removed)
    hashed = dcache.dentry(b"there", other.s_root[0], directory=True, count=1, bucket=0).object
    dcache.dentry(b"x1", hashed)
    alone = dcache.dentry(b"", root, directory=True, count=1, listed=False).object
    dcache.machine.set(alone.d_parent, alone)
    dcache.dentry(b"x1", alone)
    dcache.finish()
    assert sorted(rows(census(dcache), "directories", "directory", "state")) == [
        ("/", "disconnected"),
        ("/", "mounted"),
        ("/", "other namespace"),
        ("/removed", "unhashed"),
        ("/there", "unmounted"),
    ]


def test_limits_of_the_kernel(plain: FakeDcache) -> None:
    k = plain.machine
    k.variable("dentry_negative_policy", "int", 1)
    k.variable("dentry_fs_klimit_sysctl", "int", 0)
    k.variable("sysctl_vfs_cache_pressure", "int", 200)
    assert rows(census(plain), "limits", "setting", "value") == [
        ("fs.dentry-negative", 1),
        ("fs.dentry-fs-klimit", 0),
        ("vm.vfs_cache_pressure", 200),
    ]


def test_parts_and_their_names(dcache: FakeDcache) -> None:
    populate(dcache)
    assert set(census(dcache, only="totals").tables) == {"limits"}
    assert set(census(dcache, only="walk-cost, chains").tables) >= {"walk_cost", "chains"}
    with pytest.raises(ParamError, match="unknown part 'everything'"):
        census(dcache, only="totals,everything")
    with pytest.raises(ParamError, match="--limit: '0' is not an integer"):
        census(dcache, limit=0)


def test_what_is_beyond_a_short_table(plain: FakeDcache) -> None:
    result = census(plain, limit=2)
    assert rows(result, "patterns", "pattern", "negative")[2:] == [("(2 more patterns)", 3)]
    # Names of several patterns may be in the same directories, so their number is not known.
    directories = result.tables["patterns"].frame["directories"]
    assert directories.isna().tolist() == [False, False, True]


@pytest.mark.parametrize("era", ["6.15", "7.3"])
def test_mounts_are_counted(era: str) -> None:
    dcache = FakeDcache(era)
    populate(dcache)

    def status() -> CheckStatus:
        (check,) = (check for check in census(dcache).checks if "nr_mounts" in check.source)
        return check.status

    assert status() is CheckStatus.AGREE
    dcache.machine.set(dcache.files.home.nr_mounts, 2)
    assert status() is CheckStatus.DIFFER


def test_no_negative_dentry(dcache: FakeDcache) -> None:
    super_block = dcache.super_block("sda")
    dcache.dentry(b"file", super_block.s_root[0], positive=True)
    dcache.finish()
    result = census(dcache)
    assert figures(result, "dentries", "negative", "negative_bytes") == (2, 0, 0)
    assert rows(result, "patterns", "pattern") == []
    assert rows(result, "directories", "directory") == []
    assert list(result.tables["patterns"].frame) == list(result.tables["patterns"].columns)
    assert damage(result) == {}


def test_walks_that_nobody_can_make_come_last() -> None:
    """A super block without a mount, such as that of tracefs, may have most children."""
    dcache, root = mounted()
    hidden = dcache.super_block("tracefs")
    dcache.dentry(b"x", root)
    for number in range(3):
        dcache.dentry(b"%d" % number, hidden.s_root[0])
    dcache.finish()
    result = census(dcache)
    assert rows(result, "walk_cost", "state", "children") == [("mounted", 1), ("unmounted", 3)]


def test_workers_merge_their_sums(dcache: FakeDcache, monkeypatch: pytest.MonkeyPatch) -> None:
    populate(dcache, flood=300)
    whole = census(dcache)
    monkeypatch.setattr(scan, "_SHARES", 1)
    many = runner("dentries")(on(dcache.machine.prog, jobs=2, chunk_bytes=1))
    assert figures(many, *many.summary) == figures(whole, *whole.summary)
    for name in whole.tables:
        assert many.tables[name].frame.equals(whole.tables[name].frame), name
    assert damage(many) == damage(whole)
