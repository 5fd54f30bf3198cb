# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd
import pyarrow as pa
import pytest

from kcensus.fleets import clusters as module
from kcensus.fleets.causes import general
from kcensus.fleets.clusters import Cluster, clusters, failures

A, B, C, D = (("finding", name) for name in "abcd")
HEAVY = ("deadlock", "x")


def table(sets: Mapping[str, Iterable[tuple[str, str]]], weights: dict[str, float]) -> pa.Table:
    rows = [
        {"attempt": attempt, "kind": kind, "feature": text, "weight": weights.get(text, 1.0)}
        for attempt, keys in sets.items()
        for kind, text in keys
    ]
    names = ("attempt", "kind", "feature", "weight")
    return pa.table({name: [row[name] for row in rows] for name in names})


def found(
    sets: Mapping[str, Iterable[tuple[str, str]]], weights: dict[str, float] | None = None
) -> list[Cluster]:
    return clusters(table(sets, weights or {}), [*sets])


def test_equal_sets_are_one_cluster_and_empty_ones_the_last() -> None:
    made = found({"1": [A, B], "2": [], "3": [A, B], "4": []})
    assert [each.attempts for each in made] == [("1", "3"), ("2", "4")]
    assert made[0].common == (A, B)
    assert made[1].common == ()


def test_no_targets() -> None:
    assert found({}) == []


def test_a_heavy_feature_joins_what_light_ones_do_not() -> None:
    sets = {"1": [HEAVY, A], "2": [HEAVY, B], "3": [A, C], "4": [D]}
    made = found(sets, {"x": 6.0})
    assert sorted(each.attempts for each in made) == [("1", "2"), ("3",), ("4",)]


def test_the_representative_is_most_like_the_others_and_the_rest_is_named() -> None:
    sets = {"odd": [HEAVY, A, D], **{str(number): [HEAVY, A, B] for number in range(3)}}
    (one,) = found(sets, {"x": 6.0})
    assert one.representative == "0"
    assert one.common == (HEAVY, A, B)
    assert one.unlike == {"odd": ((D,), (B,))}


def test_an_id_follows_from_the_common_features_only() -> None:
    few = found({"1": [A, B]})[0]
    many = found({"7": [B, A], "8": [A, B], "9": [C]})
    assert few.id in {each.id for each in many}


def test_rare_sets_join_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_SETS", 2)
    sets = {"1": [A, B], "2": [A, B], "3": [C], "4": [C], "5": [A, B, D], "6": [D]}
    groups = sorted(each.attempts for each in found(sets))
    assert groups == [("1", "2", "5"), ("3", "4"), ("6",)]


def test_what_differs_between_machines_is_left_out() -> None:
    first = general("BUG: unable to handle page fault for address: ffff8880deadbeef at f+0x12/0x40")
    other = general("BUG: unable to handle page fault for address: ffff88801234abcd at f+0x1c/0x44")
    assert first == other


def test_failures_of_one_reason_are_one_row() -> None:
    frame = pd.DataFrame(
        {
            "state": ["failed", "failed", "done"],
            "step": ["open", "open", ""],
            "error": ["/a: is empty", "/b: is empty", ""],
            "target": ["/a", "/b", "/c"],
        }
    )
    (row,) = failures(frame).itertuples()
    assert (row.targets, row.error, row.example) == (2, "TARGET: is empty", "/a")
