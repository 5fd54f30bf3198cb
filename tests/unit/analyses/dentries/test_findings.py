# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings of ``kcensus dentries`` about *synthetic* kernels, and their remedies."""

from __future__ import annotations

from typing import Any

import pytest
from drgn import Object

from kcensus.analyses.dentries.findings.watched import WALKS
from kcensus.kernel.vfs.dcache import Flags, flags
from kcensus.results import Danger, Finding, Result, Severity
from tests.running import rows
from tests.unit.analyses.dentries.scenes import (
    census,
    damage,
    figures,
    mounted,
    populate,
    populated,
    watch,
)
from tests.unit.fakekernel.dcache import NAME_SLOT, SLOT, FakeDcache

pytestmark = pytest.mark.ends


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a finding be about as little memory as a synthetic kernel has."""
    monkeypatch.setattr("kcensus.results.severity.MIN_BYTES", 1)
    monkeypatch.setattr("kcensus.analyses.dentries.findings.negatives.MIN_BYTES", 1)


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
@pytest.mark.parametrize(("value", "is_offered"), [(0, True), (9, False), (50, True)])
def test_a_lower_limit_of_negative_dentries_is_offered(
    plain: FakeDcache, value: int, is_offered: bool
) -> None:
    plain.machine.set_ram(10)
    plain.machine.variable("dcache_negative_dentry_limit_sysctl", "int", value)
    offered = {each.knobs: each for each in found(census(plain))["dentries-negative"].remedies}
    limit = offered.get(("/proc/sys/fs/negative-dentry-limit",))
    assert (limit is not None) == is_offered
    if limit is not None:
        assert limit.undo == f"sysctl -w fs.negative-dentry-limit={value}"


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


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("damaged", [False, True])
def test_a_long_walk(monkeypatch: pytest.MonkeyPatch, lazy: bool, damaged: bool) -> None:
    monkeypatch.setitem(WALKS, Severity.NOTICE, 10)
    monkeypatch.setattr("kcensus.analyses.dentries.findings.watched._clears_lazily", lambda _: lazy)
    dcache, made = populated()
    watch(dcache, made["dir"])
    if damaged:
        dcache.machine.set(made["n0"].object.d_sib.next, made["n4"].object.d_sib)
    (walk,) = census(dcache).findings
    assert (walk.id, walk.danger, walk.part_of) == ("dentries-watch:/dir", Danger.STALL, "")
    assert walk.patch == ("" if lazy else "fsnotify-lazy-parent-watched")
    assert ("first watch" in walk.title) == lazy
    assert ("order is unknown" in walk.evidence) == damaged
