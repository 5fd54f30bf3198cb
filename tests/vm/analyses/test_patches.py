# SPDX-License-Identifier: LGPL-2.1-or-later
"""Detection of patches on real kernels, compared with the known state of each kernel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kcensus.analyses import analyses
from kcensus.capsule import create
from kcensus.catalogue import Detected, Prober, State, detect, modules
from kcensus.catalogue.packages import Carried, carrier
from kcensus.sources import Target, open_target
from tests.catalogue import CATALOGUE
from tests.lab import build
from tests.vm.cases import command, opened
from tests.vm.iosched.cases import usually

# The state on 5.10, 6.1, 6.12 and 7.3: P(resent), A(bsent), S(uperseded), ?(undetermined).
STATES = {"P": State.PRESENT, "A": State.ABSENT, "S": State.SUPERSEDED, "?": State.UNDETERMINED}
KERNELS = ("5.10", "6.1", "6.12", "7.3")
TRUTH = {
    # Debian's kernels are stable kernels of their series: all of the mainline up to it, and
    # backports of fixes.
    "blk-mq-hctx-array": "AAAP",  # an array up to 5.17, an xarray to 6.18, an array since 6.19
    "blk-mq-hctx-table": "APPS",
    "cfq-async-starvation": "SSSS",  # 4.9; CFQ went in 5.0
    "cfq-removal": "PPPP",  # 5.0
    "mq-deadline-priorities": "AP??",  # 5.14; on the last two the module is not loaded
    # The modules of the schedulers: see SCHEDULERS.
    "bfq-async-tags": "????",
    "bfq-cgroup-tags": "????",
    "bfq-injection": "????",
    "bfq-wakers": "????",
    "bfq-write-overcharge": "????",
    "blk-mq-async-depth": "AAAP",  # 7.0
    "mq-deadline-head-fifo-time": "A???",  # 5.18, which only its successors show
    "mq-deadline-prio-aging": "AP??",  # 5.16
    "mq-deadline-sync-tags": "AP?S",  # 5.14, replaced in 7.0
    "mq-deadline-tag-reservation": "APSS",  # 6.11, went to stable 6.1; replaced in 6.17
    "sbitmap-shallow-depth": "AAPP",  # 6.17, is in Debian's 6.12
    "dentry-limit-sysctl": "AAAA",  # only posted
    "negative-dentry-bloat": "AAAA",  # only posted
    "negative-dentry-counter": "PPPP",  # 5.0
    "negative-dentry-dir-limit": "AAAA",  # only posted
    "negative-dentry-fs-klimit": "AAAA",  # late RHEL 8 alone
    "negative-dentry-hash-limit": "AAAA",  # only posted
    "negative-dentry-limit-2020": "AAAA",  # only posted
    "negative-dentry-sibling-tail": "AAAA",  # only posted
    "negative-dentry-sysctl-limit": "AAAA",  # RHEL 7 and UEK alone
    "negative-dentry-track-limit": "AAAA",  # only posted
    "negative-dentry-unlink-drop": "AAAA",  # reverted before any of these kernels
    "negative-dentry-unlink-sysctl": "AAAP",  # 6.13
    "dm-kcopyd-callback-list": "PPPP",  # 5.0
    "dm-name-tree": "APPP",  # 5.13
    "dm-snapshot-cow-in-progress": "PPPP",  # 5.4
    "dm-snapshot-cow-semaphore": "SSSS",  # 5.0, reworked in 5.4
    "fsnotify-lazy-parent-watched": "PPPP",  # went to the stable series 5.10 and 6.1, too
    "kmem-cache-alloc-lru": "APPP",  # 5.18
    "list-lru-cleanup": "APPP",  # 5.16
    "list-lru-deferred-split": "AAAP",  # 7.2
    "list-lru-explicit-memcg": "AAPP",  # 6.8
    "list-lru-memcg-aware": "PPPP",  # 5.2
    "list-lru-memcg-id": "APPP",  # 5.18
    "list-lru-memcg-lists": "PPPP",  # 4.0
    "list-lru-memory": "APPP",  # 5.18
    "list-lru-on-demand": "APPP",  # 5.18
    "list-lru-per-memcg-arrays": "APPP",  # 5.18
    "list-lru-split-lock": "AAAP",  # 6.13
    "list-lru-xarray": "APPP",  # 5.18
    "memcg-objcg-per-node": "AAAP",  # 7.1 or 7.2
    "slab-memcg-data": "APPP",  # 5.11
    "slab-no-cpu-slab": "AAAP",  # 7.0
    "slab-obj-exts": "AAPP",  # 6.10
    "slab-obj-exts-placement": "AAAP",  # 7.0
    "slab-objcg-bit": "AAAP",  # 7.3
    "slab-objcg-controller": "PPPP",  # 5.9
    "slab-page-type": "AAPP",  # 6.10
    "slab-sheaves": "AAAP",  # 6.18
    "slab-struct-slab": "APPP",  # 5.17
    "cgroup-threadgroup-cpus-lock": "PPPP",  # 6.0, went to the stable series, too
    "dm-bufio-loop-trylock": "AAAA",  # reverted; loop was changed instead
    "dm-thin-abort-shrinker": "?SSS",  # dm_bufio of 5.10 does not show it
    "dm-thin-bufio-reset": "APPP",  # 6.5
    "group-cpus-hotplug-lock": "????",  # it leaves no trace
    "mem-hotplug-percpu-rwsem": "PPPP",  # 4.13
    "xfs-rename-whiteout-order": "????",  # it leaves no trace
    "workqueue-cpu-pwq": "AAPP",  # 6.6
    "workqueue-inactive-works": "PPPP",  # 5.15; the rename went to stable 5.10, too
    "workqueue-max-active": "AAPP",  # 6.9
    "workqueue-progress-stamp": "AAAP",  # 7.0
}


# The same with BFQ and mq-deadline in use.
SCHEDULERS = {
    "iosched-bfq": {
        "bfq-async-tags": "PPPP",  # before 4.18
        "bfq-cgroup-tags": "APPP",  # 5.17
        "bfq-injection": "PPPP",  # 5.2
        "bfq-wakers": "PPPP",  # 5.3
        "bfq-write-overcharge": "PPPP",  # shown by what is newer
    },
    "iosched-deadline": {
        "mq-deadline-head-fifo-time": "A?PP",
        "mq-deadline-prio-aging": "APPP",
        "mq-deadline-priorities": "APPP",
        "mq-deadline-sync-tags": "APPS",
        "mq-deadline-tag-reservation": "APSS",
    },
}


def detected(target: Target) -> dict[str, Detected]:
    lacking = target.need_modules(*modules(CATALOGUE.patches))
    assert lacking == []
    return detect(CATALOGUE.patches, Prober(target.prog, lacking))


def test_states(kernel: str, mixed_target: Target) -> None:
    found = {patch: one.state for patch, one in detected(mixed_target).items()}
    at = KERNELS.index(kernel)
    assert found == {patch: STATES[states[at]] for patch, states in TRUTH.items()}


@usually
@pytest.mark.parametrize("scenario", SCHEDULERS)
def test_states_of_schedulers_in_use(kernel: str, scenario: str) -> None:
    found = detected(opened(build(kernel, scenario)))
    at, truth = KERNELS.index(kernel), SCHEDULERS[scenario]
    states = {patch: STATES[each[at]] for patch, each in truth.items()}
    assert {patch: found[patch].state for patch in truth} == states


def test_releases_agree_where_nothing_was_backported(kernel: str, mixed_target: Target) -> None:
    """A second opinion: what the catalogue says of releases, against what types say."""
    running = tuple(map(int, kernel.split(".")))
    backported = {
        "cgroup-threadgroup-cpus-lock",
        "dm-bufio-loop-trylock",  # and reverted
        "dm-thin-abort-shrinker",
        "dm-thin-bufio-reset",
        "fsnotify-lazy-parent-watched",
        "mq-deadline-tag-reservation",
        "sbitmap-shallow-depth",
        "workqueue-inactive-works",
    }
    compared = 0
    for patch, one in detected(mixed_target).items():
        if not one.patch.release or patch in backported or one.state is State.UNDETERMINED:
            continue
        there = running >= tuple(map(int, one.patch.release.split(".")))
        assert there == (one.state in (State.PRESENT, State.SUPERSEDED)), patch
        compared += 1
    assert compared > 25


def test_packages_agree_with_types(mixed_target: Target) -> None:
    """The catalogue's packages of a kernel's own distribution, against what types say."""
    build = mixed_target.prog["init_uts_ns"].name
    kernel, version = (getattr(build, name).string_().decode() for name in ("release", "version"))
    text, compared = f"{kernel} {version}", 0
    own = [each for each in CATALOGUE.distributions if re.match(each.kernel, text)]
    assert bool(own) == (" Debian 7." not in text)
    for patch, one in detected(mixed_target).items() if own else ():
        known = carrier(one.patch, own[0])
        if known.carried is Carried.UNKNOWN or one.state is State.UNDETERMINED:
            continue
        there = known.carried is Carried.BASE
        if known.known is not None:
            limit = known.known.package or known.known.absent_up_to
            running = _debian(version[version.index("Debian ") :])
            there = known.carried is Carried.SINCE and running >= _debian(limit)
            if known.carried is Carried.ABSENT and running > _debian(limit):
                continue
        assert there == (one.state in (State.PRESENT, State.SUPERSEDED)), patch
        compared += 1
    assert compared > 15 or not own


def _debian(version: str) -> list[int]:
    """Order of a version such as ``linux 5.10.251-5``."""
    return [int(part) for part in re.findall(r"\d+", version.split()[1])]


@pytest.mark.parametrize(
    ("release", "scenario", "dear"),
    [
        # What costs most, or saves most: arrays of lists; names that do not exist; shared slabs.
        ("5.10", "list-lru", "list-lru-memory"),
        ("6.12", "negatives", "negative-dentry-bloat"),
        ("6.1", "mixed", "slab-objcg-controller"),
        # Times come behind sizes.
        ("6.1", "iosched-deadline", "list-lru-memory"),
    ],
)
def test_prices_are_the_figures_of_the_analyses(
    release: str, scenario: str, dear: str, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = build(release, scenario)
    _, document, _ = command(capsys, "patches", *dump.arguments)
    rows = {row["patch"]: row for row in document["tables"]["patches"]}
    assert set(rows) == set(TRUTH)
    assert document["tables"]["prices"][0]["patch"] == dear
    figures: dict[str, dict[str, int]] = {}
    for price in document["tables"]["prices"]:
        one, _, other = price["formula"].partition(" - ")
        name, _, key = one.partition(".")
        if name not in analyses():
            continue
        if name not in figures:
            figures[name] = command(capsys, name, *dump.arguments)[1]["summary"]
        expected = figures[name][key] - (figures[name][other.partition(".")[2]] if other else 0)
        row, is_cost = rows[price["patch"]], price["kind"].startswith("absence")
        if price["bytes"] is None:
            assert price["seconds"] == expected == row["cost_seconds"], price
            continue
        assert price["bytes"] == abs(expected), price
        assert price["kind"] in (
            ("absence costs", "presence saves")
            if expected >= 0
            else ("absence saves", "presence costs")
        )
        amount = row["cost_bytes"] if is_cost else row["saving_bytes"]
        assert amount == expected
    assert len(figures) >= 2
    # A figure that the catalogue names and an analysis does not have is a mistake of ours.
    assert not any("no figure" in gap["reason"] for gap in document["gaps"])


def test_a_capsule_has_the_same_patches(mixed_target: Target, tmp_path: Path) -> None:
    """Also where it was recorded for something else."""
    path = tmp_path / "slab.capsule"
    create(mixed_target, path, [analyses()["slab"]])
    found = {patch: one.state for patch, one in detected(open_target(str(path))).items()}
    assert found == {patch: one.state for patch, one in detected(mixed_target).items()}
