# SPDX-License-Identifier: LGPL-2.1-or-later
"""What guests with a slow disk report is consistent, and shows what their scenarios are for."""

from __future__ import annotations

import re

import drgn
import pytest
from drgn.helpers.linux.block import disk_name, for_each_disk
from drgn.helpers.linux.xarray import xa_load

from tests.lab import Dump, build
from tests.lab.truth import io
from tests.vm.iosched.cases import SCHEDULERS, STARVED, usually

_MAGIC = 0x65617407


pytestmark = usually


@pytest.fixture(scope="module", params=SCHEDULERS)
def dump(kernel: str, request: pytest.FixtureRequest) -> Dump:
    """A dump of a guest whose requests stand still."""
    return build(kernel, request.param)


def test_requests_stand_still_and_agree_with_the_tags(dump: Dump) -> None:
    assert [path for path in io.moved(dump.truth) if not path.startswith("/proc/")] == []
    disk = io.read(dump.truth).disks["vda"]
    assert disk.scheduler == SCHEDULERS[dump.scenario]
    busy = {name: found for name, found in disk.requests.items() if name.endswith("/busy")}
    # Flushes have no part in the counters.
    counted = [r for found in busy.values() for r in found if "IO_STAT" in r.rq_flags]
    assert sum(disk.inflight) == len(counted) > 0
    for name, found in busy.items():
        queue = name.partition("/")[0]
        assert {r.tag for r in found} == disk.tags(f"{queue}/tags_bitmap")
        assert {r.state for r in found} == {"in_flight"}
    waiting = [r for name, found in disk.requests.items() if name not in busy for r in found]
    assert {r.state for r in waiting} <= {"idle"}
    # 5.10 hashes them.
    if dump.kernel != "5.10":
        addresses = {r.address for found in disk.requests.values() for r in found}
        assert all(address >> 47 == 0x1FFFF for address in addresses)


def test_the_dump_has_the_requests_that_the_guest_saw(dump: Dump) -> None:
    program = drgn.Program()
    program.set_core_dump(dump.formats["elf"])
    program.load_debug_info(dump.debug)
    [disk] = [disk for disk in for_each_disk(program) if disk_name(disk) == b"vda"]
    seen = io.read(dump.truth).disks["vda"].requests
    for number in range(int(disk.queue.nr_hw_queues)):
        for truth in seen.get(f"hctx{number}/busy", []):
            request = _hardware_queue(disk.queue, number).tags.rqs[truth.tag]
            assert int(request.tag) == truth.tag
            assert int(request.internal_tag) == truth.internal_tag
            assert int(request.state) == program.constant("MQ_RQ_IN_FLIGHT").value_()
            if dump.kernel != "5.10":
                assert int(request) == truth.address


def _hardware_queue(queue: drgn.Object, number: int) -> drgn.Object:
    try:
        return queue.queue_hw_ctx[number]
    except AttributeError:
        entry = xa_load(queue.hctx_table.address_of_(), number)
        return drgn.cast("struct blk_mq_hw_ctx *", entry)


def test_tasks_sleep(dump: Dump) -> None:
    before, after = (io.read(dump.truth, which).tasks for which in (io.FIRST, io.LAST))
    moved = {int(path.split("/")[2]) for path in io.moved(dump.truth) if "/proc/" in path}
    # On a slow host, these may go on until they have reached the dirty limit.
    assert {(before | after)[pid].comm for pid in moved} <= {"buffered-write"}
    tasks = after.values()
    assert all(task.status["State"].startswith("D") for task in tasks)
    assert {task.comm for task in tasks} >= {"direct-read", "look-up"}


def test_a_trace_covers_the_dump(dump: Dump) -> None:
    log = (dump.path / "traces" / "log").read_text()
    events = [int(n) for n in re.findall(r"CPU +\d+: +(\d+) events", log)]
    assert "dropped 0" in log
    assert len(events) == 2
    for cpu in range(2):
        start = (dump.path / "traces" / f"trace.blktrace.{cpu}").read_bytes()[:4]
        assert int.from_bytes(start, "little") == _MAGIC


@pytest.mark.parametrize("scenario", STARVED)
def test_openers_wait_for_the_buffers_of_starved_writes(kernel: str, scenario: str) -> None:
    """Which ones of the six do, and which wait for these, is chance."""
    truth = build(kernel, scenario).truth
    before, after = (
        {
            pid
            for pid, task in io.read(truth, which).tasks.items()
            if task.comm == "look-up" and "xfs_buf_lock" in task.stack
        }
        for which in (io.FIRST, io.LAST)
    )
    assert before
    assert before == after
