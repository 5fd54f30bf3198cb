# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which clients queue kcopyd jobs, and which worker pools stall behind them?

Symptom: the slab cache ``kcopyd_job`` grows to gigabytes until the OOM killer runs, or the log
shows ``workqueue lockup`` with ``do_work [dm_mod]`` in flight.
"""

from __future__ import annotations

from kcensus.analyses import Analysis, Param

ANALYSIS = Analysis(
    name="kcopyd",
    question="which clients queue kcopyd jobs, and which worker pools stall behind them?",
    plain="copies for snapshots and mirrors of volumes",
    gauges="kcensus.analyses.kcopyd.checks:gauges",
    headline=("jobs", "total_bytes", "stalled_pools"),
    first_tables=("clients", "snapshots", "pools"),
    description="""\
A job is one copy: an object of the slab cache kcopyd_job with room for eight sub-jobs. It is on one
of its client's lists (callback_jobs, complete_jobs, io_jobs, pages_jobs), or in flight. nr_jobs
counts jobs and running sub-jobs.

A worker pool is stalled by the rule of the kernel's watchdog: work is pending, and none was started
for wq_watchdog_thresh seconds (30 without CONFIG_WQ_WATCHDOG). The run time of a worker is exact
since 7.0, and a lower bound before.

The memory of kcopyd is kcopyd_job slabs, copy pages, bios and exceptions. Copy pages follow from
the sizes of the jobs, and are checked against their page_lists; bios are counted by bio_set,
including clones in the COW device of a snapshot.

The projection keeps, for each snapshot, at most as many copies in flight as its limit allows, or
2048 without a limit. The limit is snapshot_cow_threshold with in_progress; with the semaphore
cow_count, the threshold at the creation of the snapshot.
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
            is_file=True,
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
    more_modules="kcensus.kernel.waiting.finders:modules",
    without_target=("log",),
)
