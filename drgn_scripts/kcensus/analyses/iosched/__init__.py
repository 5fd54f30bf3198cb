# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which requests wait in an I/O scheduler, and which tasks wait for them?

Symptom: open() takes seconds to half a minute in state D, and disks are busy with other requests.
Cause: the scheduler lets requests of others go first, so that an asynchronous write stays in its
queue long past its expiry.
"""

from __future__ import annotations

from kcensus.analyses import Analysis, Param
from kcensus.kernel.block import MODULES

ANALYSIS = Analysis(
    name="iosched",
    reads_stacks=True,
    question="which requests wait in an I/O scheduler, and which tasks wait for them?",
    plain="reads and writes that wait for disks",
    gauges="kcensus.analyses.iosched.kernel.checks:gauges",
    specs="kcensus.analyses.iosched.run:TABLES",
    headline=("inserted", "worst_async_wait", "sleepers_behind_requests"),
    first_tables=(
        "disks",
        "scheduler_queues",
        "sleepers",
        "requests_traced",
        "trace_phases",
        "trace_tasks",
        "trace_queues",
    ),
    description="""\
A request is allocated, inserted into the I/O scheduler of its disk, dispatched to the driver and
completed. BFQ, CFQ, mq-deadline and deadline have an expiry for every request. A queue is starved
if later requests of other queues were dispatched after its first request had expired. If the driver
holds only earlier requests, the device is slow; if it holds none, memory does not show the cause.

Tasks in state D are listed with the object they sleep for and the request that must complete first.
The link is proven where kernel pointers lead from the request to the task, such as bio.bi_private
to the buffer in xfs_buf_lock(); likely where only the sectors match.

A trace is the output of blktrace: the files PREFIX.blktrace.0, .1 … of all CPUs, a directory with
them, or the text of blkparse. It needs no kernel. To record one for a minute: `blktrace -d /dev/sda
-o sda -w 60`. Prefer the files: text lacks messages of BFQ with cgroups, CLOCK_MONOTONIC, and the
count of lost events.

With a dump, the trace is read up to the moment of the dump, and its requests are matched with
memory by disk, sector and time. Without a common request, trace and dump may be of different
machines or times: their findings are then listed separately.

The phases of a request are those of btt: Q2I from when it was queued until it was inserted into
the scheduler, I2D until it was dispatched to the driver, D2C until it was completed, Q2C all of
it. They are measured per bio, as btt does: a bio that was merged into another request has Q2M and
M2D instead of Q2I and I2D. A request not dispatched by the end of the trace counts as waiting until
then.

Synchronous requests are reads, and writes that are marked synchronous, FUA or flush, as in the
kernel. A trace has messages of CFQ and BFQ only if the kernel was built to log them.
""",
    examples=(
        ("kcensus iosched vmcore", "the schedulers of a dump, and the tasks behind them"),
        ("kcensus iosched vmcore --trace sda", "with the trace of blktrace up to the dump"),
        ("kcensus iosched --trace sda", "the trace in sda.blktrace.0, sda.blktrace.1 …"),
        (
            "kcensus iosched --trace blkparse.txt --html io.html",
            "the output of blkparse, as a page",
        ),
    ),
    params=(
        Param(
            "trace",
            str,
            None,
            "Read a trace: PREFIX or directory of blktrace's files, or a file with the output of "
            "blkparse; needs no TARGET.",
            is_file=True,
        ),
    ),
    modules=MODULES,
    more_modules="kcensus.kernel.waiting.finders:modules",
    without_target=("trace",),
)
