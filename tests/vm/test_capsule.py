# SPDX-License-Identifier: LGPL-2.1-or-later
"""Capsules of real kernels answer as the dumps do that they come from, for every analysis."""

from __future__ import annotations

import functools
import io
import itertools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import drgn
import numpy as np
import pytest

from kcensus.analyses import Analysis, AnalysisError, analyses
from kcensus.analyses.runner import Context
from kcensus.capsule import create
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.kernel import Kernel
from kcensus.render.json import write_json, write_report_json
from kcensus.reports import examine
from kcensus.sources import Target, open_target
from kcensus.sources.capsule.container import Reader
from kcensus.sources.faults import reason
from kcensus.sources.formats.coverage import coverage
from tests.lab import build
from tests.vm.elf_edit import without_pages

every_analysis = pytest.mark.parametrize("name", list(analyses()))


def document(target: Target, analysis: Analysis, jobs: int = 1, **options: Any) -> str:
    """The JSON document of an analysis as the command writes it, or why there is none."""
    out = io.StringIO()
    try:
        context = Context.of(replace(target, name="target"), jobs=jobs, **options)
        write_json(context.run(analysis), out)
    except AnalysisError as error:
        return f"AnalysisError: {error}"
    except drgn.FaultError as error:
        return f"FaultError: {reason(error)}"
    return out.getvalue()


