# SPDX-License-Identifier: LGPL-2.1-or-later
"""CFQ on the legacy queue of a 4.19 kernel: a capsule of a dump, against what its guest said.

The guest's IDE disk served 80 requests a second: six direct readers, two direct writers, buffered
writers, and metadata updates. It read the figures below from sysfs right before it was dumped. The
lab cannot boot this kernel, so the capsule is kept with the test; ``kcensus capsule create
--analyses iosched --level 19`` made it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import drgn
import numpy as np
import pytest

from kcensus.analyses.iosched.kernel.figures import Figures, Verdict
from kcensus.analyses.iosched.kernel.run import of_kernel
from kcensus.kernel.block.disks import QueueKind
from kcensus.kernel.block.requests import Place, State
from kcensus.kernel.kernel import Kernel
from kcensus.results import Answer, CheckStatus, Severity
from kcensus.sources import open_target

_CAPSULE = Path(__file__).parent / "cfq-4.19.capsule"

INFLIGHT = {"read": 7, "write": 138}
"""/sys/block/sda/inflight: requests in the scheduler count, too."""
TUNABLES = {
    "back_seek_max": 16384, "back_seek_penalty": 2, "fifo_expire_async": 250,
    "fifo_expire_sync": 125, "group_idle": 8, "low_latency": 1, "quantum": 8, "slice_async": 40,
    "slice_async_rq": 2, "slice_idle": 8, "slice_sync": 100, "target_latency": 300,
}  # fmt: skip
"""/sys/block/sda/queue/iosched, without the same times in microseconds."""
XFSAILD, READERS, WRITERS = 1032, range(1036, 1042), range(1042, 1044)
"""PIDs: all of them sleep in state D, the readers and writers in io_schedule()."""


@pytest.fixture(scope="module")
def cfq() -> Kernel:
    return Kernel(open_target(str(_CAPSULE)).prog)


@pytest.fixture(scope="module")
def figures(cfq: Kernel) -> Figures:
    return Figures(cfq)


@pytest.fixture(scope="module")
def answer(cfq: Kernel) -> Answer:
    return of_kernel(cfq)


@pytest.fixture(scope="module")
def sda(figures: Figures) -> int:
    return [disk.name for disk in figures.disks].index("sda")


def _cfq_data(figures: Figures, sda: int) -> drgn.Object:
    address = figures.disks[sda].scheduler_data
    return drgn.Object(figures.kernel.prog, "struct cfq_data *", value=address)


def test_requests_in_flight(figures: Figures, sda: int) -> None:
    requests, disk = figures.requests, figures.disks[sda]
    assert (disk.kind, disk.scheduler) == (QueueKind.SINGLE, "cfq")
    assert disk.counted_in_flight == tuple(INFLIGHT.values())
    names = Counter(requests.operations.name(each) for each in requests.operation.tolist())
    assert names == INFLIGHT
    assert requests.disk.tolist() == [sda] * len(requests)
    assert not +requests.damage
    # CFQ counts the driver's list, too: one waits there, one is in the disk, which takes no more.
    assert Counter(requests.state.tolist()) == {State.INSERTED: 144, State.DISPATCHED: 1}
    places = {Place.SCHEDULER: 143, Place.DISPATCH: 1, Place.TIMEOUT: 1}
    assert Counter(requests.place.tolist()) == places
    assert int(_cfq_data(figures, sda).rq_in_driver) == 2


def test_queues_of_tasks(figures: Figures, sda: int) -> None:
    scheduler = figures.schedulers[sda]
    assert scheduler.tunables == TUNABLES
    assert (scheduler.torn, scheduler.faults.total(), scheduler.lacks) == (0, 0, "")
    assert scheduler.counted.tolist() == scheduler.lengths.tolist()
    data, busy = _cfq_data(figures, sda), scheduler.lengths > 0
    assert int(data.rq_queued) == len(scheduler.request) == 143
    assert int(data.busy_queues) == np.count_nonzero(busy)
    assert int(data.busy_sync_queues) == np.count_nonzero(busy & (scheduler.is_sync == 1))
    pids = {*scheduler.pid[busy & (scheduler.is_sync == 1)].tolist()}
    assert XFSAILD in pids
    assert pids <= {XFSAILD, *READERS, *WRITERS}
    # Each request names its queue.
    rows = figures.requests.rows(scheduler.request)
    assert np.array_equal(figures.requests.private[0][rows], scheduler.address[scheduler.row])


def test_the_asynchronous_queue_is_starved(figures: Figures, answer: Answer, sda: int) -> None:
    (queue,) = (each for each in figures.queues if figures.is_async(each))
    assert (queue.disk, len(queue.requests), queue.overdue) == (sda, 136, 136)
    assert figures.expiry_ns(queue) == 250_000_000
    assert 160 < figures.times(queue) < 170
    assert queue.verdict is Verdict.STARVED
    first, *_ = answer.findings
    assert (first.id, first.severity) == ("requests-starved:sda-async", Severity.CRITICAL)
    assert first.figures["overdue"].value == 136
    # This kernel has the fix, which memory does not show.
    assert first.patch == ""
    assert "cfq-async-starvation" in first.evidence
    # It had been so for 40 s when a read was dispatched, within the last tick.
    assert 40 < float(first.figures["served"].value or 0) < 41


def test_bios_and_their_owners(figures: Figures) -> None:
    assert (figures.bios.torn, figures.bios.faults.total()) == (0, 0)
    owners = Counter(figures.owners)
    # xfsaild reads a buffer, and a task in reclaim writes one.
    assert owners["iomap_dio_bio_end_io"] == len(READERS) + len(WRITERS)
    assert owners["xfs_buf_bio_end_io"] == 2
    assert owners["xfs_end_bio"] == 135
    assert Counter(figures.files) == {"/mnt/x/buf2": 135, "": 10}


def test_tasks_in_state_d(answer: Answer) -> None:
    frame = answer.tables["sleepers"].frame.set_index("pid")
    assert len(frame) == answer.summary["sleepers"].value == 15
    assert {XFSAILD, *READERS, *WRITERS} <= set(frame.index)
    direct = frame.loc[[*READERS, *WRITERS]]
    assert set(direct["function"]) == {"iomap_dio_rw"}
    assert set(direct["link"]) == {"proven"}
    assert tuple(frame.loc[XFSAILD, ["function", "link"]]) == ("xfs_buf_iowait", "proven")


def test_what_the_kernel_counts(answer: Answer) -> None:
    assert {check.status for check in answer.checks} == {CheckStatus.AGREE}
    assert len(answer.checks) == 3
    assert answer.gaps == []
    assert answer.summary["requests"].value == sum(INFLIGHT.values())
