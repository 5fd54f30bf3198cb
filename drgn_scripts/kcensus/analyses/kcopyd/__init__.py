# SPDX-License-Identifier: LGPL-2.1-or-later
"""Who queued those kcopyd jobs, and which worker pools are stuck behind them?

Symptom: the slab cache ``kcopyd_job`` grows to gigabytes until the OOM killer comes, or the log
says ``workqueue lockup`` with ``do_work [dm_mod]`` in flight. Cause: snapshots that copy more at
once than their COW device can take, without a limit or with a limit that was lifted.
"""

from __future__ import annotations

from kcensus.analyses import Analysis, Param

ANALYSIS = Analysis(
    name="kcopyd",
    question="who queued those kcopyd jobs, and which worker pools are stuck behind them?",
    runner="kcensus.analyses.kcopyd.run:run",
    description=(
        "A job is an object of the cache kcopyd_job: one copy, with room for the eight parts it "
        "may be split into. It is waiting for a callback or has completed, waits to be issued or "
        "for pages, or is in flight: on none of its client's lists. nr_jobs counts jobs and the "
        "parts of split ones. A pool is stalled as the kernel's own watchdog sees it: work is "
        "pending and none was begun for wq_watchdog_thresh seconds (30 where the kernel has no "
        "watchdog). How long a worker has been running is exact since 7.0, before at least that "
        "long. The projection says what would be left if no snapshot had more copies in flight "
        "than the threshold, 2048 where there is none, allows."
    ),
    examples=(
        ("kcensus kcopyd vmcore -s vmlinux", "jobs by client, snapshots and stalled pools"),
        ("kcensus kcopyd vmcore --log dmesg.txt", "with the events of a saved log"),
        ("kcensus kcopyd --log dmesg.txt", "what a log alone tells, where there is no dump"),
    ),
    params=(
        Param(
            "log",
            str,
            None,
            "Read the kernel's log from this file, not from memory. It needs no VMCORE.",
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
