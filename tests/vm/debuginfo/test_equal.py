# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dumps without debug info: the answers are those with DWARF."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.sources import Target, open_target
from tests.lab import build, host
from tests.running import document

_CASES = (
    *("6.1-mixed", "6.12-mixed", "7.3-mixed", "6.1-kcopyd-stall", "7.3-waits-rcu"),
    *("6.1-iosched-starved", "7.3-waits-stopped", "6.12-waits-stacked", "7.3-waits-servers"),
)


def _answers(target: Target) -> dict[str, Any]:
    context = Context.of(target, jobs=1)
    results = {name: json.loads(document(context.run(each))) for name, each in analyses().items()}
    for result in results.values():
        del result["machine"]["types"]
    return results


@pytest.mark.parametrize("case", _CASES)
@pytest.mark.usually("7.3-mixed", "6.1-iosched-starved", "6.12-waits-stacked")
def test_answers_are_the_same_without_debug_info(case: str) -> None:
    kernel, _, scenario = case.partition("-")
    dump = build(kernel, scenario)
    bare = open_target(str(dump.core))
    assert bare.types == "BTF"
    assert _answers(bare) == _answers(open_target(str(dump.core), dump.debug))


def test_without_types_of_modules() -> None:
    """The kernel of 5.10 has BTF for itself only, and does not say where its symbols are."""
    dump = build("5.10", "mixed")
    with_debug_info = _answers(open_target(str(dump.core), dump.debug))
    bare = _answers(open_target(str(dump.core)))
    # These read no structure of a module.
    assert bare["dentries"] == with_debug_info["dentries"]
    assert bare["memcgs"] == with_debug_info["memcgs"]
    for name, result in bare.items():
        is_complete = name in ("dentries", "memcgs")
        assert bool(result["gaps"]) is not is_complete, name
        differ = [check["name"] for check in result["checks"] if check["status"] == "differs"]
        known = with_debug_info[name]["checks"]
        assert differ == [check["name"] for check in known if check["status"] == "differs"]


@pytest.mark.parametrize("version", ["5.10", "6.1", "6.12", "7.3"])
@pytest.mark.usually("6.1")
def test_a_task_that_spins_for_an_unknown_lock_is_not_blamed_for_a_loop(version: str) -> None:
    dump = build(version, "waits-cpu")
    waits = analyses()["waits"]
    with_debug_info, bare = (
        {each.kind: each for each in Context.of(target, jobs=1).run(waits).findings}
        for target in (open_target(str(dump.core), dump.debug), open_target(str(dump.core)))
    )
    assert {*bare} - {*with_debug_info} == {"waits-spinning"}
    assert {*with_debug_info} - {*bare} == {"waits-spinlock"}
    known, unknown = with_debug_info["waits-spinlock"], bare["waits-spinning"]
    assert unknown.tasks == known.tasks
    # The task that spins does not wait for itself.
    assert unknown.figures["tasks"].value == len(unknown.tasks) - 1
    assert "vmlinux" in unknown.no_remedy


@pytest.mark.parametrize(
    ("scenario", "ids", "module"),
    [
        ("waits-stacked", ["requests-overdue:dm-5"], "dm_multipath"),
        ("waits-scsi", ["requests-overdue:sdb", "waits-io:sda", "tasks-blocked"], "scsi_mod"),
    ],
)
def test_findings_name_modules_without_types(scenario: str, ids: list[str], module: str) -> None:
    dump = build("5.10", scenario)
    context = Context.of(open_target(str(dump.core)), jobs=1)
    results = [context.run(analyses()[name]) for name in ("iosched", "waits")]
    found = {each.id: each for result in results for each in result.findings}
    for each in ids:
        assert module in found[each].no_remedy
    # One gap of a kind for each module, however many disks and subjects it costs.
    for result in results:
        told = [(gap.what, gap.reason) for gap in result.gaps]
        assert len(told) == len({*told})
        assert len(told) <= {"waits-stacked": 8, "waits-scsi": 2}[scenario]
        lost = {"kinds of waits", "stacked disks"}
        assert all("of module" in reason for what, reason in told if what in lost)
    context = Context.of(open_target(str(dump.core), dump.debug), jobs=1)
    complete = [context.run(analyses()[name]) for name in ("iosched", "waits")]
    assert not any("type pack" in each.no_remedy for r in complete for each in r.findings)


@pytest.mark.parametrize("form", ["kdump-elf", "kdump-lzo", "kdump-zstd"])
def test_filtered_dumps_with_kaslr(form: str, tmp_path: Path) -> None:
    """Written by makedumpfile -d 31, which keeps the pages of the image."""
    dump = build("6.1", "negatives")
    path = dump.formats.get(form, tmp_path / form)
    if form == "kdump-zstd":
        command = [
            host.find("makedumpfile"),
            "-z",
            "-d",
            "31",
            str(dump.formats["kdump-elf"]),
            str(path),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    bare = open_target(str(path))
    assert bare.types == "BTF"
    assert _answers(bare) == _answers(open_target(str(path), dump.debug))
