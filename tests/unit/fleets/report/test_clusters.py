# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pytest

from kcensus.fleets import clusters as module
from kcensus.fleets.clusters import Clusters, clusters

A, B, C, D = (("finding", name) for name in "abcd")
HEAVY = ("deadlock", "x")
STACK, OTHER = ("stack", "read"), ("stack", "write")
Key = tuple[str, str]
Features = Mapping[str, Iterable[Key] | Mapping[Key, float]]


def found(sets: Features, weights: dict[str, float] | None = None) -> Clusters:
    """Cluster targets with these features: keys, or weights by key."""
    rows = [
        {
            "attempt": attempt,
            "kind": kind,
            "feature": text,
            "weight": keys[kind, text] if isinstance(keys, Mapping) else weight,
        }
        for attempt, keys in sets.items()
        for kind, text in keys
        for weight in [(weights or {}).get(text, 1.0)]
    ]
    names = ("attempt", "kind", "feature", "weight")
    return clusters(pa.table({name: [row[name] for row in rows] for name in names}), [*sets])


def groups(made: Clusters) -> list[list[int]]:
    return sorted(each.targets.tolist() for each in made.found)


def test_equal_sets_are_one_cluster_and_empty_ones_are_healthy() -> None:
    made = found({"1": [A, B], "2": [], "3": [A, B], "4": []})
    assert groups(made) == [[0, 2]]
    assert made.found[0].common == (A, B)
    assert made.healthy.tolist() == [1, 3]


@pytest.mark.parametrize("sets", [{}, {"1": []}])
def test_no_features(sets: Features) -> None:
    made = found(sets)
    assert (made.found, len(made.healthy), len(made.left_out)) == ([], len(sets), 0)


def test_a_heavy_feature_joins_what_light_ones_do_not() -> None:
    made = found({"1": [HEAVY, A], "2": [HEAVY, B], "3": [A, C], "4": [D]}, {"x": 6.0})
    assert groups(made) == [[0, 1], [2], [3]]


def test_severities_of_one_finding_are_one_cause_if_it_is_all_there_is() -> None:
    made = found({"1": {A: 3.0}, "2": {A: 0.5}, "3": {A: 0.5, B: 2.0}})
    assert groups(made) == [[0, 1], [2]]
    assert {each.common for each in made.found} == {(A,), (B, A)}


def test_the_similarity_of_severities_is_that_of_their_weights() -> None:
    features = found({"1": {A: 3.0, B: 1.0}, "2": {A: 2.0, C: 1.0}}).features
    first, second = (features.sets[[features.set_of[number]]] for number in (0, 1))
    assert features.likeness(first, second)[0, 0] == pytest.approx(2.0 / 5.0)


def test_the_representative_is_most_like_the_others_and_the_rest_is_named() -> None:
    sets = {"odd": [HEAVY, A, D], **{str(number): [HEAVY, A, B] for number in range(3)}}
    made = found(sets, {"x": 6.0})
    (one,) = made.found
    assert one.representative == 1
    assert one.common == (HEAVY, A, B)
    assert one.unlike.tolist() == [0]
    assert made.features.differences(one, 0) == ((D,), (B,))
    assert made.features.differing(one) == ({D: 1}, {B: 1})


def test_stacks_make_no_outlier_unless_there_is_nothing_else() -> None:
    weights = {"read": 0.2, "write": 0.2}
    made = found({"1": [A, STACK], "2": [A, STACK], "3": [A, OTHER]}, weights)
    assert [len(each.unlike) for each in made.found] == [0]
    made = found({"1": [STACK], "2": [STACK], "3": [STACK, OTHER]}, weights)
    assert [each.unlike.tolist() for each in made.found] == [[2]]


def test_an_id_follows_from_the_common_features_only() -> None:
    few = found({"1": [A, B]}).found[0]
    many = found({"7": [B, A], "8": [A, B], "9": [C]})
    assert few.id in {each.id for each in many.found}
    assert len({each.id for each in many.found}) == 2


def test_rare_sets_join_the_nearest_or_others_like_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_SETS", 2)
    sets = {"1": [A, B], "2": [A, B], "3": [C], "4": [C], "5": [A, B, D], "6": [D]}
    assert groups(found(sets)) == [[0, 1, 4], [2, 3], [5]]


@pytest.mark.parametrize(("bound", "value"), [("_MAX_ROUNDS", 1), ("_MAX_CLUSTERS", 2)])
def test_what_is_beyond_the_bounds_is_left_out(
    bound: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_SETS", 2)
    monkeypatch.setattr(module, bound, value)
    made = found({"1": [A], "2": [A], "3": [C], "4": [C], "5": [D], "6": []})
    assert groups(made) == [[0, 1], [2, 3]]
    assert (made.left_out.tolist(), made.healthy.tolist()) == ([4], [5])


def test_each_target_is_in_one_place() -> None:
    random = np.random.default_rng(1)
    sets = {
        str(number): [("finding", str(each)) for each in random.choice(40, random.integers(6))]
        for number in range(400)
    }
    made = found(sets)
    parts = [*(each.targets for each in made.found), made.healthy, made.left_out]
    assert np.sort(np.concatenate(parts)).tolist() == [*range(400)]
    assert len({each.id for each in made.found}) == len(made.found)
    assert all(each.representative in each.targets for each in made.found)
