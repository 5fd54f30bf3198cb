# SPDX-License-Identifier: LGPL-2.1-or-later
"""A redacted capsule of RHEL 7.9 has no name of the guest, and the same figures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import drgn
import numpy as np
import pytest
from drgn.helpers.linux.list import list_for_each_entry

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.capsule import create
from kcensus.engine.layout import layout
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.scan import allocated
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.vfs.super_blocks import super_blocks
from kcensus.redaction.pseudonyms import Pseudonyms
from kcensus.redaction.user_names import Names, UserNames, kernel_words
from kcensus.results import Result
from kcensus.sources import Target, open_target
from kcensus.sources.capsule.container import Reader
from tests.sample.block.poked import Poked
from tests.sample.guest import Guest
from tests.sample.rhel7.conftest import DATA, PACK
from tests.vm.capsules import KEY, assert_same_without_names, pages

pytestmark = pytest.mark.slow
_TELLING = 8
"""Length of a name that is in other memory only by intention."""


@pytest.fixture(scope="module")
def target(vmcore: Path) -> Target:
    return open_target(vmcore, [PACK])


@pytest.fixture(scope="module")
def redacted(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("redacted") / "redacted.capsule"
    made = create(target, path, [*analyses().values()], redact=["names"], key=KEY)
    assert (made.failed, made.lacking, made.unredacted) == ({}, [], [])
    return path


def strings(data: bytes) -> set[bytes]:
    return set(re.split(rb"[\0-\x1f\x7f-\xff/]+", data))


def image(target: Target) -> Iterator[bytes]:
    """Yield the recorded pages of the kernel's code and constants."""
    start, end = (target.prog.symbol(name).address for name in ("_stext", "__end_rodata"))
    for address in range(start, end, 4096):
        with suppress(drgn.FaultError):
            yield target.prog.read(address, 4096)


def names_of(guest: Guest) -> set[bytes]:
    """Return the names of all dentries on LRU lists, by a slow walk."""
    blocks = guest.prog["super_blocks"].address_of_()
    return {
        dentry.d_name.name.string_()
        for block in list_for_each_entry("struct super_block", blocks, "s_list")
        for dentry in list_for_each_entry(
            "struct dentry", block.s_dentry_lru.address_of_(), "d_lru"
        )
    }


def test_no_name_of_the_guest_is_left(target: Target, redacted: Path, mixed: Guest) -> None:
    names = {name for name in names_of(mixed) if len(name) >= _TELLING}
    assert len(names) > 20_000
    plain, left = (strings(pages(each)) for each in (DATA / "mixed.capsule", redacted))
    assert len(names & plain) > 20_000
    kernels = {*kernel_words(Kernel(target.prog)), *strings(b"".join(image(target)))}
    assert names & left - kernels == set()
    sections = [Reader(str(redacted)).section(name) for name in ("lookups", "vmcoreinfo", "index")]
    assert names & strings(b"\0".join(sections)) - kernels == set()


def by_pattern(result: Result) -> int:
    """Take the table of patterns from a result; return the dentries in it."""
    table = result.tables.pop("patterns", None)
    return 0 if table is None else int(table.frame["negative"].sum())


def test_analyses_have_the_same_figures(redacted: Path) -> None:
    context, known = Context.of(open_target(redacted)), open_target(DATA / "mixed.capsule")
    for name, analysis in analyses().items():
        result, plain = context.run(analysis), Context.of(known).run(analysis)
        assert not result.gaps, name
        # The digits of "t1" are a part of its word, and are replaced with it.
        numbers = [by_pattern(each) for each in (result, plain)]
        assert numbers[0] == numbers[1]
        assert_same_without_names(result, plain)


def test_names_of_cgroups_in_names_of_caches_are_replaced(vmcore: Path, tmp_path: Path) -> None:
    """Also a word of the kernel, and a short number."""
    target = open_target(vmcore, [PACK])
    poked = Poked(target.prog)
    caches = [
        cache
        for cache in list_for_each_entry(
            "struct kmem_cache", target.prog["slab_caches"].address_of_(), "list"
        )
        if cache.name.string_() in (b"shmem_inode_cache(7:c7)", b"shmem_inode_cache(8:c8)")
    ]
    names = (b"server", b"1042")
    for cache, name in zip(caches, names, strict=True):
        poked.write(int(cache.name), b"shmem_inode_cache(7:%b)\0" % name)
    slab = [analyses()["slab"]]
    create(target, tmp_path / "plain", slab)
    create(target, tmp_path / "redacted", slab, redact=["names"], key=KEY)
    plain, redacted = (
        re.findall(rb"shmem_inode_cache\(7:(\w+)\)\0", pages(tmp_path / each))
        for each in ("plain", "redacted")
    )
    assert {*names} < {*plain}
    assert sorted(redacted) == sorted(Pseudonyms(KEY).of(name) for name in names)


def test_directories_of_caches_in_sysfs_have_names_of_users(vmcore: Path) -> None:
    target = open_target(vmcore, [PACK])
    poked, kernel = Poked(target.prog), Kernel(target.prog)
    text = next(
        cache.name
        for cache in list_for_each_entry(
            "struct kmem_cache", target.prog["slab_caches"].address_of_(), "list"
        )
        if cache.name.string_() == b"shmem_inode_cache(7:c7)"
    )
    table = super_blocks(kernel)
    block = np.uint64(table.address[table.type.index("sysfs")])
    columns = layout(target.prog, "struct dentry", {"sb": "d_sb", "inode": "d_inode"})
    caches = find_caches(kernel.slab_map, "struct dentry")
    address, read = allocated(kernel.slab_map, caches, columns, ScanReport(), None)
    inline, external = (
        drgn.Object(target.prog, "struct dentry", address=each)
        for each in address[(read["sb"] == block) & (read["inode"] != 0)][-2:].tolist()
    )
    poked.write(inline.d_iname.address_, b"filp(7:server)\0")
    poked.word(external.d_name.name.address_of_().value_(), int(text))
    direct = kernel.slab_map.pages.direct_map
    places = {inline.d_iname.address_ - direct, int(text) - direct}
    found = [
        (place, batch.is_kernels)
        for batch in UserNames(kernel).find()
        if isinstance(batch, Names)
        for place in batch.physical.tolist()
        if place in places
    ]
    assert sorted(found) == sorted((place, False) for place in places)
