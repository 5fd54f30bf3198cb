# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus patches``: prices, findings, stories; on *synthetic* programs, with made-up figures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import pytest

from kcensus import cli
from kcensus.analyses import AnalysisError
from kcensus.catalogue import Catalogue, State
from kcensus.catalogue.model import FindingRule, Metric
from kcensus.catalogue.price import Unmeasured, analyses_wanted, findings, measure, prices
from kcensus.catalogue.result import patches_result
from kcensus.results import Answer, Bound, Result, Severity, Unit
from kcensus.results.tables import ALWAYS
from kcensus.sources import Target
from tests.catalogue import CATALOGUE
from tests.running import analysis_of
from tests.unit import distributions as known
from tests.unit.patches.test_catalogue import GOOD, RULE, patch_file
from tests.unit.patches.test_evidence import on
from tests.unit.synthetic import figures

pytestmark = pytest.mark.ends

MIB = 1 << 20


def result(analysis: str, **values: Any) -> Result:
    return Result(analysis, "made up", "0.0", summary=figures(**values))


LRU_MIB = {"empty": 600, "structural": 700, "projected_xarray": 50, "projected_ondemand": 60}
LRU_MIB |= {"projected_patch7": 500, "projected_arrays": 800}
SLABS = {"old_controller_extra_bytes": 30 * MIB, "slab_bytes": 90 * MIB}
RESULTS = {
    "list-lru": result("list-lru", **{f"{key}_bytes": n * MIB for key, n in LRU_MIB.items()}),
    "slab": result("slab", **SLABS, slabs=1, name="x", share=math.nan),
    "kcopyd": result("kcopyd", job_bytes=5 * MIB, projected_job_bytes=MIB),
}


def made_on_rhel(results: dict[str, Result], **more: Any) -> Result:
    found = on(known.RHEL_9_0)
    return patches_result(CATALOGUE, found, results, target="x", kernel="5.14", **more)


def test_a_metric_is_a_figure_or_a_difference() -> None:
    assert measure(Metric("slab", "slab_bytes", ""), RESULTS) == (90 * MIB, Unit.BYTES)
    metric = Metric("list-lru", "projected_arrays_bytes", "", "projected_xarray_bytes")
    assert measure(metric, RESULTS) == (750 * MIB, Unit.BYTES)
    assert str(metric) == "list-lru.projected_arrays_bytes - list-lru.projected_xarray_bytes"


@pytest.mark.parametrize(
    ("metric", "why"),
    [
        (Metric("dentries", "x", ""), "dentries has no result"),
        (Metric("slab", "gone", ""), "slab does not report gone"),
        (Metric("slab", "name", ""), "slab.name is not a number"),
        (Metric("slab", "share", ""), "slab.share is not finite"),
        (Metric("slab", "slab_bytes", "", "gone"), "slab does not report gone"),
        (Metric("slab", "slab_bytes", "", "slabs"), "subtracts count from bytes"),
    ],
)
def test_what_is_not_measured_is_not_guessed(metric: Metric, why: str) -> None:
    with pytest.raises(Unmeasured, match=why):
        measure(metric, RESULTS)


def test_absence_costs_and_presence_saves() -> None:
    older = {price.detected.patch.id: price for price in prices(on(known.RHEL_9_0), RESULTS)}
    assert (older["list-lru-memory"].is_cost, older["list-lru-memory"].value) == (True, 750 * MIB)
    assert older["list-lru-per-memcg-arrays"].value == 300 * MIB
    assert older["list-lru-on-demand"].value == 740 * MIB
    assert older["slab-objcg-controller"].value == 30 * MIB
    assert not older["slab-objcg-controller"].is_cost
    newer = {price.detected.patch.id: price for price in prices(on(known.RHEL_9_2), RESULTS)}
    assert not set(newer) & {"list-lru-xarray", "dm-snapshot-cow-semaphore"}
    assert (newer["list-lru-memory"].is_cost, newer["list-lru-memory"].value) == (False, 750 * MIB)
    # A limit costs what is beyond it.
    mainline = {one.detected.patch.id: one for one in prices(on(known.MAINLINE_4_19), RESULTS)}
    assert mainline["dm-snapshot-cow-semaphore"].value == 4 * MIB
    # What is undetermined has no price.
    structs = known.RHEL_9_0.without_members(mem_cgroup=("kmemcg_id",))
    found = on(replace(known.RHEL_9_0, structs=structs))
    assert found["list-lru-memory"].state is State.UNDETERMINED
    assert "list-lru-memory" not in {one.detected.patch.id for one in prices(found, RESULTS)}


