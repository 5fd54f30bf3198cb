# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compare every published figure of the catalogue with a model, one test each.

A figure without a model is listed below with the reason; it must agree with related figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from kcensus.analyses.dentries.walks import IN_A_ROW
from kcensus.analyses.kcopyd import census as kcopyd_census
from kcensus.analyses.list_lru import model as lru
from kcensus.catalogue import Patch, PublishedFigure
from kcensus.catalogue.model import UNITS, Bound, Moment
from kcensus.kernel.mm.footprint import Allocator
from tests.catalogue import PATCHES

FIGURES = {
    (patch.id, figure.name): figure for patch in PATCHES.values() for figure in patch.figures
}


def figure(patch: str, name: str) -> PublishedFigure:
    return FIGURES[patch, name]


@dataclass(frozen=True)
class Model:
    value: Callable[[PublishedFigure], float]
    """In base units: bytes, seconds, pages, a ratio."""
    within: float = 0.0
    """Accepted relative difference, in addition to the rounding of the published figure."""
    because: str = ""
    """Why that much is accepted."""


JOB = 368
"""sizeof(struct kcopyd_job) on 5.10, bytes; 9 of them (a master and 8 parts) are one object."""
JOBS_PER_SLAB = 9
SLAB = 8 * 4096
DM = "dm-snapshot-cow-semaphore"


def _jobs_in_flight(published: PublishedFigure) -> float:
    assert published.given["threshold"] == kcopyd_census.DEFAULT_THRESHOLD
    return published.given["snapshots"] * kcopyd_census.DEFAULT_THRESHOLD * 9 * JOB


def _a_job_for_each_exception(_: PublishedFigure) -> float:
    exceptions = figure(DM, "pending-exceptions-used")
    return exceptions.base / exceptions.given["object_bytes"] / JOBS_PER_SLAB * SLAB


def _one_list_lru(published: PublishedFigure) -> float:
    given = published.given
    lists = given["list_lrus_per_super_block"] * given["super_blocks"] if len(given) > 3 else 1
    nodes, ids, size = (int(given[name]) for name in ("nodes", "cache_ids", "object_bytes"))
    return lru.formula(nodes, ids, int(lists), size)


def _machine(published: PublishedFigure) -> lru.Population:
    given = published.given
    ids = lru.nr_cache_ids(int(given["memcgs"]))
    return lru.Population(int(given["nodes"]), ids, lru.LRUS_PER_MOUNT * int(given["mounts"]))


def _stage(stage: lru.Stage) -> Callable[[PublishedFigure], float]:
    """Memory in use at a stage: that of the stage before, minus the saving of the model."""
    stages = list(lru.Stage)
    before = {
        lru.Stage.PER_MEMCG: figure("list-lru-memory", "mounts-before"),
        lru.Stage.ON_DEMAND: figure("list-lru-per-memcg-arrays", "mounts-after"),
        lru.Stage.XARRAY: figure("list-lru-on-demand", "mounts-after"),
    }[stage]

    def value(published: PublishedFigure) -> float:
        of, allocator = _machine(published), Allocator()
        older, newer = stages[stages.index(stage) - 1], stage
        saved = lru.cost(older, of, allocator).total - lru.cost(newer, of, allocator).total
        return before.base - saved

    return value


def _all_stages(published: PublishedFigure) -> float:
    """Memory in use before: that after, plus the saving of the model."""
    of, allocator = _machine(published), Allocator()
    first, last = (
        lru.cost(stage, of, allocator).total for stage in (lru.Stage.ARRAYS, lru.Stage.XARRAY)
    )
    return figure("list-lru-memory", "mounts-after").base + first - last


def _dentries(count: str) -> Callable[[PublishedFigure], float]:
    patch = "negative-dentry-bloat"
    return lambda published: figure(patch, count).value * published.given["dentry_bytes"]


def _count(size: str) -> Callable[[PublishedFigure], float]:
    published = figure("negative-dentry-bloat", size)
    return lambda _: published.base / published.given["dentry_bytes"]


SLABS = "slab-objcg-controller"


def _slab_models(run: str) -> dict[tuple[str, str], Model]:
    """Return a model of each figure of a run, of the other two."""
    parts = ("before", "after", "change")
    before, after, change = (figure(SLABS, f"{run}-{part}").base for part in parts)
    return {
        (SLABS, f"{run}-change"): Model(lambda _: 1 - after / before),
        (SLABS, f"{run}-after"): Model(lambda _: before * (1 - change), 0.02, ONE_PERCENT),
        (SLABS, f"{run}-before"): Model(lambda _: after / (1 - change), 0.02, ONE_PERCENT),
    }


