# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mirrors and snapshots of device mapper: their roots, and the tasks that each remedy wakes up."""

from __future__ import annotations

from itertools import accumulate, pairwise

import drgn
import pytest

from kcensus.kernel.dm.devices import mapped_devices
from kcensus.kernel.kernel import Kernel
from kcensus.results import Finding, Result
from tests.lab import scenario
from tests.lab.truth import waits as truth_of
from tests.sample.block.poked import Poked
from tests.vm.cases import analyzed, opened
from tests.vm.waits.scenarios import FOUND, MODULES, cases, params
from tests.vm.waits.test_graph import Case

_WRITERS = {
    "origin-1": 3,
    "origin-2": 2,
    "origin-3": 2,
    "snapshot-suspended": 1,
    "mirror of two": 3,
    "mirror-copying": 2,
    "mirror-logged": 2,
}
"""Tasks that write to each device, in the order of their start."""
_ROOTS = {
    "waits-suspended:dm-0 (cow\\x20suspended)": {"origin-1", "snapshot-suspended"},
    "waits-delay:dm-1 (cow-delayed)": {"origin-2"},
    "waits-io:vda": {"origin-3", "kcopyd"},
    "waits-mirror:dm-10 (mirror\\x20of\\x20two)": {"mirror of two"},
    "waits-delay:dm-11 (leg-delayed)": {"mirror-copying"},
    "waits-suspended:dm-13 (log)": {"mirror-logged", "kmirrord"},
}
"""What each finding is about, by its id."""
_ENDED_BY = {
    "replaced": ["waits-mirror:dm-10 (mirror\\x20of\\x20two)"],
    "released": ["waits-delay:dm-1 (cow-delayed)"],
    "resumed": ["waits-suspended:dm-0 (cow\\x20suspended)", "waits-suspended:dm-13 (log)"],
}


def _blocked(case: Case, read: str = "before") -> dict[int, str]:
    tasks = truth_of.read(case.dump.truth, read).tasks
    return {pid: task.comm for pid, task in tasks.items() if task.state == "D"}


def _writers(case: Case) -> dict[str, set[int]]:
    """Return the tasks of each device, and the workers of device mapper by their function."""
    blocked = _blocked(case)
    pids = sorted(pid for pid, comm in blocked.items() if comm == "direct-write")
    ends = [0, *accumulate(_WRITERS.values())]
    assert len(pids) == ends[-1]
    found = {
        name: {*pids[start:end]}
        for name, (start, end) in zip(_WRITERS, pairwise(ends), strict=True)
    }
    for name in ("kcopyd", "kmirrord"):
        found[name] = {pid for pid, comm in blocked.items() if comm.endswith(f"+{name}")}
    return found


def _found(result: Result) -> dict[str, Finding]:
    return {each.id: each for each in result.findings if each.kind.startswith("waits-")}


@cases("waits-mirror")
def test_all_tasks_end_at_the_device_that_stops_them(case: Case, result: Result) -> None:
    found, writers = _found(result), _writers(case)
    assert found.keys() == _ROOTS.keys()
    for id_, names in _ROOTS.items():
        assert found[id_].tasks == set().union(*(writers[name] for name in names)), id_
    assert set().union(*(each.tasks for each in found.values())) == _blocked(case).keys()


@cases("waits-mirror")
def test_each_remedy_wakes_up_the_tasks_behind_its_root(case: Case, result: Result) -> None:
    found, before = _found(result), _blocked(case).keys()
    writers = _writers(case)
    # They are done when they have written an exception, and wait anew.
    workers = before - {pid for name in _WRITERS for pid in writers[name]} - writers["kmirrord"]
    for trial, ids in _ENDED_BY.items():
        after = _blocked(case, trial).keys()
        ended = set().union(*(found[id_].tasks for id_ in ids))
        assert before - after - workers == ended, trial
        before = after
    # The disk, and the leg with a delay.
    left = {pid for pid, comm in _blocked(case, trial).items() if comm == "direct-write"}
    assert left == writers["origin-3"] | writers["mirror-copying"]


@cases("waits-mirror")
def test_the_guest_tries_the_commands_of_the_findings(case: Case, result: Result) -> None:
    found = _found(result)
    trials = {each.name: each for each in scenario.load("waits-mirror", case.dump.kernel).trials}
    for trial, ids in _ENDED_BY.items():
        ran = " && ".join(step.arguments[-1] for step in trials[trial].steps if step.verb == "run")
        for id_ in ids:
            (remedy,) = found[id_].remedies
            assert remedy.command in ran


@cases("waits-mirror")
def test_the_mirror_counts_what_the_guest_shows(case: Case, result: Result) -> None:
    (finding,) = (each for each in result.findings if each.kind == "waits-mirror")
    lines = case.dump.truth["dmsetup-status"].splitlines()
    (status,) = (line for line in lines if line.startswith("mirror of two:"))
    # One letter for each leg: alive, or dead after an error.
    legs = next(word for word in status.split() if set(word) <= {"A", "D"})
    assert finding.figures["failed"].value == legs.count("D") == 1
    assert finding.figures["bios"].value == _WRITERS["mirror of two"]
    synced = f"{finding.figures['regions_in_sync'].value}/{finding.figures['regions'].value}"
    assert synced in status.split()


_POINTERS = {
    "snapshot": (
        "struct dm_snapshot",
        ("cow", "origin", "store", "kcopyd_client", "pending_exceptions_count", "in_progress"),
    ),
    "mirror": ("struct mirror_set", ("ti", "holds.head", "rh", "mirror[0].dev", "mirror[1].ms")),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", params({"waits-mirror": FOUND["waits-mirror"][:1]}), indirect=True)
def test_bent_pointers_invent_nothing(case: Case, result: Result) -> None:
    """Each task still ends at one of its own roots, at a device above them, or nowhere."""
    known = {each.id: each.tasks for each in result.findings}
    target = opened(case.dump, *MODULES)
    prog = target.prog
    places = [
        each.private + drgn.offsetof(prog.type(type_), member)
        for device in mapped_devices(Kernel(prog)).devices
        for each in device.targets
        for type_, members in [_POINTERS.get(each.type_name, ("", ()))]
        for member in members
    ]
    assert len(places) == 33
    poked, values = Poked(prog), (0xFFFF_C1F0_DEAD_B000, places[0], 0x5A5A_5A5A_5A5A_5A5A, 0)
    for at, place in enumerate(places):
        poked.word(place, values[at % len(values)])
        for finding in analyzed(target, "waits").findings:
            if finding.kind in ("waits-suspended", "waits-delay", "waits-mirror"):
                assert finding.tasks <= known[finding.id], (hex(place), finding.id)
            assert finding.kind != "waits-deadlock"
        poked.restore()


@cases("waits-mirror")
def test_a_cow_device_without_io_is_no_root(case: Case, result: Result) -> None:
    """Copies may also wait for the origin, or for memory."""
    target = opened(case.dump, *MODULES)
    prog, poked = target.prog, Poked(target.prog)
    (cow,) = (
        device
        for device in mapped_devices(Kernel(prog)).devices
        if device.name.startswith("cow\\x20")
    )
    flags = cow.address + drgn.offsetof(prog.type("struct mapped_device"), "flags")
    poked.word(flags, prog.read_u64(flags) & ~7)
    found = {each.id for each in analyzed(target, "waits").findings}
    poked.restore()
    assert "waits-copies:dm-6 (origin-1)" in found
    assert not {id_ for id_ in found if id_.startswith("waits-io:dm-0")}
    assert {each.id for each in result.findings} - found == {
        "waits-suspended:dm-0 (cow\\x20suspended)"
    }