def test_analyses_that_are_asked() -> None:
    # This kernel has no limit of jobs, no list_lru by cgroup, and the old controller.
    older = analyses_wanted(CATALOGUE, on(known.RHEL_7_4))
    assert older == ("iosched", "kcopyd", "list-lru", "slab")
    # Nothing is left to price but what is there, the limit that no kernel has, and schedulers.
    newer = analyses_wanted(CATALOGUE, on(known.RHEL_9_2))
    assert newer == ("dentries", "iosched", "list-lru", "slab")


EMPTY = FindingRule(
    "warning",
    "Empty per-memcg lists of list_lru use {value}",
    Metric("list-lru", "empty_bytes", what="empty lists"),
    patch="list-lru-memory",
    states=(State.ABSENT,),
    at_least=1,
    remedy="Boot a kernel with the series (5.18).",
)


def test_rules_make_findings() -> None:
    one, two = findings(Catalogue(CATALOGUE.patches, (EMPTY, EMPTY)), on(known.RHEL_9_0), RESULTS)
    assert (one.id, two.id) == ("rule:list-lru-memory", "rule:list-lru-memory:2")
    assert one.patch == "list-lru-memory"
    assert one.severity is Severity.WARNING
    assert one.figures["empty_bytes"].value == 600 * MIB
    assert one.holds is None  # where these bytes are, a rule does not know
    assert one.title == "Empty per-memcg lists of list_lru use 600.0 MiB"
    assert "list-lru.empty_bytes" in one.evidence
    assert "absent (all 3 stages are absent)" in one.evidence
    assert "5.18" in one.remedies[0].effect


@pytest.mark.parametrize(
    ("at_least", "at_most", "count"),
    [(90, None, 1), (91, None, 0), (None, 90, 1), (None, 89, 0), (80, 100, 1), (91, 100, 0)],
)
def test_bounds_of_rules(at_least: float | None, at_most: float | None, count: int) -> None:
    rule = FindingRule(
        "notice",
        "{value} is it",
        Metric("slab", "slab_bytes", what="all of it"),
        at_least=at_least and at_least * MIB,
        at_most=at_most and at_most * MIB,
    )
    catalogue = Catalogue(CATALOGUE.patches, (rule,))
    found = findings(catalogue, on(known.RHEL_9_2), RESULTS)
    assert [one.title for one in found] == ["90.0 MiB is it"] * count
    assert all(one.patch == "" for one in found)


