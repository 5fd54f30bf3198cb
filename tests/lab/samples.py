# SPDX-License-Identifier: LGPL-2.1-or-later
"""Record the bundled samples again: ``python3 -m tests.lab samples [NAME]...``.

Two guests, one workload: a kernel before the patches and one after them. A guest whose disk's
scheduler starves writes, one with a deadlock, and the same deadlock on arm64. A series of weeks,
with a simulated clock, of a host that boots twice and grows. What the guests counted lies beside
the tests that hold the samples against it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from . import series
from .dumps import Dump, build, live
from .host import say

GUESTS = {
    "sample": ("5.10", "sample"),
    "sample-after": ("6.12", "sample"),
    "sample-io": ("6.1", "iosched-starved"),
    "sample-waits": ("6.1", "waits-four"),
    "sample-arm64": ("6.12-arm64", "waits-four"),
}
"""Kernel and scenario of each sample."""
SERIES = "sample-series"
"""A store; both boots are of one kernel."""
_SERIES_KERNEL = "6.1"
_BOOTS = ((datetime(2026, 10, 19), 12), (datetime(2026, 10, 25, 12), 30))
"""Begin, and records, of each boot of the scenario ``weeks``."""
_SERIES_ANALYSES = "dentries,list-lru,memcgs,slab"
_DESCRIPTION = (
    "recorded with a simulated clock: one guest, {} records, each 12 simulated hours apart"
)
TRUTH = Path(__file__).parents[1] / "sample" / "truth"

_KEPT = ("dentry-state", "slabinfo.4", "meminfo")
_KEPT_OF_IO = ("disks.last", "tasks.last")
_KEPT_OF_WAITS = tuple(
    f"waits.{what}.{when}" for what in ("log", "tasks") for when in ("before", "later")
)
_KEPT_OF_OTHERS = ("cgroup.stat", "created.json", "dmsetup-status")
_SMALLEST = 19


def make(names: Sequence[str] = ()) -> None:
    """Record guests, with all analyses there are, and the series; by default all of them."""
    # Here, so that the lab builds dumps without the package.
    from kcensus.analyses import analyses
    from kcensus.capsule import create
    from kcensus.samples import DIRECTORY
    from kcensus.sources import open_target

    if not names:
        shutil.rmtree(TRUTH, ignore_errors=True)
    TRUTH.mkdir(parents=True, exist_ok=True)
    for name, (kernel, scenario) in GUESTS.items():
        if names and name not in names:
            continue
        dump = build(kernel, scenario)
        path = DIRECTORY / f"{name}.capsule"
        target = open_target(dump.formats["elf"], dump.debug)
        path.unlink(missing_ok=True)
        made = create(target, path, list(analyses().values()), level=_SMALLEST)
        path.chmod(0o644)  # others' capsules are private, this one is for everybody
        for analysis, error in made.failed.items():
            say(f"{name}: {analysis} is not in it: {error}")
        _write(name, {"release": dump.release, **_kept(dump)})
        say(f"{path}: {path.stat().st_size:,} bytes, {made.stored:,} pages")
    if not names or SERIES in names:
        make_series()


def make_series() -> None:
    from kcensus.samples import DIRECTORY

    path = DIRECTORY / SERIES
    with tempfile.TemporaryDirectory() as temporary:
        store = Path(temporary) / "store"
        for begin, count in _BOOTS:
            with live(_SERIES_KERNEL, "weeks", begin) as guest:
                series.record_weeks(guest, store, count, _SERIES_ANALYSES)
                log = [[int(word) for word in line] for line in series.log(guest, "weeks")]
        shutil.rmtree(path, ignore_errors=True)
        records = sum(count for _, count in _BOOTS)
        _copy_store(store, path, _DESCRIPTION.format(records))
    _write(SERIES, {"last boot": log})
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    say(f"{path}: {size:,} bytes, {records} records")


def _copy_store(store: Path, path: Path, description: str) -> None:
    """Copy a store as one file of sorted rows, and a log that does not name the directory.

    It has no directories of days, in which the same texts would be again and again.
    """
    from deltalake import DeltaTable, Schema, write_deltalake

    from kcensus.store import dataset
    from kcensus.store.layout import LOG, ORDER, SCHEMA

    path.mkdir()
    DeltaTable.create(
        path, Schema.from_arrow(SCHEMA), partition_by=["host"], description=description
    )
    rows = dataset.read(store).sort_by([(name, "ascending") for name in ORDER])
    write_deltalake(path, rows, mode="append", writer_properties=dataset.WRITING)
    for commit in (path / LOG).glob("*.json"):
        lines = commit.read_text().splitlines(keepends=True)
        commit.write_text("".join(line for line in lines if '"commitInfo"' not in line))


def _kept(dump: Dump) -> dict[str, str]:
    """Return what a guest said, but for lines that name a mailing list, such as the kernel's."""
    kinds = (_KEPT_OF_IO, _KEPT_OF_WAITS, _KEPT_OF_OTHERS)
    own = next(kind for kind in kinds if {*kind} <= dump.truth.keys())
    lines = {key: dump.truth[key].splitlines(keepends=True) for key in (*_KEPT, *own)}
    return {key: "".join(line for line in lines[key] if "@" not in line) for key in lines}


def _write(name: str, kept: dict[str, Any]) -> None:
    text = json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False)
    (TRUTH / f"{name}.json").write_text(text + "\n")
