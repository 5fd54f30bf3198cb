# SPDX-License-Identifier: LGPL-2.1-or-later
"""What was inserted into an I/O scheduler and not dispatched, and who sleeps behind it?

Symptom: open() takes seconds to half a minute in D state, and disks are not busy with what it waits
for. Cause: the scheduler lets requests of others go first, so that an asynchronous write stays in
its queue long past its expiry.
"""

from __future__ import annotations

from kcensus.analyses import Analysis, Param
from kcensus.kernel.block import MODULES

ANALYSIS = Analysis(
    name="iosched",
    question="what was inserted into an I/O scheduler and not dispatched, and who waits for it?",
    runner="kcensus.analyses.iosched.run:run",
    gauges="kcensus.analyses.iosched.kernel.checks:gauges",
    specs="kcensus.analyses.iosched.run:TABLES",
    charts="kcensus.analyses.iosched.run:CHARTS",
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
if later requests of others were dispatched after its first one had expired. If the driver has none
of these, the device is slow; if it has no request at all, memory does not show which.

Tasks in state D are listed with the object that they sleep for, and the request that has to
complete first. It is proven where pointers in the kernel lead from the request to the task, such as
bio.bi_private to the buffer that xfs_buf_lock() waits for; likely where only the sectors are the
same.

A trace is what blktrace recorded: the files PREFIX.blktrace.0, .1 … of all CPUs, a directory with
them, or the text that blkparse printed. No kernel is needed for it. To record one for a minute:
`blktrace -d /dev/sda -o sda -w 60`. Give the files themselves: text has no messages of BFQ with
cgroups, no CLOCK_MONOTONIC, and no count of what was lost.

With a dump, the trace is read until the moment of the dump, and its requests are found in memory by
disk, sector and time. Without a common request it is of another machine or time, or that is
unknown: its findings are then apart from those of memory.

The phases of a request are those of btt: Q2I from when it was queued until it was inserted into
the scheduler, I2D until it was dispatched to the driver, D2C until it was completed, Q2C all of
it. They are measured per bio, as btt does: a bio that was merged into another request has Q2M and
M2D instead of Q2I and I2D. A request that was not dispatched until the end of the trace has waited
until then.

Synchronous requests are reads, and writes that are marked synchronous, FUA or flush, as in the
kernel. A trace has the messages of CFQ and BFQ where the kernel was built to log them.
""",
    examples=(
        ("kcensus iosched vmcore", "the schedulers of a dump, and who sleeps behind them"),
        ("kcensus iosched vmcore --trace sda", "with what blktrace recorded until the dump"),
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
            "Read a trace: PREFIX of the files of blktrace, their directory, or a file with the "
            "output of blkparse; needs no TARGET.",
        ),
    ),
    modules=MODULES,
    without_target=("trace",),
)