def test_result_puts_what_costs_most_first() -> None:
    made = made_on_rhel(RESULTS)
    frame = made.tables["patches"].frame
    pd.testing.assert_frame_equal(frame, made_on_rhel(RESULTS).tables["patches"].frame)
    assert len(frame) == len(CATALOGUE.patches)
    assert frame["patch"].iloc[0] == "list-lru-memory"
    # Its stages are below every patch of its own: the series contains their costs.
    stages = frame[frame["series"] == "list-lru-memory"]
    assert stages["patch"].tolist()[:2] == ["list-lru-xarray", "list-lru-on-demand"]
    assert stages["cost_bytes"].tolist()[:2] == [750 * MIB, 740 * MIB]
    own = frame[(frame["state"] == "absent") & (frame["kind"] == "fix") & frame["series"].isna()]
    assert own.index[own["status"] == "merged"].max() < stages.index.min()
    priced = frame[frame["saving_bytes"].notna()]
    assert priced["patch"].tolist() == ["slab-objcg-controller"]
    counts = {state: made.summary[state.name.lower()].value for state in State}
    assert sum(counts.values()) == len(frame)  # type: ignore[arg-type]
    assert counts[State.PRESENT] == (frame["state"] == "present").sum()
    prices_table = made.tables["prices"].frame.set_index("patch")
    formula = "list-lru.projected_arrays_bytes - list-lru.projected_xarray_bytes"
    assert prices_table.loc["list-lru-xarray", "formula"] == formula
    absent = frame[frame["state"] == "absent"]
    fixes = absent["status"].isin(["merged", "reworked"]) & (absent["kind"] == "fix")
    markers = absent["kind"] == "marker"
    assert made.summary["absent_fixes"].value == fixes.sum() > 0
    assert made.summary["absent_markers"].value == markers.sum() > 0
    assert made.summary["absent_unmerged"].value == (~fixes & ~markers).sum() > 0
    # Absent fixes come first, then layout markers, then what was never merged.
    ordered = pd.concat([absent[fixes], absent[markers], absent[~fixes & ~markers]])
    assert absent["patch"].tolist() == ordered["patch"].tolist()


def with_bounds(arrays: Bound, xarray: Bound, xarray_mib: int) -> dict[str, Result]:
    """Return a result of list-lru with 1 MiB of arrays."""
    made = result("list-lru", projected_arrays_bytes=MIB, projected_xarray_bytes=xarray_mib * MIB)
    for key, bound in zip(made.summary, (arrays, xarray), strict=True):
        made.summary[key] = replace(made.summary[key], bound=bound)
    return {"list-lru": made}


@pytest.mark.parametrize("is_cost", [True, False])
def test_a_patch_that_takes_more_than_it_returns_has_a_sign(is_cost: bool) -> None:
    found = on(known.RHEL_9_0 if is_cost else known.RHEL_9_2)
    worse = with_bounds(Bound.EXACT, Bound.AT_LEAST, 5)
    tables = patches_result(CATALOGUE, found, worse, target="x", kernel="5.14").tables
    patches, priced = (tables[name].frame.set_index("patch") for name in ("patches", "prices"))
    row = patches.loc["list-lru-memory"]
    assert row["cost_bytes" if is_cost else "saving_bytes"] == -4 * MIB
    kind, amount, size = priced.loc["list-lru-memory", ["kind", "amount", "bytes"]]
    assert kind == ("absence saves" if is_cost else "presence costs")
    assert (amount, size) == ("at least 4.0 MiB", 4 * MIB)
    for column in ("patch", "kind", "amount"):
        assert tables["prices"].columns[column].show is ALWAYS


@pytest.mark.parametrize(
    ("arrays", "xarray", "expected"),
    [
        (Bound.EXACT, Bound.EXACT, Bound.EXACT),
        (Bound.EXACT, Bound.AT_LEAST, Bound.AT_MOST),
        (Bound.AT_LEAST, Bound.EXACT, Bound.AT_LEAST),
        (Bound.AT_MOST, Bound.AT_LEAST, Bound.AT_MOST),
        (Bound.AT_LEAST, Bound.AT_LEAST, Bound.ABOUT),
        (Bound.EXACT, Bound.ABOUT, Bound.ABOUT),
    ],
)
def test_a_price_is_as_exact_as_its_figures(arrays: Bound, xarray: Bound, expected: Bound) -> None:
    (price,) = (
        price
        for price in prices(on(known.RHEL_9_0), with_bounds(arrays, xarray, 0))
        if price.detected.patch.id == "list-lru-memory"
    )
    assert (price.bound, price.amount) == (expected, f"{expected.value} 1.0 MiB".lstrip())