def _typical() -> tuple[float, float]:
    """Utilization with the old controller, from and to."""
    published = figure(SLABS, "utilization-typical")
    assert published.to is not None
    return published.base, published.base * published.to / published.value


def _given_back(old: float) -> float:
    """Share of slab pages freed when the same objects are packed as without accounting."""
    return 1 - old / figure(SLABS, "utilization-no-accounting").base


SLAB_RUNS = (
    *("sysbench-1", "sysbench-2"),
    *("kernel-build-1", "kernel-build-2", "kernel-build-3"),
    "boot",
)
ONE_PERCENT = "the reduction was published in whole percents, rounded or truncated"

CFQ = "cfq-async-starvation"


def _histogram() -> dict[int, float]:
    """Waits by the lower end of their bucket, microseconds."""
    given = figure(CFQ, "waits").given
    return {int(name.removeprefix("us_")): count for name, count in given.items()}


MODELS: dict[tuple[str, str], Model] = {
    (DM, "jobs-after"): Model(_jobs_in_flight),
    (DM, "jobs-before"): Model(
        _a_job_for_each_exception, 0.05, "the kernel of the report has lockdep, with larger locks"
    ),
    ("dm-snapshot-cow-in-progress", "threshold"): Model(lambda _: kcopyd_census.DEFAULT_THRESHOLD),
    ("negative-dentry-hash-limit", "in-a-row"): Model(lambda _: IN_A_ROW),
    ("list-lru-memory", "one-list-lru"): Model(_one_list_lru),
    ("list-lru-memory", "all-list-lrus"): Model(_one_list_lru),
    ("list-lru-memory", "kmalloc-32"): Model(
        lambda _: _one_list_lru(figure("list-lru-memory", "all-list-lrus")),
        *(0.1, "kmalloc-32 has other users, but lists are nearly all of it"),
    ),
    ("list-lru-memory", "mounts-before"): Model(
        _all_stages, 0.005, "free also counts other memory"
    ),
    **{
        (patch, "mounts-after"): Model(_stage(stage), within, "free also counts other memory")
        for patch, stage, within in (
            ("list-lru-memory", lru.Stage.XARRAY, 0.01),
            ("list-lru-per-memcg-arrays", lru.Stage.PER_MEMCG, 0.001),
            ("list-lru-on-demand", lru.Stage.ON_DEMAND, 0.01),
            ("list-lru-xarray", lru.Stage.XARRAY, 0.01),
        )
    },
    ("negative-dentry-bloat", "bytes-256g"): Model(_dentries("count-256g")),
    ("negative-dentry-bloat", "bytes-3t"): Model(_dentries("count-3t")),
    ("negative-dentry-bloat", "count-256g"): Model(_count("bytes-256g"), 0.005, "10.6 is rounded"),
    ("negative-dentry-bloat", "count-3t"): Model(_count("bytes-3t"), 0.005, "38.8 is rounded"),
    **{key: model for run in SLAB_RUNS for key, model in _slab_models(run).items()},
    (SLABS, "given-back"): Model(lambda _: _given_back(_typical()[1])),
    (SLABS, "less-slab"): Model(lambda _: _given_back(sum(_typical()) / 2)),
    (CFQ, "inserted"): Model(
        lambda _: figure(CFQ, "waited").given["dispatched"] - figure(CFQ, "waited").value
    ),
    (CFQ, "waited"): Model(lambda one: one.given["dispatched"] - one.given["inserted"]),
    (CFQ, "waits"): Model(lambda _: sum(_histogram().values())),
    (CFQ, "two-microseconds"): Model(lambda _: max(_histogram().values())),
    (CFQ, "worst-wait"): Model(lambda _: max(_histogram()) * 1e-6),
}

MEASURED = "measured on the authors' machines; there is no model of the speed of a machine"
DEFINITION = "not measured but chosen; other figures and models use it"
LOAD = "the load of the authors' machines"
BOUNDED = "only bounded by the size of memory"
WRITE_TIMES = ("stall", "write-time-before", "write-time-after")
UNMODELLED: dict[tuple[str, str], str] = {
    **{(DM, name): MEASURED for name in WRITE_TIMES},
    **{
        ("dm-kcopyd-callback-list", name): MEASURED
        for name in (*WRITE_TIMES, "run-time-before", "run-time-after")
    },
    (CFQ, "open"): MEASURED,
    ("mq-deadline-prio-aging", "low-priority"): MEASURED,
    ("mq-deadline-prio-aging", "low-priority-aged"): MEASURED,
    (DM, "jobs-grow-to"): BOUNDED,
    ("negative-dentry-bloat", "unlimited-256g"): BOUNDED,
    ("negative-dentry-bloat", "unlimited-3t"): BOUNDED,
    (DM, "unreclaimable"): "all unreclaimable slab memory, of which the named caches are a part",
    (DM, "bio-3"): "depends on the configuration that struct bio was built with",
    (DM, "pending-exceptions"): "includes free objects, whose number is unknown",
    (DM, "pending-exceptions-used"): LOAD,
    **{(SLABS, f"utilization-{name}"): LOAD for name in ("typical", "best", "no-accounting")},
    (SLABS, "deadlock-threads"): "a graph of waiting tasks, not a number",
    ("list-lru-memory", "cgroups-alive"): "the model gives how many have existed",
    ("negative-dentry-dir-limit", "children"): LOAD,
    ("negative-dentry-dir-limit", "negative-children"): LOAD,
    ("negative-dentry-dir-limit", "mark"): DEFINITION,
}


