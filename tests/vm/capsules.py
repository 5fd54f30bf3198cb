# SPDX-License-Identifier: LGPL-2.1-or-later
"""Capsules of dumps, with and without what redaction changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kcensus.analyses import Analysis
from kcensus.analyses.runner import Context
from kcensus.capsule import create
from kcensus.progress import SilentProgress
from kcensus.redaction import Redaction
from kcensus.reports import report
from kcensus.results import Result
from kcensus.results.tables import Table
from kcensus.sources import Target
from kcensus.sources.capsule.container import Reader
from kcensus.sources.capsule.recorder import Recorder

KEY = b"the same for all of them"


@dataclass(frozen=True)
class Capsules:
    """Three capsules of one dump."""

    plain: Path
    wiped: Path
    """Unused memory zeroed, names kept."""
    redacted: Path

    @staticmethod
    def below(directory: Path) -> Capsules:
        return Capsules(*(directory / name for name in ("plain", "wiped", "redacted")))

    @staticmethod
    def of(target: Target, wanted: Sequence[Analysis], directory: Path) -> Capsules:
        paths = Capsules.below(directory)
        create(target, paths.plain, wanted)
        made = create(target, paths.redacted, wanted, redact=["names"], key=KEY)
        assert made.unredacted == []
        recorder = Recorder(target, has_uses=True)
        report(Context.of(recorder.target), wanted)
        wipe = Redaction(target, recorder, None, SilentProgress())
        manifest = Reader(str(paths.plain)).manifest
        recorder.write(paths.wiped, manifest, level=1, progress=SilentProgress(), scrub=wipe)
        return paths


def pages(path: Path) -> bytes:
    """Return the stored pages of a capsule."""
    reader, size = Reader(str(path)), page_size(path)
    index = reader.index(size)
    return b"".join(reader.block(index, at, size) for at in range(len(index.offsets) - 1))


def page_size(path: Path) -> int:
    """Return the bytes of a page of the recorded kernel."""
    return int(Reader(str(path)).manifest["machine"]["page_size"])


def assert_same_without_names(redacted: Result, plain: Result) -> None:
    """Compare all that two runs of an analysis say but for text."""
    assert _figures(redacted) == _figures(plain)
    assert redacted.checks == plain.checks
    assert len(redacted.gaps) == len(plain.gaps)
    assert [(f.severity, f.patch, f.holds) for f in redacted.findings] == [
        (f.severity, f.patch, f.holds) for f in plain.findings
    ]
    assert list(redacted.tables) == list(plain.tables)
    for key, table in plain.tables.items():
        assert _numbers(redacted.tables[key]) == _numbers(table), (plain.analysis, key)


def _figures(result: Result) -> dict[str, Any]:
    values = {name: figure.value for name, figure in result.summary.items()}
    return {name: value for name, value in values.items() if not isinstance(value, str)}


def _numbers(table: Table) -> list[tuple[Any, ...]]:
    """Return the rows without text, in an order that does not depend on names."""
    numbers = table.frame.select_dtypes(["number", "bool"])
    # Names are hashed: dentries are in other buckets.
    numbers = numbers.drop(columns="bucket", errors="ignore")
    return sorted(map(tuple, numbers.fillna(-1).to_numpy().tolist()))
