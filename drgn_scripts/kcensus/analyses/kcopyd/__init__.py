# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who queued those kcopyd jobs, and which worker pools are stalled behind them?

Symptom: the slab cache ``kcopyd_job`` grows to gigabytes until the OOM killer runs, or the log
shows ``workqueue lockup`` with ``do_work [dm_mod]`` in flight. Cause: snapshots start more copies
than their COW device completes, on a kernel without a limit or with the limit raised.
"""

from __future__ import annotations

from kcensus.analyses import Analysis, Param

ANALYSIS = Analysis(
    name="kcopyd",
    question="who queued those kcopyd jobs, and which worker pools are stalled behind them?",
    runner="kcensus.analyses.kcopyd.run:run",
    gauges="kcensus.analyses.kcopyd.checks:gauges",
    specs="kcensus.analyses.kcopyd.tables:TABLES",
    charts="kcensus.analyses.kcopyd.charts:CHARTS",
    ram="kcensus.analyses.kcopyd.charts:ram",
    headline=("jobs", "total_bytes", "stalled_pools"),
    first_tables=("clients", "snapshots", "pools"),
    description="""\
A job is one copy: an object of the slab cache kcopyd_job with room for the eight sub-jobs that it
may be split into. It is on one of its client's lists (callback_jobs, complete_jobs, io_jobs,
pages_jobs) or, on none of them, in flight. nr_jobs counts jobs and running sub-jobs.

A worker pool is stalled by the rule of the kernel's watchdog: work is pending, and none was started
for wq_watchdog_thresh seconds (30 without CONFIG_WQ_WATCHDOG). How long a worker has been running
is exact since 7.0, a lower bound before.

The memory of kcopyd is kcopyd_job slabs, copy pages, bios and exceptions. Copy pages are counted
by the sizes of the jobs, and held against the page_list of each; bios by the bio set that each
was allocated from, clones in a snapshot's COW device included.

The projection is what would remain if no snapshot had more copies in flight than its limit allows,
or 2048 where nothing limits copies. With in_progress, the limit is snapshot_cow_threshold; with
the semaphore cow_count, it is what the threshold was when the snapshot was created.
""",
    examples=(
        ("kcensus kcopyd vmcore -s vmlinux", "jobs by client, snapshots, stalled pools"),
        ("kcensus kcopyd vmcore --log dmesg.txt", "with the events of a saved log"),
        ("kcensus kcopyd --log dmesg.txt", "the events of a log, without a dump"),
    ),
    params=(
        Param(
            "log",
            str,
            None,
            "Read the kernel log from this file instead of from memory; needs no TARGET.",
        ),
    ),
    modules=(
        "dm_mod",
        "dm_snapshot",
        "dm_mirror",
        "dm_thin_pool",
        "dm_cache",
        "dm_clone",
        "dm_writecache",
        "dm_zoned",
    ),
    without_target=("log",),
)
