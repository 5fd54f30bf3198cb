# SPDX-License-Identifier: LGPL-2.1-or-later
"""The sample of another architecture than the others."""

from __future__ import annotations

from kcensus.arch import architecture_of
from tests.sample.conftest import open_sample

NAME = "sample-arm64"


def test_it_is_of_arm64_and_all_analyses_read_it() -> None:
    sample = open_sample(NAME)
    arch = architecture_of(sample.target.prog.platform)
    assert arch is not None
    assert arch.name == "aarch64"
    assert all(section.result for section in sample.report.sections)
    assert sample.target.kernel == sample.truth["release"]


def test_dentries_are_those_that_the_guest_counted() -> None:
    sample = open_sample(NAME)
    total, unused, *_, negative, _ = map(int, sample.truth["dentry-state"].split())
    result = sample.run("dentries")
    figures = (*map(result.amount, ("dentries", "on_lru", "negative_unused")),)
    assert figures == (total, unused, negative)


def test_it_has_the_deadlock_of_four_tasks() -> None:
    result = open_sample(NAME).run("waits")
    assert result.amount("deadlocks") == 1
    (finding,) = (each for each in result.findings if each.id.startswith("waits-deadlock:"))
    assert len(finding.tasks) == 4
