# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table of hardware queues: where requests are between scheduler and driver."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.analyses.iosched.kernel.figures import Figures
from kcensus.engine.memory import Words
from kcensus.kernel.block.requests import Place, State
from kcensus.results import Unit
from kcensus.results.tables import Column, Show, Table, TableSpec

HARDWARE_QUEUES = TableSpec(
    "hardware_queues",
    "Hardware queues",
    {
        "disk": Column(Unit.TEXT, "disk", Show.ALWAYS, "Name of the disk."),
        "number": Column(Unit.NONE, "queue", Show.ALWAYS, "As in /sys/block/DISK/mq."),
        "requests": Column(Unit.COUNT, "requests", Show.ALWAYS, "Allocated for it."),
        "software": Column(
            Unit.COUNT, "in software queues", Show.ALWAYS, "Of CPUs; only without a scheduler."
        ),
        "on_dispatch": Column(
            Unit.COUNT,
            "on dispatch list",
            Show.ALWAYS,
            "Taken from the scheduler; the driver had no room for them.",
        ),
        "dispatched": Column(Unit.COUNT, "in the driver", Show.ALWAYS, "Dispatched to the driver."),
        "tags_used": Column(Unit.COUNT, "tags used", Show.ALWAYS, "Tags of the driver in use."),
        "tags": Column(
            Unit.COUNT, "tags", Show.ALWAYS, "Tags of the driver; queues and disks may share them."
        ),
        "sched_tags_used": Column(
            Unit.COUNT, "scheduler's used", Show.ALWAYS, "Tags of the scheduler in use."
        ),
        "sched_tags": Column(
            Unit.COUNT, "scheduler's tags", Show.ALWAYS, "Requests that it takes; 0 without one."
        ),
        "stopped": Column(Unit.TEXT, "stopped", Show.ALWAYS, "Whether the driver stopped it."),
        "address": Column(
            Unit.ADDRESS,
            "hctx",
            Show.DATA,
            "struct blk_mq_hw_ctx pointer.",
            type="struct blk_mq_hw_ctx",
        ),
    },
    "A hardware queue of a disk.",
    ("requests", "disk", "number"),
)
Counts = npt.NDArray[np.int64]


def hardware_queues_table(figures: Figures) -> Table:
    """Make the table of hardware queues."""
    hardware, requests = figures.hardware, figures.requests

    def count(wanted: npt.NDArray[np.bool_]) -> Counts:
        rows = requests.hardware_queue[wanted & (requests.hardware_queue >= 0)]
        return np.bincount(rows, minlength=len(hardware.address)).astype(np.int64)

    def tags(sets: Words) -> tuple[Counts, Counts]:
        """Return how many tags are in use, and how many there are."""
        row = hardware.tag_sets.rows(sets)
        used, depth = hardware.tag_sets.used, hardware.tag_sets.depth
        return np.append(used, 0)[row], np.append(depth, 0)[row]

    used, depth = tags(hardware.tags)
    sched_used, sched_depth = tags(hardware.sched_tags)
    names = np.array([*(disk.name for disk in figures.disks), ""], np.object_)
    return HARDWARE_QUEUES.of(
        pd.DataFrame(
            {
                "disk": names[hardware.disk],
                "number": hardware.number,
                "requests": count(requests.hardware_queue >= 0),
                "software": count(requests.place == Place.SOFTWARE_QUEUE),
                "on_dispatch": count(requests.place == Place.DISPATCH),
                "dispatched": count(requests.state == State.DISPATCHED),
                "tags_used": used,
                "tags": depth,
                "sched_tags_used": sched_used,
                "sched_tags": sched_depth,
                "stopped": np.where(hardware.is_stopped, "yes", "no"),
                "address": hardware.address,
            },
            columns=[*HARDWARE_QUEUES.columns],
        )
    )