def test_result_says_what_was_not_measured_and_why() -> None:
    lacking, why = "debug info of module dm_mod is missing", "this kernel uses SLAB"
    made = made_on_rhel({}, lacking=[lacking], failed={"slab": why})
    assert made.tables["prices"].frame["bytes"].isna().all()
    reasons = {gap.reason: gap.count for gap in made.gaps}
    assert reasons[f"slab has no result: {why}"] == reasons[lacking] == 1
    assert reasons["list-lru has no result"] == 4


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    def open_target(spec: str, symbols: object = (), **_: object) -> Target:
        kernel = {"rhel9.0": known.RHEL_9_0, "rhel9.2": known.RHEL_9_2}[spec]
        prog, release = kernel.program(), kernel.release
        return Target(prog, spec, "vmcore", "synthetic", live=False, kernel=release)

    absent = mock.Mock(side_effect=AnalysisError("no list_lru here"))
    broken = mock.Mock(side_effect=ZeroDivisionError("a \x1b bug"))
    named = {
        "list-lru": analysis_of("list-lru", absent),
        "dentries": analysis_of("dentries", broken),
        "slab": analysis_of("slab", lambda kernel: Answer(summary=RESULTS["slab"].summary)),
    }
    with (
        mock.patch("kcensus.sources.open_target", open_target),
        mock.patch("kcensus.analyses._discover", return_value=named),
    ):

        def run(*args: str) -> tuple[int, str, str]:
            status = cli.main(["patches", *args])
            return (status, *capsys.readouterr())

        yield run


def test_without_a_target_the_catalogue_is_listed(run: Any) -> None:
    status, out, err = run("--json")
    assert (status, err) == (0, "")
    rows = json.loads(out)["tables"]["patches"]
    assert [row["patch"] for row in rows] == list(CATALOGUE.patches)
    published = json.loads(out)["tables"]["figures"]
    assert len(published) == sum(len(patch.figures) for patch in CATALOGUE.patches.values())


def test_a_target(run: Any) -> None:
    status, out, err = run("rhel9.0", "--json")
    assert (status, err) == (0, "")
    document = json.loads(out)
    rows = {row["patch"]: row for row in document["tables"]["patches"]}
    assert rows["slab-objcg-controller"]["saving_bytes"] == 30 * MIB
    assert rows["list-lru-memory"]["state"] == "absent"
    assert rows["list-lru-memory"]["cost_bytes"] is None
    assert "9.1: since kernel-5.14.0-162.6.1.el9_1" in rows["list-lru-xarray"]["packages"]
    assert rows["negative-dentry-bloat"]["packages"] is None
    reasons = [gap["reason"] for gap in document["gaps"]]
    assert "list-lru has no result: no list_lru here" in reasons
    bug = "dentries has no result: failed with ZeroDivisionError: a \\x1b bug"
    assert any(reason.startswith(bug) for reason in reasons)


def test_prices_can_be_left_out(run: Any) -> None:
    status, out, _ = run("rhel9.2", "--no-prices", "--json")
    document = json.loads(out)
    assert status == 0
    assert document["gaps"] == []
    assert "prices" not in document["tables"]
    # On screen, the patches are not taken for a table of zeros.
    _, out, _ = run("rhel9.2", "--no-prices")
    assert "list-lru-xarray" in out
    assert "Empty or zero" not in out
    # All rows are shown.
    out = run("rhel9.2")[1]
    assert all(f"  {patch} " in out for patch in CATALOGUE.patches)
    assert "more rows" in run("rhel9.2", "--top", "3")[1]


