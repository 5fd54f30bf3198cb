# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus dentries`` on *synthetic* kernels: layouts that cannot be booted, and damage."""

from __future__ import annotations

import json
from typing import Any

import pytest
from drgn import Object

from kcensus.analyses import AnalysisError, ParamError
from kcensus.analyses.dentries.findings import _WALKS
from kcensus.kernel.vfs.dcache import Flags, flags
from kcensus.results import CheckStatus, Danger, Finding, Result, Severity, Unit
from tests.running import document, on, rows, runner
from tests.unit.fakekernel import FILE_ERAS
from tests.unit.fakekernel.dcache import BUCKETS, NAME_SLOT, SLOT, FakeDcache, Made

pytestmark = pytest.mark.ends

run = runner("dentries")

LONG = b"a name that is too long for the dentry itself %d"


@pytest.fixture(params=list(FILE_ERAS))
def dcache(request: pytest.FixtureRequest) -> FakeDcache:
    return FakeDcache(request.param)


@pytest.fixture
def plain() -> FakeDcache:
    return populated()[0]


def mounted() -> tuple[FakeDcache, Object]:
    dcache = FakeDcache()
    super_block = dcache.super_block("sda")
    dcache.files.mount(super_block, None)
    return dcache, super_block.s_root[0]


def populated() -> tuple[FakeDcache, dict[str, Made]]:
    dcache = FakeDcache()
    return dcache, populate(dcache)[1]


def watch(dcache: FakeDcache, directory: Made) -> None:
    k = dcache.machine
    inode = k.alloc("struct inode")
    k.set(inode.i_fsnotify_mask, 2)
    k.set(inode.i_fsnotify_marks, inode)
    k.set(directory.object.d_inode, inode)


def census(dcache: FakeDcache, **params: Any) -> Result:
    return run(on(dcache.machine.prog), **params)


def figures(result: Result, *names: str) -> tuple[Any, ...]:
    return tuple(result.summary[name].value for name in names)


def populate(dcache: FakeDcache, flood: int = 30) -> tuple[Object, dict[str, Made]]:
    """Files, names that do not exist, and dentries that are neither."""
    super_block = dcache.super_block("sda")
    root = super_block.s_root[0]
    dcache.files.mount(super_block, None)
    made = {"dir": dcache.dentry(b"dir", root, directory=True, count=1, bucket=1)}
    above = made["dir"].object
    for number in range(flood):
        made[f"n{number}"] = dcache.dentry(b"tmp.%03d" % number, above, "lru", bucket=2)
    for number in range(5):
        made[f"l{number}"] = dcache.dentry(LONG % number, above, "lru", bucket=3)
    made["file"] = dcache.dentry(b"file", above, "lru", "referenced", positive=True, bucket=2)
    made["seen"] = dcache.dentry(b"seen", above, "lru", "referenced", bucket=2)
    made["held"] = dcache.dentry(b"held", above, count=2, bucket=2)
    made["going"] = dcache.dentry(b"going", above, "lru", "shrink", bucket=18)
    made["dead"] = dcache.dentry(b"dead", above, count=-128, listed=False)
    if "lookup" in dcache.bits:
        made["lookup"] = dcache.dentry(b"lookup", above, "lookup", count=1)
        made["cursor"] = dcache.dentry(b"", above, "cursor", count=1)
    dcache.finish()
    return super_block, made


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


