# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every finding of every scenario, and the files that remedies write to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from pandas.testing import assert_frame_equal

from kcensus import explain
from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.catalogue import load
from kcensus.human import human, human_bytes, human_ratio
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.knobs import has_knob, knobs
from kcensus.reports import Report, examine
from kcensus.results import CheckStatus, Danger, Finding, Unit
from tests.lab import Dump, build
from tests.lab.debian.store import like
from tests.lab.scenario import kernels_of, scenarios
from tests.lab.scenario import load as scenario
from tests.lab.trials import returned_by, slab_bytes
from tests.leads import dead_ends
from tests.pictures import not_shown
from tests.vm import cases

_NUMBER = re.compile(r"(?<![\w.,/:-])\d[\d,]*(?:\.\d+)?(?:%| [KMGTPE]iB| B\b)?(?![\w/:-])")
_NAME = re.compile(
    r"\S+ \(PID \d+\)|\b0x[0-9a-f]+|(?<= for )I/O of [\w, -]+(?=, | \(mounted on )"
    r"|\(mounted on [^)]*\)"
    r"|\b\d+(?:\.\d+){3}(?::\d+|, port \d+)?|\bhost \d+"
)
_SYSCTL = re.compile(r"\bsysctl (?:-w )?([\w./-]+)=")
_PATH = re.compile(r"/(?:proc/sys|sys/module|sys/kernel/slab|sys/fs/cgroup)/[\w./*-]+")


def dumped() -> Iterator[tuple[str, str]]:
    """Scenarios that are dumped by default, on each of their kernels."""
    for name in scenarios():
        for kernel in kernels_of(name):
            case = scenario(name, kernel)
            # On other machines, stacks are not read, and what is found of waits leads nowhere.
            if not case.live and not case.on_request and like(kernel) == kernel:
                yield name, kernel


class Case(NamedTuple):
    """A dump, and all that is reported of it."""

    dump: Dump
    kernel: Kernel
    report: Report

    findings: list[Finding]
    top: list[Finding]
    """Findings that are no part of another one."""
    ram_bytes: int


def opened(dump: Dump) -> Context:
    return Context.of(cases.opened(dump))


@pytest.fixture(scope="session", params=list(dumped()), ids="-".join)
def case(request: pytest.FixtureRequest) -> Case:
    name, kernel = request.param
    dump = build(kernel, name)
    context = opened(dump)
    report = examine(context)
    findings = [finding for _, finding in report.findings]
    top = [finding for finding in findings if not finding.part_of]
    machine = report.head.machine
    assert machine is not None
    assert machine.ram_bytes
    return Case(dump, context.kernel, report, findings, top, machine.ram_bytes)


def test_no_analysis_fails(case: Case) -> None:
    assert case.report.errors == {}


def test_an_id_is_unique_and_a_part_belongs_to_the_top_level(case: Case) -> None:
    ids = [finding.id for finding in case.findings]
    assert len(ids) == len(set(ids))
    top = {finding.id for finding in case.top}
    assert {finding.part_of for finding in case.findings} - {""} <= top


def test_every_kind_is_explained(case: Case) -> None:
    for owner, finding in case.report.findings:
        if owner in analyses():
            # Beside the analysis, or beside the finder of waits that made it.
            assert finding.kind in explain.kinds()


def test_the_numbers_of_a_title_are_data(case: Case) -> None:
    for finding in case.findings:
        values = finding.figures.values()
        # Names, and addresses of what has none.
        title = _NAME.sub("", finding.title)
        for text in [finding.id.partition(":")[2], *map(str, (each.value for each in values))]:
            if not _NUMBER.fullmatch(text):
                title = title.replace(text, "") if text else title
        sizes = [*finding.memory.values(), *(each.returns or 0 for each in finding.remedies)]
        shown = [human_bytes(size) for size in (*sizes, finding.holds or 0, case.ram_bytes)]
        shown.append(human_ratio((finding.holds or 0) / case.ram_bytes))
        shown += [human(each.value, unit) for each in values for unit in (each.unit, Unit.COUNT)]
        known = {number for text in shown for number in _NUMBER.findall(text)}
        assert set(_NUMBER.findall(title)) <= known, finding.id


def test_the_tasks_of_findings_are_in_the_picture(case: Case, tmp_path: Path) -> None:
    results = [section.result for section in case.report.sections if section.name == "waits"]
    assert [not_shown(result, tmp_path) for result in results if result] == [[]]


