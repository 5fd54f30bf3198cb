# SPDX-License-Identifier: LGPL-2.1-or-later
"""Capsules of guests with a slow disk: the same answer, no memory of programs, and redaction."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import drgn
import numpy as np
import pytest
from drgn.helpers.linux.mm import PageLRU, compound_head, follow_phys, pfn_to_page
from drgn.helpers.linux.pid import find_task

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.capsule import create
from kcensus.engine.slub.caches import find_caches
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.xfs.mounts import mounts
from kcensus.progress import SilentProgress
from kcensus.redaction import Redaction
from kcensus.reports import report
from kcensus.results import Result
from kcensus.sources import Target, open_target
from kcensus.sources.capsule.container import Reader
from kcensus.sources.capsule.recorder import Recorder
from tests.lab import Dump, build
from tests.lab.truth import io
from tests.vm.iosched.cases import SCHEDULERS, usually
from tests.vm.test_capsule import document

pytestmark = usually

_IOSCHED = analyses()["iosched"]
_KEY = b"the same for all of them"


def _open(dump: Dump) -> Target:
    return open_target(str(dump.formats["elf"]), dump.debug)


def _result(target: Target) -> Result:
    return Context.of(target).run(_IOSCHED)


@pytest.mark.parametrize("scenario", SCHEDULERS)
def test_same_answer(kernel: str, scenario: str, tmp_path: Path) -> None:
    target = _open(build(kernel, scenario))
    create(target, tmp_path / "capsule", [_IOSCHED])
    expected = document(target, _IOSCHED)
    assert expected.startswith("{")
    capsule = open_target(str(tmp_path / "capsule"))
    assert document(capsule, _IOSCHED) == expected
    assert document(capsule, _IOSCHED, 2, chunk_bytes=256 << 10) == expected


class Capsules:
    """A dump, and capsules of it with and without what redaction changes."""

    def __init__(self, dump: Dump, directory: Path) -> None:
        self.dump, self.target = dump, _open(dump)
        self.plain, self.wiped, self.redacted = (
            directory / name for name in ("plain", "wiped", "redacted")
        )
        create(self.target, self.plain, [_IOSCHED])
        made = create(self.target, self.redacted, [_IOSCHED], redact=["names"], key=_KEY)
        assert made.unredacted == []
        recorder = Recorder(self.target)
        report(Context.of(recorder.target), [_IOSCHED])
        wipe = Redaction(self.target, recorder.touched, None, SilentProgress())
        recorder.write(
            self.wiped,
            {**Reader(str(self.plain)).manifest, "redacted": []},
            level=1,
            progress=SilentProgress(),
            scrub=wipe,
        )

    def pages(self, path: Path) -> bytes:
        reader = Reader(str(path))
        index = reader.index(4096)
        blocks = range(len(index.offsets) - 1)
        return b"".join(reader.block(index, number, 4096) for number in blocks)


@pytest.fixture(scope="module", params=["iosched-bfq", "iosched-kyber", "iosched-starved"])
def capsules(
    kernel: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Capsules:
    return Capsules(build(kernel, request.param), tmp_path_factory.mktemp("capsules"))


def test_nothing_of_what_is_wiped_is_needed(capsules: Capsules) -> None:
    answers = [document(open_target(str(path)), _IOSCHED) for path in (capsules.wiped,)]
    assert answers == [document(capsules.target, _IOSCHED)]


def test_the_same_is_found_without_names(capsules: Capsules) -> None:
    plain, redacted = (
        _result(open_target(str(path))) for path in (capsules.plain, capsules.redacted)
    )
    assert redacted.summary == plain.summary
    assert (redacted.checks, redacted.gaps) == (plain.checks, plain.gaps)
    assert [finding.id for finding in redacted.findings] == [
        finding.id for finding in plain.findings
    ]
    for name, table in plain.tables.items():
        numbers = [
            frame.select_dtypes(["number", "bool"]).to_numpy().tolist()
            for frame in (table.frame, redacted.tables[name].frame)
        ]
        assert numbers[0] == numbers[1], name
    comms = [set(each.tables["sleepers"].frame["comm"]) for each in (plain, redacted)]
    assert "look-up" in comms[0]
    assert not {"look-up", "direct-read", "direct-write"} & comms[1]


def test_no_name_is_left(capsules: Capsules) -> None:
    """Names of programs, of cgroups and of the file of a loop device."""
    plain, redacted = capsules.pages(capsules.plain), capsules.pages(capsules.redacted)
    # Names with a hyphen are no words of the kernel.
    tasks = io.read(capsules.dump.truth).tasks.values()
    names = {task.comm.encode() for task in tasks if re.fullmatch(r"[a-z]+-[a-z]+", task.comm)}
    assert names >= {b"direct-read", b"look-up"}
    if capsules.dump.scenario == "iosched-kyber":
        names.add(b"/srv/image")
    # A cgroup is recorded if it has a request.
    groups = {b"heavy", b"light"} if capsules.dump.scenario == "iosched-bfq" else set()
    there = set()
    for name in names | groups:
        separate = re.compile(rb"(?<![0-9A-Za-z-])" + re.escape(name) + rb"(?=[\0/])")
        if separate.search(plain):
            there.add(name)
        assert not separate.search(redacted), name
    assert there >= names
    assert bool(there & groups) == bool(groups)


def test_no_memory_of_programs_is_recorded(capsules: Capsules) -> None:
    """No page is on a list of reclaim, as those of programs and files are."""
    prog = capsules.target.prog
    index = Reader(str(capsules.plain)).index(4096)
    frames = [
        frame
        for first, pages in zip(index.first.tolist(), index.pages.tolist(), strict=True)
        for frame in range(first, first + pages)
    ]
    assert len(frames) > 500
    assert not [frame for frame in frames if PageLRU(compound_head(pfn_to_page(prog, frame)))]


def test_registers_of_programs_are_wiped(capsules: Capsules) -> None:
    prog = capsules.target.prog
    plain, redacted = (open_target(str(path)).prog for path in (capsules.plain, capsules.redacted))
    registers = prog.type("struct pt_regs")
    size, segment = drgn.sizeof(registers), drgn.offsetof(registers, "cs")
    (cache,) = find_caches(Kernel(prog).slab_map, "struct task_struct")
    compared = kept = 0
    for pid in io.read(capsules.dump.truth).tasks:
        task = find_task(prog, pid)
        start = int(task) + _vectors(prog)
        length = int(task) + cache.object_size - start
        old, new = _known(plain, start, length), _known(redacted, start, length)
        assert not any(new)
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
        assert redacted.read(int(task.thread.sp), 64) == plain.read(int(task.thread.sp), 64)
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
    target = _open(build(kernel, "iosched-starved"))
    prog = target.prog
    target.need_modules("xfs")
    (mount,) = mounts(Kernel(prog)).address.tolist()
    label = drgn.Object(prog, "struct xfs_mount", address=mount).m_sb.sb_fname
    place = int(follow_phys(prog["init_mm"].address_of_(), label.address_))
    frame = place >> 12
    page = bytearray(prog.read(frame << 12, 4096, physical=True))
    inside = place & 4095
    page[inside : inside + 12] = b"family-photo"  # fills the array
    memory = bytes(page)

    def read(_: int, count: int, offset: int, __: Any) -> bytes:
        return memory[offset : offset + count]

    prog.add_memory_segment(frame << 12, 4096, read, True)
    prog.add_memory_segment(int(label.address_) & ~4095, 4096, read)
    redaction = Redaction(target, np.zeros(int(prog["max_pfn"]), np.bool_), _KEY, SilentProgress())
    redaction(frame, page)
    new = bytes(page[inside : inside + 12])
    assert re.fullmatch(rb"[a-z]{6}-[a-z]{5}", new)
    assert new != b"family-photo"