class Dumps:
    """Dumps of the lab, each opened once, and capsules of them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._number = itertools.count()

    @functools.cache  # noqa: B019, both live as long as the session
    def target(self, kernel: str, scenario: str, format_: str) -> Target:
        dump = build(kernel, scenario)
        return open_target(str(dump.formats[format_]), dump.debug)

    @functools.cache  # noqa: B019
    def answer(self, kernel: str, scenario: str, format_: str, name: str) -> str:
        """What an analysis says of the dump itself."""
        return document(self.target(kernel, scenario, format_), analyses()[name])

    @functools.cache  # noqa: B019
    def capsule(self, kernel: str, scenario: str, format_: str, *names: str) -> Path:
        """A capsule for the named analyses, or for all if there are none."""
        path = self._directory / f"{next(self._number)}.capsule"
        wanted = [analyses()[name] for name in names or analyses()]
        create(self.target(kernel, scenario, format_), path, wanted)
        return path


@pytest.fixture(scope="session")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Dumps:
    return Dumps(tmp_path_factory.mktemp("capsules"))


@every_analysis
def test_same_answer(kernel: str, dumps: Dumps, name: str) -> None:
    """From a capsule of all analyses, in one process or two, in small pieces or large."""
    capsule = open_target(str(dumps.capsule(kernel, "mixed", "elf")))
    expected = dumps.answer(kernel, "mixed", "elf", name)
    assert document(capsule, analyses()[name]) == expected
    assert document(capsule, analyses()[name], 2, chunk_bytes=256 << 10) == expected


@every_analysis
def test_same_answer_from_a_capsule_of_its_own(kernel: str, dumps: Dumps, name: str) -> None:
    capsule = open_target(str(dumps.capsule(kernel, "mixed", "elf", name)))
    assert document(capsule, analyses()[name]) == dumps.answer(kernel, "mixed", "elf", name)


@every_analysis
@pytest.mark.parametrize(("release", "format_"), [("6.12", "elf"), ("6.1", "kdump-zlib")])
def test_same_answer_for_a_million_dentries(
    dumps: Dumps, name: str, release: str, format_: str
) -> None:
    capsule = open_target(str(dumps.capsule(release, "negatives", format_)))
    expected = dumps.answer(release, "negatives", format_, name)
    assert document(capsule, analyses()[name]) == expected


@every_analysis
def test_another_analysis_is_never_answered_silently(kernel: str, dumps: Dumps, name: str) -> None:
    target = open_target(str(dumps.capsule(kernel, "mixed", "elf", name)))
    for other in analyses().values():
        if other.name == name:
            continue
        said = []
        try:
            result = Context.of(target, jobs=1).run(other)
            said = [f"{gap.what}: {gap.reason}; {gap.effect}" for gap in result.gaps]
        except AnalysisError as error:
            said = [str(error)]
        wanted = (f"it was recorded for {name};", "kcensus capsule create")
        assert any(all(part in sentence for part in wanted) for sentence in said), said


def test_filtered_pages_stay_missing(kernel: str, dumps: Dumps, tmp_path: Path) -> None:
    """Some of the pages that analyses read are taken out of the dump before it is recorded."""
    dump = build(kernel, "mixed")
    index = Reader(str(dumps.capsule(kernel, "mixed", "elf"))).index(4096)
    runs = zip(index.first.tolist(), index.pages.tolist(), strict=True)
    # Single pages hold what leads to all the rest; long runs hold struct pages.
    frames = [frame for first, pages in runs if pages > 16 for frame in range(first, first + pages)]
    without_pages(dump.formats["elf"], tmp_path / "vmcore", frames[50::101])
    edited = open_target(str(tmp_path / "vmcore"), dump.debug)
    create(edited, tmp_path / "capsule", list(analyses().values()))
    capsule = open_target(str(tmp_path / "capsule"))
    changed = []
    for name, analysis in analyses().items():
        expected = document(edited, analysis)
        assert document(capsule, analysis) == expected
        if expected != dumps.answer(kernel, "mixed", "elf", name):
            assert "not in the dump" in expected
            changed.append(name)
    assert "slab" in changed


def test_no_debug_info_is_needed(kernel: str, dumps: Dumps, tmp_path: Path) -> None:
    """In a process that cannot find any, as what it says of the dump itself shows."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "HOME": str(tmp_path),
        "DEBUGINFOD_URLS": "",
    }

    def command(name: str, target: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "kcensus", name, str(target), "--json"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
        )

    path = dumps.capsule(kernel, "mixed", "elf")
    refused = command("slab", build(kernel, "mixed").formats["elf"])
    assert refused.returncode == 3
    assert "debug info" in refused.stderr
    target = replace(dumps.target(kernel, "mixed", "elf"), name=str(path))
    expected = io.StringIO()
    write_report_json(examine(Context.of(target)), expected)
    done = command("report", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == expected.getvalue()


def test_sizes(dumps: Dumps) -> None:
    """Of the dump with 1.4 million dentries, against makedumpfile's of the same crash."""
    path = build("6.1", "negatives").formats["kdump-zlib"]
    every = dumps.capsule("6.1", "negatives", "kdump-zlib")
    slab = dumps.capsule("6.1", "negatives", "kdump-zlib", "slab")
    sizes = [each.stat().st_size for each in (slab, every, path)]
    print("slab: {:,}, all: {:,}, kdump-zlib: {:,} bytes".format(*sizes))
    assert sizes == sorted(sizes)
    # The slab analysis reads all dentries for the names that kmalloc() holds; besides them, little.
    slab_map = Kernel(dumps.target("6.1", "negatives", "kdump-zlib").prog).slab_map
    dentries = slab_map.index(find_caches(slab_map, "struct dentry"), ScanReport())
    index = Reader(str(slab)).index(4096)
    runs = zip(index.first, index.pages, strict=True)
    recorded = np.concatenate([np.arange(first, first + pages) for first, pages in runs])
    is_dentries = np.isin(recorded, slab_map.pages.pfn(dentries.address))
    memory = coverage(path)
    assert memory is not None
    assert (~is_dentries).sum() * 4096 <= memory.saved_bytes / 10


def test_recording_is_deterministic(kernel: str, dumps: Dumps, tmp_path: Path) -> None:
    target = dumps.target(kernel, "mixed", "elf")
    create(target, tmp_path / "again", list(analyses().values()))
    first = dumps.capsule(kernel, "mixed", "elf").read_bytes()
    assert (tmp_path / "again").read_bytes() == first
