# SPDX-License-Identifier: LGPL-2.1-or-later
"""An invented Result, analysis and target for tests of the faces, never of figures.

``python -m tests.unit.synthetic ARGS`` is ``kcensus ARGS`` with nothing but this analysis.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd

from kcensus import cli
from kcensus.analyses import AnalysisError, Param
from kcensus.kernel.kernel import Kernel
from kcensus.results import (
    Answer,
    Check,
    Figure,
    Finding,
    Gap,
    Machine,
    Remedy,
    Result,
    Severity,
    Unit,
)
from kcensus.results.tables import Column, Show, Table
from kcensus.sources import TargetError
from tests.running import analysis_of

LONG_NAME = "a_cache_of_an_out_of_tree_module_with_a_name_without_end(4711:system.slice/x.service)"
NOT_UTF8 = b"caf\xe9".decode("utf-8", "surrogateescape")
HOSTILE = {
    # A name in the kernel: what a reader gets.
    "plain-name": "plain-name",
    "\x1b[31mred\x1b[0m": "\\x1b[31mred\\x1b[0m",
    "[bold]markup[/]": "[bold]markup[/]",
    "two\nlines": "two\\x0alines",
    "=cmd|' /C calc'!A0": "=cmd|' /C calc'!A0",
    "\u202egnp.exe": "\\u202egnp.exe",
    NOT_UTF8: "caf\\xe9",
    "日本語": "日本語",
    LONG_NAME: LONG_NAME,
}
HIGHEST = 2**64 - 1


def figures(**values: Any) -> dict[str, Figure]:
    """Make figures: of bytes where the key ends so, else counts."""
    return {
        key: Figure(value, Unit.BYTES if key.endswith("bytes") else Unit.COUNT)
        for key, value in values.items()
    }


def synthetic_result(name: str = "synthetic vmcore") -> Result:
    """Return a result with every kind of column, hostile names included."""
    rows = len(HOSTILE)
    frame = pd.DataFrame(
        {
            # The string dtype of pandas rejects lone surrogates.
            "cache": pd.Series(list(HOSTILE), dtype=object),
            "objects": np.arange(rows) * 1234567,
            "used": [0.0, 0.99996, 1.0, 0.5, 0.25, float("nan"), float("inf"), 0.00001, 0.75],
            "bytes": np.arange(rows, dtype=np.uint64) << np.uint64(29),
            "change": np.arange(rows) - 3,
            "pages": range(rows),
            "address": np.full(rows, HIGHEST, dtype=np.uint64),
        }
    )
    columns = {
        "cache": Column(Unit.TEXT, "cache", Show.ALWAYS),
        "objects": Column(Unit.COUNT, "allocated objects"),
        "used": Column(Unit.RATIO, "utilization"),
        "bytes": Column(Unit.BYTES, "slab memory", Show.ALWAYS),
        "change": Column(Unit.COUNT, "change"),
        "pages": Column(Unit.PAGES, "slab pages"),
        "address": Column(Unit.ADDRESS, "kmem_cache", Show.DATA),
    }
    return Result(
        analysis="synthetic",
        target=name,
        kernel="6.1.0-synthetic",
        summary={
            "slab_bytes": Figure(123456789012, Unit.BYTES, "memory in slab pages"),
            "utilization": Figure(0.99996, Unit.RATIO, "utilization"),
            "oldest": Figure(3725.0, Unit.SECONDS, "oldest object"),
            "unknown": Figure(float("nan"), Unit.RATIO, "not to be had"),
            "allocator": Figure("SL\x1bUB", Unit.TEXT, "allocator"),
        },
        tables={
            "caches": Table(frame, columns, "Caches by memory", "The note of the table."),
            "empty": Table(
                frame.head(0)[["cache", "objects"]],
                {key: columns[key] for key in ("cache", "objects")},
                "Nothing at all",
            ),
        },
        checks=[
            *(Check(f"agreeing {number}", 5, 5) for number in range(9)),
            Check("sheaves", 7, 10, source="total_objects", note="3 are parked.", explained=3),
            Check("jobs", 10, HIGHEST, source="nr_jobs"),
            Check("uncounted", 10, None),
        ],
        findings=[
            Finding(
                id="synthetic-notice",
                severity=Severity.NOTICE,
                title="A notice with \x1b[2J in it.",
            ),
            Finding(
                id="synthetic-waste:dentry",
                severity=Severity.CRITICAL,
                title="61.2% of the dentry slabs is free.",
                evidence="-1 is not a formula.",
                figures={"free": Figure(0.612, Unit.RATIO)},
                remedies=(
                    Remedy(
                        command="echo 1 > /proc/sys/synthetic\necho 2 > /proc/sys/synthetic",
                        effect="Frees the empty ones",
                        risk="Takes a lock",
                        undo="echo 0 > /proc/sys/synthetic",
                        until="reboot",
                        returns=1024,
                        is_upper_bound=True,
                    ),
                    Remedy(effect="Boot a kernel with the patch"),
                ),
                patch="synthetic-patch",
                memory={"slab:dentry": 1536},
            ),
        ],
        gaps=[Gap("slab pages", "not in the dump", 1024, "objects are a lower bound")],
    )


def _run(kernel: Kernel, seconds: float, fail: str | None, quiet_reader: bool) -> Answer:
    errors: dict[str, Exception] = {
        "analysis": AnalysisError("this kernel keeps no synthetic objects"),
        "bug": ZeroDivisionError("a bug with \x1b in it"),
        "pipe": BrokenPipeError("not ours"),
        "memory": MemoryError(),
    }
    with kernel.progress.step("counting synthetic objects", 20) as step:
        for _ in range(20):
            time.sleep(seconds / 20)
            step.advance()
    if fail:
        raise errors[fail]
    made = synthetic_result(str(kernel.prog))
    more = {
        "jobs": Figure(kernel.jobs),
        "chunk_bytes": Figure(kernel.chunk_bytes, Unit.BYTES),
        "quiet_reader": Figure(quiet_reader),
    }
    return Answer(
        summary=made.summary | more,
        tables=made.tables,
        checks=made.checks,
        findings=made.findings,
        gaps=made.gaps,
    )


ANALYSIS = analysis_of(
    "synthetic",
    _run,
    question="How is a made-up result shown?",
    description="""
    The first paragraph of the description.

    The second one.
    """,
    examples=(("kcensus synthetic vmcore", "count what is not there"),),
    params=(
        Param("seconds", float, 0.0, "How long it takes."),
        Param("fail", str, None, "How it fails."),
        Param("quiet_reader", bool, False, "A flag."),
    ),
)


def open_synthetic(
    spec: str | None,
    symbols: Sequence[Path] = (),
    *,
    allow_truncated: bool = False,
    vmcoreinfo: Path | None = None,
) -> SimpleNamespace:
    """Open a target like ``open_target``; words in ``spec`` choose its properties."""
    spec = spec or "running kernel"
    if spec == "unusable":
        raise TargetError("no debug info for 6.1.0-synthetic: install linux-image-dbg")
    if spec == "bare" and vmcoreinfo is None:
        raise TargetError("has no VMCOREINFO")
    if spec == "truncated" and not allow_truncated:
        raise TargetError("its end is missing")
    return SimpleNamespace(
        prog=spec,
        name=spec,
        kernel="6.1.0-synthetic",
        live=spec == "running kernel",
        shareable="alone" not in spec,
        compressed="compressed" in spec,
        recorded_for=None,
        missing_end="the dump lacks its last 4.0 KiB" if spec == "truncated" else "",
        types="DWARF",
        type_sources="DWARF",
        notes=(),
        doubts={},
        has_pseudonyms="redacted" in spec,
        boot="",
        words=f"{spec} --allow-truncated" if allow_truncated else spec,
    )


@contextmanager
def only_synthetic() -> Iterator[None]:
    """Replace all analyses and sources by these for the time of a ``with``."""
    with (
        mock.patch("kcensus.analyses._discover", return_value={ANALYSIS.name: ANALYSIS}),
        mock.patch("kcensus.commands.commands", return_value={}),
        mock.patch("kcensus.sources.open_target", open_synthetic),
        mock.patch("kcensus.analyses.runner.machine", return_value=Machine(host="synthetic")),
        mock.patch("kcensus.reports.machine", return_value=Machine(host="synthetic")),
    ):
        yield


if __name__ == "__main__":
    with only_synthetic():
        sys.exit(cli.main())