def test_no_deadlock_where_none_was_made(case: Case) -> None:
    if not case.dump.scenario.startswith("waits-"):
        assert not [each.id for each in case.findings if each.danger is Danger.DEADLOCK]


def test_no_remedy_returns_more_than_there_is(case: Case) -> None:
    for finding in case.findings:
        for remedy in finding.remedies:
            if remedy.returns is not None:
                assert 0 < remedy.returns <= (finding.holds or 0), (finding.id, remedy.effect)


def test_no_byte_is_in_two_findings_of_the_top_level(case: Case) -> None:
    held = Counter[str]()
    for finding in case.top:
        held.update(finding.memory)
    frame = case.report.results["slab"].tables["caches"].frame
    caches = dict(zip(frame["cache"], frame["bytes"], strict=True))
    for place, size in held.items():
        room, _, cache = place.partition(":")
        assert 0 < size <= (caches[cache] if room == "slab" else case.ram_bytes), place
    assert held.total() <= case.ram_bytes


def test_this_kernel_has_what_a_remedy_writes_to(case: Case) -> None:
    for finding in case.findings:
        for remedy in finding.remedies:
            variables = _SYSCTL.findall(remedy.command)
            written = [f"/proc/sys/{name.replace('.', '/')}" for name in variables]
            for path in {*remedy.knobs, *written, *_PATH.findall(remedy.command)}:
                assert has_knob(case.kernel, path) is not False, (finding.id, path)


def test_a_patch_has_a_status_and_fixes_only_if_merged(case: Case) -> None:
    patches = load().patches
    for finding in case.findings:
        if finding.patch:
            assert finding.patch_status
            assert finding.patch_is_fix == patches[finding.patch].is_upstream


@pytest.mark.parametrize("name", ["idle", "one"])
def test_a_machine_without_a_problem(kernel: str, name: str) -> None:
    report = examine(opened(build(kernel, name)))
    assert report.errors == {}
    assert report.findings == []
    for result in report.results.values():
        assert result.gaps == []
        assert [check for check in result.checks if check.status is CheckStatus.DIFFER] == []


@pytest.mark.newest
def test_knobs_are_those_that_the_guest_lists(kernel: str) -> None:
    dump = build(kernel, "idle")
    opened_kernel = opened(dump).kernel
    listed = {part: dump.truth[f"knobs.{part}"].split() for part in ("sysctl", "module", "slab")}
    per_namespace = "/proc/sys/net/", "/proc/sys/fs/mqueue/", "/proc/sys/user/"
    ours = set(knobs(opened_kernel))
    assert len(ours) > 200
    assert ours <= set(listed["sysctl"])
    for path in set(listed["sysctl"]) - ours:
        # The kernel keeps some that are not below those directories per namespace, too.
        assert has_knob(opened_kernel, path) is None
        assert path.startswith((*per_namespace, "/proc/sys/kernel/"))
    for path in (*listed["module"], *listed["slab"]):
        assert has_knob(opened_kernel, path) is True
        assert has_knob(opened_kernel, f"{path}-not") is False
    files = {Path(path).name for path in dump.truth["knobs.cgroup"].split()}
    memory = {name for name in files if name.startswith("memory.")} - {"memory.pressure"}
    assert len(memory) > 5
    for name in {*memory, "memory.reclaim", "memory.limit_in_bytes", "memory.peak"}:
        assert has_knob(opened_kernel, f"/sys/fs/cgroup/**/{name}") is (name in memory)


@pytest.mark.newest
def test_an_analysis_finds_alone_what_it_finds_in_a_report(kernel: str) -> None:
    dump = build(kernel, "mixed")
    together = examine(opened(dump)).results
    for name, analysis in analyses().items():
        alone = opened(dump).run(analysis)
        assert alone.summary == together[name].summary
        for table, content in alone.tables.items():
            assert_frame_equal(content.frame, together[name].tables[table].frame)


def test_shrink_returns_what_the_finding_says(kernel: str) -> None:
    dump = build(kernel, "slab-shrink")
    report = examine(opened(dump))
    cache, command = "shmem_inode_cache", "echo 1 > /sys/kernel/slab/shmem_inode_cache/shrink"
    assert slab_bytes(dump.truth["slabinfo.4"])[cache] > 12 << 20
    returned = returned_by(dump.truth, "shrink", "slabinfo")[cache]
    (promised,) = (
        remedy.returns
        for _, finding in report.findings
        for remedy in finding.remedies
        if command in remedy.command
    )
    assert promised == pytest.approx(returned, rel=0.1)


def test_findings_lead_on(case: Case) -> None:
    assert list(dead_ends(case.report)) == []