def damage(result: Result) -> dict[str, int]:
    """Count the gaps, but for what the bundled capsule of an era does not describe."""
    return {gap.what: gap.count for gap in result.gaps if "the capsule lacks" not in gap.reason}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a finding be about as little memory as a synthetic kernel has."""
    monkeypatch.setattr("kcensus.results.severity.MIN_BYTES", 1)
    monkeypatch.setattr("kcensus.analyses.dentries.findings.MIN_BYTES", 1)


def found(result: Result) -> dict[str, Finding]:
    assert len({finding.id for finding in result.findings}) == len(result.findings)
    return {finding.id: finding for finding in result.findings}


def commands(finding: Finding) -> list[str]:
    return [remedy.command for remedy in finding.remedies]


def flooded(dcache: FakeDcache, above: Object, in_use: int = 0) -> Result:
    """Add 80 negative dentries, one in ``in_use`` of which is in use; analyse 10 pages of RAM."""
    for number in range(80):
        count = int(in_use > 0 and number % in_use == 0)
        dcache.dentry(b"%d" % number, above, "lru", count=count)
    dcache.finish()
    dcache.machine.set_ram(10)
    return census(dcache)


@pytest.mark.usefixtures("small")
def test_what_negative_dentries_hold(dcache: FakeDcache) -> None:
    populate(dcache)
    dcache.machine.set_ram(10)
    result = census(dcache)
    main, directory, *_ = found(result).values()
    assert main.memory == {"slab:dentry": 38 * SLOT, "slab:kmalloc-96": 5 * NAME_SLOT}
    assert (
        main.holds == main.figures["negative_bytes"].value == figures(result, "negative_bytes")[0]
    )
    assert main.severity is Severity.WARNING
    assert not main.part_of
    assert (directory.id, directory.part_of) == ("dentries-directory:/dir", main.id)
    assert directory.holds == main.holds


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("busy", [False, True])
def test_remedies_return_what_whole_slabs_hold(dcache: FakeDcache, busy: bool) -> None:
    """A dentry in use keeps its slab."""
    super_block = dcache.super_block("sda")
    dcache.files.mount(super_block, None)
    result = flooded(dcache, super_block.s_root[0], 4 * busy)
    main = found(result)["dentries-negative"]
    first = dcache.slabs[0]
    sharing = sum(dentry.slab is first for dentry in dcache.made.values()) - 1
    if busy:
        assert main.returns is None
        assert main.no_remedy
        assert not any("drop_caches" in command for command in commands(main))
        assert found(result)["dentries-pinned"].part_of == main.id
        assert found(result)["dentries-pinned"].figures["kept"].value == 60
    else:
        assert main.returns == (80 - sharing) * SLOT
        assert commands(main)[:2] == ["mount -o remount /", "echo 2 > /proc/sys/vm/drop_caches"]
        assert all((each.returns or 0) <= (main.holds or 0) for each in main.remedies)


@pytest.mark.usefixtures("small")
def test_limits_are_offered_where_the_kernel_has_them(plain: FakeDcache) -> None:
    plain.machine.set_ram(10)
    main = found(census(plain))["dentries-negative"]
    assert not any("klimit" in command for command in commands(main))
    plain.machine.variable("dentry_fs_klimit_sysctl", "int", 0)
    plain.machine.variable("sysctl_vfs_cache_pressure", "int", 100)
    offered = {each.knobs: each for each in found(census(plain))["dentries-negative"].remedies}
    limit = offered["/proc/sys/fs/dentry-fs-klimit",]
    assert (limit.returns, limit.undo) == (None, "sysctl -w fs.dentry-fs-klimit=0")
    assert ("/proc/sys/vm/vfs_cache_pressure",) in offered


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("name", "written"),
    [
        (b"spool", "/spool"),
        (b"a b", "'/a b'"),
        (b"$(reboot)", "'/$(reboot)'"),
        (b"it's", """'/it'"'"'s'"""),
        (b"caf\xe9", None),
        (b"\x1b[m", None),
        (b"two\nlines", None),
    ],
)
def test_commands_with_names_that_others_chose(name: bytes, written: str | None) -> None:
    dcache, root = mounted()
    above = dcache.dentry(name, root, directory=True, count=1, bucket=0)
    every = [
        command for each in flooded(dcache, above.object).findings for command in commands(each)
    ]
    traced = [command for command in every if "bpftrace" in command]
    assert bool(traced) == (written is not None)
    assert all(f"stat -c %i {written})" in command for command in traced)


@pytest.mark.usefixtures("small")
def test_an_old_kernel_has_no_bpftrace(monkeypatch: pytest.MonkeyPatch) -> None:
    def old(*given: Any) -> Flags:
        return flags(*given)._replace(par_lookup=0)

    monkeypatch.setattr("kcensus.analyses.dentries.figures.flags", old)
    dcache, root = mounted()
    above = dcache.dentry(b"spool", root, directory=True, count=1, bucket=0)
    found = flooded(dcache, above.object).findings
    assert found
    assert not any("bpftrace" in command for each in found for command in commands(each))


@pytest.mark.usefixtures("small")
def test_who_is_in_a_directory() -> None:
    dcache = FakeDcache()
    super_block, made = populate(dcache, 120)
    dcache.machine.set_ram(10)
    root, above, below = super_block.s_root[0], made["dir"].object, made["file"].object
    dcache.files.process(7, b"cron", above, [root, None, below])
    dcache.files.process(8, b"postfix/qmgr\0xyz", root, [above, below])
    dcache.files.process(9, b"elsewhere", root, [root])
    result = census(dcache)
    assert rows(result, "processes", "directory", "pid", "comm", "cwd", "open_files") == [
        ("/dir", 7, "cron", True, 1),
        ("/dir", 8, "postfix/qmgr", False, 2),
    ]
    assert "cron (PID 7) in /dir" in found(result)["dentries-negative"].evidence
    assert damage(result) == {}


def test_descriptor_tables_of_an_impossible_size() -> None:
    dcache = FakeDcache()
    super_block, made = populate(dcache, 120)
    sick = dcache.files.process(7, b"sick", made["dir"].object, [made["file"].object])
    dcache.files.process(8, b"sound", super_block.s_root[0], [made["file"].object])
    dcache.machine.set(sick.files.fdt.max_fds, 0xFFFF_FFF0)
    result = census(dcache)
    assert rows(result, "processes", "pid", "cwd", "open_files") == [(7, True, 0), (8, False, 1)]
    assert damage(result) == {"lists of tasks or open files": 1}


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("damaged", [False, True])
def test_a_long_walk(monkeypatch: pytest.MonkeyPatch, lazy: bool, damaged: bool) -> None:
    monkeypatch.setitem(_WALKS, Severity.NOTICE, 10)
    monkeypatch.setattr("kcensus.analyses.dentries.findings._clears_lazily", lambda _: lazy)
    dcache, made = populated()
    watch(dcache, made["dir"])
    if damaged:
        dcache.machine.set(made["n0"].object.d_sib.next, made["n4"].object.d_sib)
    (walk,) = census(dcache).findings
    assert (walk.id, walk.danger, walk.part_of) == ("dentries-watch:/dir", Danger.STALL, "")
    assert walk.patch == ("" if lazy else "fsnotify-lazy-parent-watched")
    assert ("first watch" in walk.title) == lazy
    assert ("order is unknown" in walk.evidence) == damaged


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


@pytest.mark.parametrize(
    ("name", "type_", "value"),
    [
        # A walk of a thousand million buckets that do not exist would take forever.
        *(("d_hash_shift", "unsigned int", shift) for shift in (0, 2, 32, 40)),
        *(
            ("dentry_hashtable", "unsigned long *", address)
            for address in (-1, 0, 0x1000, 0xFFFF_8880_0000_0001, (1 << 64) - 64)
        ),
    ],
)
def test_a_hash_table_that_cannot_be(plain: FakeDcache, name: str, type_: str, value: int) -> None:
    plain.machine.variable(name, type_, value)
    result = census(plain)
    assert damage(result) == {"hash table": 1}
    assert figures(result, "patched_negative", "patched_bytes", "buckets") == (None, None, None)
    assert result.summary["patched_bytes"].unit is Unit.BYTES
    assert figures(result, "negative") == (38,)


@pytest.mark.parametrize("name", ["dentry_hashtable", "d_hash_shift", "nr_dentry", "init_pid_ns"])
def test_a_variable_of_another_type(name: str, plain: FakeDcache) -> None:
    """As when two objects of a capsule are exchanged."""
    plain.machine.symbols[name] = plain.machine.symbols["super_blocks"]
    result = census(plain)
    assert figures(result, "negative") == (38,)
    absent = {check.source for check in result.checks if check.status is CheckStatus.ABSENT}
    assert damage(result) or name in absent


@pytest.mark.parametrize("value", [-5, 0x41414141])
def test_a_sysctl_that_cannot_be(value: int, plain: FakeDcache) -> None:
    plain.machine.variable("sysctl_vfs_cache_pressure", "int", value)
    result = census(plain)
    assert rows(result, "limits", "setting") == []
    assert damage(result) == {"sysctls": 1}


@pytest.mark.parametrize("nodes", [0, 100_000, 3_000_000])
def test_nodes_that_no_machine_has(nodes: int, plain: FakeDcache) -> None:
    plain.machine.constant("nr_node_ids", nodes)
    lrus = [check for check in census(plain).checks if "nr_items" in check.source]
    assert {lru.status for lru in lrus} == {CheckStatus.ABSENT}


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


def test_names_that_cannot_be_read() -> None:
    dcache, made = populated()
    k = dcache.machine
    k.set(made["held"].object.d_name.len, 300)
    k.set(made["l0"].object.d_name.len, 300)
    result = census(dcache)
    columns = ("pattern", "negative", "negative_unused", "negative_bytes")
    unreadable = "(names that could not be read)"
    assert rows(result, "patterns", *columns)[-1] == (unreadable, 2, 1, 2 * SLOT + NAME_SLOT)
    total = result.tables["patterns"].frame["negative_bytes"].sum()
    assert total == figures(result, "negative_bytes")[0]
    # And no other.
    dcache = FakeDcache()
    made["x"] = dcache.dentry(b"x", dcache.super_block("sda").s_root[0])
    dcache.finish()
    dcache.machine.set(made["x"].object.d_name.len, 300)
    assert rows(census(dcache), "patterns", "pattern", "negative") == [(unreadable, 1)]


def test_names_of_zeros_are_lost() -> None:
    dcache, made = populated()
    k = dcache.machine
    inline, outside = (made[name].object for name in ("held", "l0"))
    before = census(dcache)
    k.write(inline.d_name.name.value_(), bytes(int(inline.d_name.len)))
    k.write(outside.d_name.name.value_(), bytes(int(outside.d_name.len)))
    result = census(dcache)
    last = rows(result, "patterns", "pattern", "negative", "negative_unused")[-1]
    assert last == ("(names that could not be read)", 2, 1)
    assert "" not in set(result.tables["patterns"].frame["pattern"])
    assert figures(result, "negative") == figures(before, "negative")
    assert damage(result) == {"names": 2}


def test_parents_that_are_no_dentries() -> None:
    dcache, made = populated()
    for name in ("held", "l0", "file"):
        dcache.machine.set(made[name].object.d_parent, 0xFFFF_8880_0012_3450)
    columns = ("directory", "negative", "negative_unused", "others", "negative_bytes")
    lost = ("(parents that are not in the dump)", 2, 1, 1, 2 * SLOT + NAME_SLOT)
    assert rows(census(dcache), "directories", *columns)[-1] == lost
    # Parents that are lost.
    dcache, made = populated()
    # The root and the directory are on the first slab.
    dcache.machine.drop(dcache.slabs[0].address)
    result = census(dcache)
    frame = result.tables["directories"].frame
    assert frame[["directory", "state"]].to_numpy().tolist() == [["?", "unreadable"]]
    kept = [dentry for dentry in made.values() if dentry.slab is not dcache.slabs[0]]
    names = (b"tmp", b"a name", b"seen", b"held", b"going")
    assert frame["negative"].tolist() == [sum(dentry.name.startswith(names) for dentry in kept)]


def test_flags_in_an_unknown_order() -> None:
    dcache = FakeDcache("6.12")
    super_block, _ = populate(dcache)
    dcache.machine.set(super_block.s_root[0].d_flags, 0)
    with pytest.raises(AnalysisError, match="d_flags"):
        census(dcache)


def test_a_chain_that_leads_away_or_bites_its_tail_or_another(dcache: FakeDcache) -> None:
    _, made = populate(dcache)
    k, link = dcache.machine, made["n20"].object.d_hash.next
    following = int(link)
    k.set(link, 0xFFFF_8880_0012_3450)
    result = census(dcache)
    # Twenty follow n20: those that were added before it.
    assert damage(result) == {"hash chains": 1, "dentries": 20}
    counts = (len(dcache.made), 38, 33 - 20)
    assert figures(result, "dentries", "negative", "longest_chain") == counts
    k.set(link, following)
    k.set(made["n0"].object.d_hash.next, made["n7"].object.d_hash)
    k.set(made["l0"].object.d_hash.next, made["going"].object.d_hash)
    result = census(dcache)
    assert damage(result) == {"hash chains": 2}
    assert figures(result, "dentries", "negative", "longest_chain") == (len(dcache.made), 38, 33)


def test_lists_of_children_that_do_not_end(dcache: FakeDcache) -> None:
    _, made = populate(dcache)
    k = dcache.machine
    name = "d_sib" if dcache.era.hlist else "d_child"

    def link(dentry: Made) -> Object:
        return (dentry.object.d_u if dcache.era.child_in_union else dentry.object).member_(name)

    for last, first in (("n0", "n4"), ("n0", "n0"), ("n3", "l2")):
        before = k.word(link(made[last]).address_)
        k.set(link(made[last]).next, link(made[first]))
        result = census(dcache)
        assert damage(result) == {"lists of children": 1}
        damaged = result.tables["walk_cost"].frame.set_index("directory")["damaged"]
        assert damaged.to_dict() == {"/dir": True, "/": False}
        assert figures(result, "negative") == (38,)
        k.write_words(link(made[last]).address_, before)


def test_filtered_pages(dcache: FakeDcache) -> None:
    populate(dcache)
    lost = dcache.slabs[1]
    dcache.machine.drop(lost.address)
    gone = [dentry for dentry in dcache.made.values() if dentry.slab is lost]
    result = census(dcache)
    assert figures(result, "dentries") == (len(dcache.made) - len(gone),)
    gaps = damage(result)
    assert gaps["slab pages"] == 1
    assert gaps["hash chains"] >= 1
    assert gaps["dentries"] == 17, "those on the first slab follow those that are lost"
    frame = result.tables["fragmentation"].frame
    assert frame["slabs"].sum() == len(dcache.slabs) - 1, "the lost one is not counted"


HOSTILE = {
    b"\x1b[mred\x1b[m": "\\x1b[mred\\x1b[m",
    b"[bold]x[/bold]": "[bold]x[/bold]",
    b"line\nbreak": "line\\x0abreak",
    b"caf\xe9 \xff\xfe": "caf\\xe9 \\xff\\xfe",
    "日本語".encode(): "日本語",
    "\u202etxt.exe".encode(): "\\u202etxt.exe",
    b"=HYPERLINK(x)": "=HYPERLINK(x)",
    b"<script>&amp;": "<script>&amp;",
}


def test_hostile_names() -> None:
    dcache, root = mounted()
    for name in HOSTILE:
        above = dcache.dentry(name, root, directory=True, count=1, bucket=0)
        # Two letters each, so that each is a pattern of its own.
        dcache.dentry(name, above.object, bucket=1)
    dcache.finish()
    tables = json.loads(document(census(dcache)))["tables"]
    assert {row["pattern"] for row in tables["patterns"]} == set(HOSTILE.values())
    paths = {row["directory"] for row in tables["directories"]}
    assert paths == {f"/{name}" for name in HOSTILE.values()}
