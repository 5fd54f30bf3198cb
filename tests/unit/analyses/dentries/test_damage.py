# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus dentries`` on *synthetic* kernels with damage, and with names that are not text."""

from __future__ import annotations

import json

import pytest
from drgn import Object

from kcensus.analyses import AnalysisError
from kcensus.results import CheckStatus, Unit
from tests.running import document, rows
from tests.unit.analyses.dentries.scenes import (
    census,
    damage,
    figures,
    mounted,
    populate,
    populated,
)
from tests.unit.fakekernel.dcache import NAME_SLOT, SLOT, FakeDcache, Made

pytestmark = pytest.mark.ends


def test_descriptor_tables_of_an_impossible_size() -> None:
    dcache = FakeDcache()
    super_block, made = populate(dcache, 120)
    sick = dcache.files.process(7, b"sick", made["dir"].object, [made["file"].object])
    dcache.files.process(8, b"sound", super_block.s_root[0], [made["file"].object])
    dcache.machine.set(sick.files.fdt.max_fds, 0xFFFF_FFF0)
    result = census(dcache)
    assert rows(result, "processes", "pid", "cwd", "open_files") == [(7, True, 0), (8, False, 1)]
    assert damage(result) == {"lists of tasks or open files": 1}


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


def test_a_dentry_whose_inode_is_lost() -> None:
    dcache, made = populated()
    assert not damage(census(dcache))
    dcache.machine.set(made["file"].object.d_inode, 0)
    assert damage(census(dcache)) == {"dentries": 1}


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
