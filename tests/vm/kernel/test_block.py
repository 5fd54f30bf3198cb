# SPDX-License-Identifier: LGPL-2.1-or-later
"""Disks, requests, schedulers and bios of real kernels, against debugfs and a slow walk.

The guest's disk does not serve anything while the guest reads debugfs and is dumped, so that both
agree but for what :func:`tests.lab.truth.io.moved` names.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import drgn
import numpy as np
import pytest

from kcensus.kernel.block import MODULES
from kcensus.kernel.block.bios import bios
from kcensus.kernel.block.disks import block_devices
from kcensus.kernel.block.hardware import hardware_queues
from kcensus.kernel.block.requests import Place, State, requests
from kcensus.kernel.block.schedulers import scheduler_queues
from kcensus.kernel.block.schedulers.model import NEVER
from kcensus.kernel.block.stacks import stacks
from kcensus.kernel.block.unlisted import missing_from, unlisted_disks
from kcensus.kernel.clock import clock
from kcensus.kernel.kernel import Kernel
from tests.lab import Dump, build
from tests.lab.truth import io
from tests.vm.cases import opened
from tests.vm.iosched.cases import SCHEDULERS, usually
from tests.vm.oracles import block as oracle

pytestmark = usually

_DISK = "vda"


class Case:
    """A dump with what the guest said about its throttled disk, and what was read of that."""

    def __init__(self, dump: Dump) -> None:
        self.dump = dump
        self.truth = io.read(dump.truth).disks[_DISK]
        # Of disks, without times.
        self.moved = [path for path in io.moved(dump.truth) if not path.startswith("/proc/")]
        self.kernel = Kernel(opened(dump, *MODULES).prog)
        disks = block_devices(self.kernel).disks
        self.row = [disk.name for disk in disks].index(_DISK)
        self.disk = disks[self.row]
        self.requests = requests(self.kernel)
        self.rows: list[int] = np.flatnonzero(self.requests.disk == self.row).tolist()
        self.queues = scheduler_queues(self.kernel)[self.row]
        self.bios = bios(self.kernel)
        self.gendisk = oracle.disk(self.kernel.prog, _DISK)


@pytest.fixture(scope="module", params=SCHEDULERS)
def case(kernel: str, request: pytest.FixtureRequest) -> Case:
    return Case(build(kernel, request.param))


def _in_debugfs(case: Case, row: int) -> tuple[str, str, frozenset[str], int, int]:
    found = case.requests
    state = {State.DISPATCHED: "in_flight", State.COMPLETED: "complete"}
    return (
        state.get(State(found.state[row]), "idle"),
        found.operations.name(int(found.operation[row])).upper(),
        frozenset(found.operations.flag_text(int(found.flags[row])).upper().split("|")) - {""},
        int(found.tag[row]),
        int(found.sched_tag[row]),
    )


def test_requests_are_those_of_debugfs(case: Case) -> None:
    """Both have the same requests with the same tags, operations, flags and states.

    Nothing moves between debugfs and the dump, so that no difference is allowed, but one:
    debugfs has no lists of what BFQ holds, so that these are compared with a slow walk alone.
    """
    assert case.moved == []
    places = {"busy": None, "dispatch": Place.DISPATCH, "requeue_list": Place.REQUEUE}
    numbers = hardware_queues(case.kernel).number
    by_queue: dict[int, list[int]] = {}
    for row in case.rows:
        by_queue.setdefault(int(numbers[case.requests.hardware_queue[row]]), []).append(row)
    seen = set()
    for name, found in case.truth.requests.items():
        queue, _, last = re.sub("^hctx", "", name).rpartition("/")
        if last.endswith("_next_rq"):
            continue
        place = places.get(last, Place.SCHEDULER if "sched" in name else Place.SOFTWARE_QUEUE)
        if name == "sched/dispatch":
            place = Place.SCHEDULER_DISPATCH
        own = by_queue[int(queue.split("/")[0])] if name.startswith("hctx") else case.rows
        for each in found:
            stated = each.state, each.op, each.flags, each.tag, each.internal_tag
            (row,) = (row for row in own if _in_debugfs(case, row) == stated)
            assert place is None or case.requests.place[row] == place
            if case.dump.kernel != "5.10":  # which hashes them
                assert case.requests.address[row] == each.address
            seen.add(row)
    assert seen
    # Nothing is in the driver, or on a list of debugfs, that debugfs does not have.
    dispatched = case.requests.state[case.rows] == State.DISPATCHED
    assert seen >= set(np.array(case.rows)[dispatched].tolist())
    if case.disk.scheduler == "mq-deadline":
        in_lists = case.requests.place[case.rows] == Place.SCHEDULER
        assert seen >= set(np.array(case.rows)[in_lists].tolist())


_PRIORITIES = {"": "", "0": "RT ", "1": "BE ", "2": "idle "}


def test_queues_are_those_of_debugfs(case: Case) -> None:
    """mq-deadline and kyber show theirs, in order and with the tags of their requests.

    Nothing moves, so that no difference is allowed; but of kyber, debugfs leaves out what it has
    not yet taken from the CPUs, which is last in ours.
    """
    assert case.moved == []
    queues, found = case.queues, case.requests
    labels = [queues.label[row] for row in queues.row.tolist()]
    tags: dict[str, list[int]] = {}
    for label, row in zip(labels, found.rows(queues.request).tolist(), strict=True):
        tags.setdefault(label, []).append(int(found.sched_tag[row]))
    stated: dict[str, list[int]] = {}
    for name, listed in case.truth.requests.items():
        if match := re.fullmatch(r"sched/(read|write)(\d?)_fifo_list", name):
            label = f"{_PRIORITIES[match[2]]}{match[1]}"
        elif match := re.fullmatch(r"(hctx\d+)/sched/(\w+)_rqs", name):
            label = f"{match[1]} {match[2]}"
        else:
            continue
        stated[label] = [each.internal_tag for each in listed]
    if case.disk.scheduler == "kyber":
        assert stated == {label: tags[label][: len(own)] for label, own in stated.items()}
    elif case.disk.scheduler == "mq-deadline":
        assert stated == tags
    if case.disk.scheduler in ("kyber", "mq-deadline"):
        assert stated


def test_expiry_is_that_of_sysfs(case: Case) -> None:
    names = {"bfq": "iosched/fifo_expire_{}", "mq-deadline": "iosched/{}_expire"}
    name = names.get(case.disk.scheduler)
    queues = case.queues
    for row in np.unique(queues.row).tolist():
        if name is None:
            assert queues.expiry_ns[row] < 0
            continue
        kinds = ("async", "sync") if case.disk.scheduler == "bfq" else ("read", "write")
        way = queues.is_sync if queues.direction is None else queues.direction
        milliseconds = case.truth.settings[name.format(kinds[int(way[row])])]
        assert queues.expiry_ns[row] == int(milliseconds) * 1_000_000


def test_tags_are_those_of_debugfs(case: Case) -> None:
    assert case.moved == []
    hardware, found = hardware_queues(case.kernel), case.requests
    compared = 0
    for queue in np.flatnonzero(hardware.disk == case.row).tolist():
        own = [row for row in case.rows if found.hardware_queue[row] == queue]
        for name, column in (("tags", found.tag), ("sched_tags", found.sched_tag)):
            path = f"hctx{hardware.number[queue]}/{name}_bitmap"
            tags = {int(column[row]) for row in own if column[row] >= 0}
            assert tags == case.truth.tags(path), path
            compared += len(tags)
    assert compared
    assert found.damage["free_tags"] == 0


def test_the_scheduler_and_its_tunables(case: Case) -> None:
    assert case.disk.scheduler == case.truth.scheduler == SCHEDULERS[case.dump.scenario]
    assert case.queues.lacks == ""
    stated = {
        path.removeprefix("iosched/"): int(text)
        for path, text in case.truth.settings.items()
        if path.startswith("iosched/") and text.lstrip("-").isdigit()
    }
    known = case.queues.tunables
    assert known.items() <= stated.items()
    assert bool(known) == (case.disk.scheduler != "none")


def test_requests_are_those_of_a_slow_walk(case: Case) -> None:
    expected = oracle.tagged(case.gendisk)
    found = case.requests
    by_address = {int(found.address[row]): row for row in case.rows}
    # The request that flushes the disk has the tag of another.
    assert expected.keys() - by_address.keys() == set()
    extra = [by_address[address] for address in by_address.keys() - expected.keys()]
    assert all(found.operations.name(int(found.operation[row])) == "flush" for row in extra)
    for address, rq in expected.items():
        row = by_address[address]
        fields = found.sector[row], found.bytes[row], found.is_sync[row], found.allocated_ns[row]
        places = rq.member_("__sector"), rq.member_("__data_len")
        assert fields == (*map(int, places), oracle.is_sync(rq), int(rq.start_time_ns))
        assert found.operations.name(int(found.operation[row])) == oracle.operation(rq)
    assert not +found.damage
    assert not found.lacks


def test_queues_are_those_of_a_slow_walk(case: Case) -> None:
    expected = oracle.queues(case.gendisk)
    queues = case.queues
    found = {
        int(queues.address[row]): queues.request[queues.row == row].tolist()
        for row in np.unique(queues.row).tolist()
    }
    assert found == expected
    assert queues.torn == 0
    # Where a scheduler counts, it counts the same.
    counted = queues.counted >= 0
    assert queues.counted[counted].tolist() == queues.lengths[counted].tolist()
    if case.disk.scheduler == "bfq":
        assert queues.inside["bfq_data.queued"] == len(queues.request)
        # A request names its queue.
        rows = case.requests.rows(queues.request)
        assert np.array_equal(case.requests.private[1][rows], queues.address[queues.row])


def test_lateness_is_that_of_fifo_time(case: Case) -> None:
    now, queues = clock(case.kernel), case.queues
    is_timed = case.disk.scheduler in ("bfq", "mq-deadline")
    for address, late in zip(queues.request.tolist(), queues.late_ns.tolist(), strict=True):
        rq = drgn.Object(case.kernel.prog, "struct request", address=address)
        if case.disk.scheduler == "bfq":
            assert late == now.ns - int(rq.fifo_time)
        elif is_timed:
            ticks = (now.jiffies - int(rq.fifo_time)) % (1 << 64)
            ticks -= (1 << 64) if ticks >> 63 else 0
            assert late == ticks * 10**9 // now.hz
        else:
            assert late == NEVER
    if is_timed and len(queues.request):
        # A request is inserted when or soon after it is allocated; in emulation, jiffies lag.
        rows = case.requests.rows(queues.request)
        gap = case.requests.age_ns[rows] - queues.waiting_ns
        assert gap.min() > -(10**8)
        assert (case.requests.waiting_ns[rows] <= case.requests.age_ns[rows]).all()


def test_time_does_not_stand_before_the_last_look(case: Case) -> None:
    last = io.read(case.dump.truth).monotonic_ns
    assert -(10**9) // 100 < clock(case.kernel).ns - last < 60 * 10**9


def test_bios_are_those_of_a_slow_walk(case: Case) -> None:
    found = case.bios
    assert (found.torn, len(found.faults)) == (0, 0)
    by_request = Counter(found.request.tolist())
    pages: dict[int, set[int]] = {int(address): set() for address in found.address}
    for row, page in zip(found.page_bio.tolist(), found.page.tolist(), strict=True):
        pages[int(found.address[row])].add(page)
    origin = dict(zip(found.address.tolist(), found.origin.tolist(), strict=True))
    for row in case.rows:
        rq = drgn.Object(
            case.kernel.prog, "struct request", address=int(case.requests.address[row])
        )
        expected = oracle.bios(rq)
        assert by_request[row] == len(expected)
        for bio in expected:
            if oracle.operation(rq) in ("read", "write"):
                assert pages[int(bio)] == oracle.pages(bio)
            assert origin[int(bio)] == int(oracle.origin(bio))


def test_stacks(case: Case) -> None:
    devices, found = block_devices(case.kernel), stacks(case.kernel)
    assert (found.unknown, devices.damaged) == ({}, 0)
    stacked = {
        disk.name
        for row, disk in enumerate(devices.disks)
        if case.row in found.bottom(row) and row != case.row
    }
    expected = {"iosched-kyber": {"loop0"}, "iosched-none": {"dm-0"}}
    assert stacked == expected.get(case.dump.scenario, set())


def test_a_disk_that_the_list_of_devices_lacks_is_known_otherwise(case: Case) -> None:
    devices = block_devices(case.kernel)
    assert unlisted_disks(case.kernel) == []
    rest = tuple(disk for disk in devices.disks if disk != case.disk)
    assert missing_from(replace(devices, disks=rest), case.kernel) == [case.disk.name]


def test_counters(case: Case) -> None:
    assert case.disk.freeze_depth == 0
    dispatched = case.requests.state[case.rows] == State.DISPATCHED
    writes = case.requests.operations.is_write(case.requests.operation[case.rows])
    by_way = [int(np.count_nonzero(dispatched & (writes == way))) for way in (False, True)]
    assert tuple(by_way) == case.truth.inflight
    assert sum(by_way) > 0
