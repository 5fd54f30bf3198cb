# SPDX-License-Identifier: LGPL-2.1-or-later
"""Patches that types cannot tell and figures can, and costs that are times; figures invented."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcensus.catalogue import CatalogueError, Detected, Prober, State, detect
from kcensus.catalogue.price import analyses_wanted, evidence_of, prices, weigh
from kcensus.catalogue.result import patches_result
from kcensus.catalogue.schema import read_file
from kcensus.results import Figure, Result, Unit
from tests.catalogue import CATALOGUE
from tests.unit import distributions as known
from tests.unit.patches.test_catalogue import GOOD, patch_file

CFQ = "cfq-async-starvation"


def on(kernel: known.Distribution) -> dict[str, Detected]:
    return detect(CATALOGUE.patches, Prober(kernel.program()))


def iosched(**values: float | None) -> dict[str, Result]:
    summary = {
        key: Figure(value, Unit.COUNT if key == "trace_cfq_turns_lost" else Unit.SECONDS)
        for key, value in values.items()
    }
    return {"iosched": Result("iosched", "made up", "0.0", summary=summary)}


@pytest.mark.parametrize(
    ("figures", "state", "word"),
    [
        # A turn without a dispatch proves it; a starved queue in memory goes with the reason.
        ({"trace_cfq_turns_lost": 1}, State.ABSENT, "trace_cfq_turns_lost is 1"),
        ({"trace_cfq_turns_lost": 3, "async_starved_cfq": 40.9}, State.ABSENT, "turns_lost is 3"),
        ({"trace_cfq_turns_lost": None, "async_starved_cfq": 40.9}, State.UNDETERMINED, "40.9 s"),
        ({"trace_cfq_turns_lost": 0, "async_starved_cfq": 0.9}, State.UNDETERMINED, "changelog"),
        ({}, State.UNDETERMINED, "changelog"),
    ],
)
def test_figures_tell_what_types_cannot(
    figures: dict[str, float | None], state: State, word: str
) -> None:
    before = on(known.MAINLINE_4_19)[CFQ]
    assert before.state is State.UNDETERMINED
    after = weigh(before, iosched(**figures))
    assert after.state is state
    assert word in after.reason


def test_what_types_tell_needs_no_figure() -> None:
    found = on(known.RHEL_8_3)[CFQ]
    assert found.state is State.SUPERSEDED
    assert evidence_of(found) == ()
    assert weigh(found, iosched(trace_cfq_turns_lost=5)) == found
    # Only the analyses that can tell are asked.
    assert "iosched" in analyses_wanted(CATALOGUE, on(known.RHEL_7_4))
    # All of its schedulers is newer or not loaded.
    newer = {name: one for name, one in on(known.RHEL_9_2).items() if name.startswith("bfq")}
    assert analyses_wanted(CATALOGUE, newer) == ()


def test_the_table_has_the_state_that_figures_tell() -> None:
    made = patches_result(
        CATALOGUE, on(known.RHEL_7_4), iosched(trace_cfq_turns_lost=2), target="x", kernel="3.10"
    )
    rows = made.tables["patches"].frame.set_index("patch")
    assert rows.loc[CFQ, "state"] == "absent"


def test_delays_are_costs_in_seconds() -> None:
    found = on(known.MAINLINE_4_19_BFQ)
    times = iosched(
        starved_bfq=23.5, class_starved_mq_deadline=0.0, tag_wait_bfq=1.5, tag_wait_mq_deadline=2.5
    )
    priced = {price.detected.patch.id: price for price in prices(found, times)}
    assert (priced["bfq-wakers"].seconds, priced["bfq-wakers"].bytes) == (23.5, None)
    made = patches_result(CATALOGUE, found, times, target="x", kernel="4.19")
    rows = made.tables["patches"].frame.set_index("patch")
    delays = {
        "bfq-wakers": 23.5,
        "bfq-injection": 23.5,
        "bfq-cgroup-tags": 1.5,
        "mq-deadline-sync-tags": 2.5,
        "mq-deadline-prio-aging": 0.0,
    }
    assert {name: rows.loc[name, "cost_seconds"] for name in delays} == delays
    assert rows["cost_bytes"].isna()[[*delays]].all()
    order = [name for name in rows.index if name in delays]
    assert order == sorted(delays, key=lambda name: (-delays[name], name))
    seconds = made.tables["prices"].frame.set_index("patch")["seconds"]
    assert seconds["bfq-wakers"] == 23.5


SHOWN_BY = """
[detect.undetectable]
reason = "it is one condition"
evidence = "none"
[[detect.undetectable.shown-by]]
metric = { analysis = "iosched", key = "requests", what = "requests" }
at-least = 1
why = "it follows"
state = "absent"
"""


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"absent"', '"superseded"', "does not follow from a figure"),
        ("at-least = 1", "", "at-least: is missing"),
        ('why = "it follows"', "", "why: is missing"),
        ('state = "absent"', "states = 1", "unknown key"),
    ],
)
def test_wrong_evidence_is_refused(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert read_file(patch_file(tmp_path, GOOD + SHOWN_BY))
    with pytest.raises(CatalogueError, match=complaint):
        read_file(patch_file(tmp_path, GOOD + SHOWN_BY.replace(old, new)))
