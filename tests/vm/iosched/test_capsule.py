# SPDX-License-Identifier: LGPL-2.1-or-later
"""Capsules of guests with a slow disk: no memory of programs, and redaction."""

from __future__ import annotations

import re
from typing import NamedTuple

import drgn
import pytest
from drgn.helpers.linux.mm import PageLRU, compound_head, follow_phys, pfn_to_page
from drgn.helpers.linux.pid import find_task

from kcensus.analyses import analyses
from kcensus.engine.slub.caches import find_caches
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.xfs.mounts import mounts
from kcensus.progress import SilentProgress
from kcensus.redaction import Redaction
from kcensus.sources import Target, open_target
from kcensus.sources.capsule.container import Reader
from kcensus.sources.capsule.recorder import Recorder
from tests.lab import Dump, build
from tests.lab.truth import io
from tests.sample.block.poked import Poked
from tests.vm.capsules import KEY, Capsules, assert_same_without_names, pages
from tests.vm.cases import analyzed, document, opened
from tests.vm.iosched.cases import usually

pytestmark = usually

_IOSCHED = analyses()["iosched"]
_PROGRAMS = {"look-up", "direct-read", "direct-write"}
"""Look-ups may find all names in memory, and writers starve only some readers."""


class Case(NamedTuple):
    dump: Dump
    target: Target
    capsules: Capsules


@pytest.fixture(scope="module", params=["iosched-bfq", "iosched-kyber", "iosched-starved"])
def case(
    kernel: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Case:
    dump = build(kernel, request.param)
    target = opened(dump)
    capsules = Capsules.of(target, [_IOSCHED], tmp_path_factory.mktemp("capsules"))
    return Case(dump, target, capsules)


def test_nothing_of_what_is_wiped_is_needed(case: Case) -> None:
    wiped = document(open_target(str(case.capsules.wiped)), _IOSCHED)
    assert wiped == document(case.target, _IOSCHED)


def test_the_same_is_found_without_names(case: Case) -> None:
    plain, redacted = (
        analyzed(open_target(str(path)), "iosched")
        for path in (case.capsules.plain, case.capsules.redacted)
    )
    assert_same_without_names(redacted, plain)
    assert (redacted.summary, redacted.gaps) == (plain.summary, plain.gaps)
    assert [each.id for each in redacted.findings] == [each.id for each in plain.findings]
    comms = [set(each.tables["sleepers"].frame["comm"]) for each in (plain, redacted)]
    assert len(_PROGRAMS & comms[0]) >= 2
    assert not _PROGRAMS & comms[1]


def test_no_name_is_left(case: Case) -> None:
    """Names of programs, of cgroups and of the file of a loop device."""
    plain, redacted = pages(case.capsules.plain), pages(case.capsules.redacted)
    # Names with a hyphen are no words of the kernel.
    tasks = io.read(case.dump.truth).tasks.values()
    names = {task.comm.encode() for task in tasks if re.fullmatch(r"[a-z]+-[a-z]+", task.comm)}
    assert len({each.encode() for each in _PROGRAMS} & names) >= 2
    if case.dump.scenario == "iosched-kyber":
        names.add(b"/srv/image")
    # A cgroup is recorded if it has a request.
    groups = {b"heavy", b"light"} if case.dump.scenario == "iosched-bfq" else set()
    there = set()
    for name in names | groups:
        separate = re.compile(rb"(?<![0-9A-Za-z-])" + re.escape(name) + rb"(?=[\0/])")
        if separate.search(plain):
            there.add(name)
        assert not separate.search(redacted), name
    assert there >= names
    assert bool(there & groups) == bool(groups)


def test_no_memory_of_programs_is_recorded(case: Case) -> None:
    """No page is on a list of reclaim, as those of programs and files are."""
    prog = case.target.prog
    index = Reader(str(case.capsules.plain)).index(4096)
    runs = zip(index.first.tolist(), index.pages.tolist(), strict=True)
    frames = [frame for first, length in runs for frame in range(first, first + length)]
    assert len(frames) > 500
    assert not [frame for frame in frames if PageLRU(compound_head(pfn_to_page(prog, frame)))]


def test_registers_of_programs_are_wiped(case: Case) -> None:
    prog = case.target.prog
    plain, redacted = (
        open_target(str(path)).prog for path in (case.capsules.plain, case.capsules.redacted)
    )
    registers = prog.type("struct pt_regs")
    size, segment = drgn.sizeof(registers), drgn.offsetof(registers, "cs")
    (cache,) = find_caches(Kernel(prog).slab_map, "struct task_struct")
    compared = kept = 0
    for pid in io.read(case.dump.truth).tasks:
        task = find_task(prog, pid)
        start = int(task) + _vectors(prog)
        length = int(task) + cache.object_size - start
        old, new = _known(plain, start, length), _known(redacted, start, length)
        # Of an emptied page, one byte is not 0, so that it does not count as lost.
        assert new.strip(b"\0") in (b"", b"\xff")
        kept += any(old)
        if not task.mm:
            continue
        place = int(task.stack) + int(prog["THREAD_SIZE"]) - size
        if plain.read(place + segment, 1)[0] not in (0x23, 0x33):
            place -= 16  # CONFIG_X86_FRED
        old, new = plain.read(place, size), redacted.read(place, size)
        assert old[segment : segment + 8] == new[segment : segment + 8]
        assert any(old[:segment])
        assert not any(new[:segment] + new[segment + 8 :])
        # What is left of functions that returned.
        page = int(task.thread.sp) & ~4095
        assert not any(redacted.read(page, int(task.thread.sp) - page))
        compared += 1
    assert compared > 3
    assert kept


def _vectors(prog: drgn.Program) -> int:
    type_ = prog.type("struct task_struct")
    try:
        return int(drgn.offsetof(type_, "thread.fpu"))
    except LookupError:
        return int(drgn.sizeof(type_))


def _known(prog: drgn.Program, start: int, length: int) -> bytes:
    """Return the bytes of pages that are in the capsule."""
    parts, at = [], start
    while at < start + length:
        end = min((at | 4095) + 1, start + length)
        try:
            parts.append(prog.read(at, end - at))
        except drgn.FaultError:
            parts.append(b"")
        at = end
    return b"".join(parts)


@pytest.mark.usually("7.3")
def test_labels_of_file_systems(kernel: str) -> None:
    """The guest's has none, so the test writes one into its memory."""
    target = opened(build(kernel, "iosched-starved"), "xfs")
    prog = target.prog
    (mount,) = mounts(Kernel(prog)).address.tolist()
    label = drgn.Object(prog, "struct xfs_mount", address=mount).m_sb.sb_fname
    place = int(follow_phys(prog["init_mm"].address_of_(), label.address_))
    frame = place >> 12
    Poked(prog).write(int(label.address_), b"family-photo")  # fills the array
    page = bytearray(prog.read(frame << 12, 4096, physical=True))
    inside = place & 4095
    assert page[inside : inside + 12] == label.string_() == b"family-photo"
    recorder = Recorder(target, has_uses=True)
    recorder.target.prog.read(place, 12, physical=True)
    Redaction(target, recorder, KEY, SilentProgress())(frame, page)
    new = bytes(page[inside : inside + 12])
    assert re.fullmatch(rb"[a-z]{6}-[a-z]{5}", new)
    assert new != b"family-photo"
