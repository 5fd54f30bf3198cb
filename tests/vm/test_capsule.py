# SPDX-License-Identifier: LGPL-2.1-or-later
"""Capsules of real kernels answer as the dumps do that they come from, for every analysis."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from drgn.helpers.linux.mm import PageLRU, for_each_page, page_to_pfn, virt_to_pfn

from kcensus.analyses import AnalysisError, analyses
from kcensus.analyses.runner import Context
from kcensus.capsule import create, leave_out_programs
from kcensus.engine.slub.caches import find_caches
from kcensus.engine.slub.slabs import ScanReport
from kcensus.kernel.kernel import Kernel
from kcensus.render.json import write_json
from kcensus.reports import examine
from kcensus.sources import Target, open_target
from kcensus.sources.capsule.container import Reader
from kcensus.sources.capsule.recorder import Recorder
from kcensus.sources.formats.coverage import coverage
from tests.lab import build
from tests.lab.samples import GUESTS
from tests.vm.cases import document, opened
from tests.vm.elf_edit import without_pages
from tests.vm.iosched.cases import SCHEDULERS

pytestmark = pytest.mark.newest

every_analysis = pytest.mark.parametrize("name", list(analyses()))

Dumped = tuple[str, str, str]
"""Kernel, scenario and format of a dump."""


@cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    # Deleted when the interpreter ends.
    return tempfile.TemporaryDirectory(prefix="kcensus-capsules-")


@cache
def target_of(dumped: Dumped) -> Target:
    kernel, scenario, form = dumped
    return opened(build(kernel, scenario), form=form)


@cache
def answer(dumped: Dumped, name: str) -> str:
    """What an analysis says of the dump itself."""
    return document(target_of(dumped), analyses()[name])


@cache
def capsule_of(dumped: Dumped, *names: str) -> Path:
    """A capsule for the named analyses, or for all if there are none."""
    path = Path(_directory().name) / "-".join((*dumped, *names))
    made = create(target_of(dumped), path, [analyses()[name] for name in names or analyses()])
    assert made.failed == {}
    return path


@pytest.fixture
def mixed(kernel: str) -> Dumped:
    return kernel, "mixed", "elf"


_PROPOSED = ", and `kcensus capsule create TARGET case.capsule --redact names`"


def assert_same_answer(dumped: Dumped, name: str, *recorded: str) -> None:
    """Compare with a capsule, in one process and two, in large pieces and small.

    Only a dump is worth recording.
    """
    capsule = open_target(str(capsule_of(dumped, *recorded)))
    expected = answer(dumped, name).replace(_PROPOSED, "")
    assert document(capsule, analyses()[name]) == expected
    assert document(capsule, analyses()[name], 2, chunk_bytes=256 << 10) == expected


@every_analysis
def test_same_answer(mixed: Dumped, name: str) -> None:
    assert_same_answer(mixed, name)
    assert_same_answer(mixed, name, name)


@every_analysis
@pytest.mark.parametrize(
    "dumped",
    [
        ("6.12", "negatives", "elf"),
        pytest.param(("6.1", "negatives", "kdump-zlib"), marks=pytest.mark.usually),
    ],
    ids="-".join,
)
def test_same_answer_for_a_million_dentries(dumped: Dumped, name: str) -> None:
    assert_same_answer(dumped, name)


@pytest.mark.usually("6.1 iosched-bfq", "7.3 iosched-starved", "6.1 waits-four")
@pytest.mark.parametrize(
    ("scenario", "name"),
    [
        *((scenario, "iosched") for scenario in SCHEDULERS),
        *((scenario, "waits") for scenario in ("waits-four", "waits-rwsem")),
    ],
)
def test_same_answer_of_requests_and_of_tasks(kernel: str, scenario: str, name: str) -> None:
    dumped = kernel, scenario, "elf"
    assert_same_answer(dumped, name, name)
    assert name != "waits" or capsule_of(dumped, name).stat().st_size < 4 << 20
    assert answer(dumped, name).startswith("{")


@every_analysis
def test_another_analysis_is_never_answered_silently(mixed: Dumped, name: str) -> None:
    target = open_target(str(capsule_of(mixed, name)))
    for other in analyses().values():
        if other.name == name:
            continue
        try:
            result = Context.of(target, jobs=1).run(other)
            said = [f"{gap.what}: {gap.reason}; {gap.effect}" for gap in result.gaps]
        except AnalysisError as error:
            said = [str(error)]
        wanted = (f"it was recorded for {name};", "kcensus capsule create")
        assert any(all(part in sentence for part in wanted) for sentence in said), said


def test_pages_of_programs_and_files_are_left_out(mixed_target: Target) -> None:
    """Words on stacks may look like lists and point there."""
    prog, recorder = mixed_target.prog, Recorder(mixed_target)
    on_lru = [int(page_to_pfn(page)) for page in islice(filter(PageLRU, for_each_page(prog)), 50)]
    own = int(virt_to_pfn(prog, prog["init_task"].tasks.next.value_()))
    for frame in (*on_lru, own):
        recorder.target.prog.read(frame << 12, 8, True)
    leave_out_programs(recorder, mixed_target)
    assert len(on_lru) == 50
    assert not recorder.touched[on_lru].any()
    assert recorder.touched[own]


def test_filtered_pages_stay_missing(kernel: str, mixed: Dumped, tmp_path: Path) -> None:
    """Some of the pages that analyses read are taken out of the dump before it is recorded."""
    dump = build(kernel, "mixed")
    index = Reader(str(capsule_of(mixed))).index(4096)
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
        if expected != answer(mixed, name):
            assert "not in the dump" in expected
            changed.append(name)
    assert "slab" in changed


def test_no_debug_info_is_needed(kernel: str, mixed: Dumped, tmp_path: Path) -> None:
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

    path = capsule_of(mixed)
    bare = command("slab", build(kernel, "mixed").formats["elf"])
    assert json.loads(bare.stdout)["machine"]["types"] == "BTF"
    target = replace(target_of(mixed), name=str(path))
    expected = io.StringIO()
    write_json(examine(Context.of(target)), expected)
    done = command("report", path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == expected.getvalue()


def test_sizes() -> None:
    """Of the dump with 1.4 million dentries, against makedumpfile's of the same crash."""
    path = build("6.1", "negatives").formats["kdump-zlib"]
    dumped = "6.1", "negatives", "kdump-zlib"
    slab = capsule_of(dumped, "slab")
    sizes = [each.stat().st_size for each in (slab, capsule_of(dumped), path)]
    assert sizes == sorted(sizes)
    # The slab analysis reads all dentries for the names that kmalloc() holds; besides them, little.
    slab_map = Kernel(target_of(dumped).prog).slab_map
    dentries = slab_map.index(find_caches(slab_map, "struct dentry"), ScanReport())
    index = Reader(str(slab)).index(4096)
    runs = zip(index.first, index.pages, strict=True)
    recorded = np.concatenate([np.arange(first, first + pages) for first, pages in runs])
    is_dentries = np.isin(recorded, slab_map.pages.pfn(dentries.address))
    memory = coverage(path)
    assert memory is not None
    assert (~is_dentries).sum() * 4096 <= memory.saved_bytes / 10


def test_recording_is_deterministic(mixed: Dumped, tmp_path: Path) -> None:
    create(target_of(mixed), tmp_path / "again", list(analyses().values()))
    assert (tmp_path / "again").read_bytes() == capsule_of(mixed).read_bytes()


@pytest.mark.parametrize("name", list(GUESTS))
def test_samples_hold_every_analysis(name: str) -> None:
    missing = {*analyses()} - {*(open_target(name).recorded_for or ())}
    assert not missing, "record the samples again with `./run samples`"