def test_every_figure_has_a_model_or_a_reason() -> None:
    assert set(MODELS) | set(UNMODELLED) == set(FIGURES)
    assert not set(MODELS) & set(UNMODELLED)


def last_digit(published: PublishedFigure) -> float:
    """Return one unit of the last published digit, in base units."""
    digits = repr(published.value).partition(".")[2]
    return float(10.0 ** -len(digits.rstrip("0")) * UNITS[published.unit][1])


@pytest.mark.parametrize(("patch", "name"), MODELS)
def test_model_gives_the_published_figure(patch: str, name: str) -> None:
    published, model = figure(patch, name), MODELS[patch, name]
    assert bool(model.within) == bool(model.because)
    ours, theirs = model.value(published), published.base
    if published.bound is Bound.AT_MOST:
        assert 0 < ours <= theirs
        return
    if published.to is not None:
        # The model must lie in the range.
        low, high = theirs, theirs * published.to / published.value
    else:
        # "about 25 percent" and "3 MB" are rounded or truncated; all others are exact.
        rounding = last_digit(published) if published.bound is Bound.ABOUT else 0.0
        low, high = theirs - rounding / 2, theirs + rounding
    slack = model.within * theirs + 1e-9 * abs(theirs)
    assert low - slack <= ours <= high + slack, f"{ours} is not {theirs}"


@pytest.mark.parametrize(("patch", "name"), UNMODELLED)
def test_figure_without_a_model_agrees_with_its_neighbours(patch: str, name: str) -> None:
    published = figure(patch, name)
    assert published.value > 0
    if published.moment is Moment.BEFORE:
        for other in _same_run(PATCHES[patch], published, Moment.AFTER):
            assert other.base < published.base
    if published.moment is Moment.AFTER:
        assert any(
            other.base > published.base
            for other in _same_run(PATCHES[patch], published, Moment.BEFORE)
        )


def _same_run(
    patch: Patch, published: PublishedFigure, moment: Moment
) -> Iterator[PublishedFigure]:
    for other in patch.figures:
        same = other.run == published.run and other.unit == published.unit
        if same and other.moment is moment and other is not published:
            yield other


def test_the_report_of_slabs_adds_up() -> None:
    pages = figure(DM, "unreclaimable")
    named = [figure(DM, name).base for name in ("jobs-before", "bio-3", "pending-exceptions")]
    assert sum(named) < pages.value * pages.given["page_bytes"]
    assert figure(DM, "pending-exceptions-used").base < figure(DM, "pending-exceptions").base


def test_cgroups_alive_do_not_explain_the_ids() -> None:
    ids = figure("list-lru-memory", "one-list-lru").given["cache_ids"]
    # The posting concludes that more than 12,286 must have existed.
    assert lru.memcgs_at_once(int(ids)) == 12287
    assert lru.memcgs_at_once(int(ids)) > figure("list-lru-memory", "cgroups-alive").value


def test_unlimited_negative_dentries_take_most_of_memory() -> None:
    for name in ("unlimited-256g", "unlimited-3t"):
        published = figure("negative-dentry-bloat", name)
        assert 0.6 < published.base / (published.given["ram_gb"] * 1e9) < 1


def test_units_are_what_their_own_arithmetic_says() -> None:
    # 4 x 24,574 x 32 is 3 MB of powers of two or ten; 5.6 GB only of powers of two.
    lists = figure("list-lru-memory", "all-list-lrus")
    assert (
        round(_one_list_lru(lists) / 2**30, 1)
        == lists.value
        != round(_one_list_lru(lists) / 1e9, 1)
    )
    # 55,259,084 x 192 is 10.6 GB only of powers of ten.
    dentries = figure("negative-dentry-bloat", "bytes-256g")
    ours = _dentries("count-256g")(dentries)
    assert round(ours / 1e9, 1) == dentries.value != round(ours / 2**30, 1)