def test_text_fits_a_terminal_of_100_columns(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for args in (("rhel9.0",), (), ("show", "slab-objcg-controller")):
        assert max(map(len, run(*args)[1].splitlines())) <= 100


@pytest.mark.parametrize("patch", CATALOGUE.patches)
def test_every_story_tells_all(run: Any, patch: str) -> None:
    status, out, err = run("show", patch)
    assert (status, err) == (0, "")
    words = " ".join(out.split())
    about = CATALOGUE.patches[patch]
    for text in (
        about.title,
        *about.authors,
        *about.summary.split("\n\n"),
        *about.symptom.split("\n\n"),
        *(posting.subject for posting in about.postings),
        *(posting.message_id for posting in about.postings),
        *(commit.hash for commit in about.commits),
        *(backport.kernel for backport in about.backports),
        *(stage.what for stage in about.stages),
        *(figure.what for figure in about.figures),
    ):
        assert text in words


def test_story_as_json(run: Any) -> None:
    status, out, _ = run("show", "cfq-async-starvation", "--json")
    story = json.loads(out)
    assert status == 0
    assert story["status"] == "merged"
    assert "file" not in story
    waited = next(figure for figure in story["figures"] if figure["name"] == "waited")
    assert waited["value"] == 15.626265317
    packages = {each["distribution"]: each for each in story["packages"]}
    assert packages["Ubuntu 16.04"]["package"] == "linux 4.4.0-48.69"
    assert packages["Ubuntu 16.04"]["source"]
    assert packages["RHEL 7"]["absent_up_to"] == "kernel-3.10.0-1160.el7"
    assert packages["RHEL 8"]["carried"] == "since its first release"
    assert packages["UEK 4"]["carried"] == "not known"
    assert story["detection"]["rules"][0]["has"] == [
        {"kind": "member", "name": "struct request_queue.mq_ops"}
    ]


def test_story_names_packages_and_with_all_their_sources(run: Any) -> None:
    known = {each.distribution: each for each in CATALOGUE.patches["bfq-wakers"].packages}["RHEL 8"]
    short, long = (
        " ".join(run("show", "bfq-wakers", *args)[1].split()) for args in ((), ("--all",))
    )
    for words in (f"RHEL 8.2: since {known.package}", "since its first release: RHEL 9, RHEL 10"):
        assert words in short
        assert words in long
    assert known.source not in short
    assert known.source in long
    # What mainline never merged is in no distribution's base.
    assert "Packages" not in run("show", "negative-dentry-bloat")[1]


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("show",), "show needs the id of one patch"),
        (("show", "a", "b"), "show needs the id of one patch"),
        (("show", "cfq-remova"), "unknown patch 'cfq-remova' (did you mean 'cfq-removal'?)"),
        (("show", "list-lru"), "unknown patch 'list-lru' (did you mean 'list-lru-memory'?)"),
        (("show", "\x1b"), "unknown patch '\\x1b' (`kcensus patches` lists all)"),
        (("show", "cfq-removal", "--csv", "out"), "show writes text or --json"),
        (("a", "b"), "2 arguments given: pass one TARGET"),
        (("--catalogue", "/nowhere"), "/nowhere: is not a directory of patch files"),
    ],
)
def test_wrong_usage(
    run: Any, args: tuple[str, ...], complaint: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = run(*args)
    assert (status, out) == (2, "")
    assert complaint in err


def test_a_catalogue_of_the_user(run: Any, tmp_path: Path) -> None:
    patch_file(tmp_path)
    patch_file(tmp_path, RULE, "rules")
    status, out, _ = run("rhel9.2", "--catalogue", str(tmp_path), "--json", "--fail-on", "warning")
    document = json.loads(out)
    assert status == 1
    assert document["findings"][0]["title"] == "90.0 MiB are wasted"
    assert "ours" in {row["patch"] for row in document["tables"]["patches"]}
    patch_file(tmp_path, GOOD.replace("title", "titel"))
    status, out, err = run("--catalogue", str(tmp_path))
    assert (status, out) == (2, "")
    assert f"kcensus: {tmp_path}/ours.toml: titel: unknown key" in err
