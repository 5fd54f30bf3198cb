# SPDX-License-Identifier: LGPL-2.1-or-later
"""Targets clustered by cause: by the features that they have in common."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

_APART = 0.5
"""Weighted Jaccard distance from which on groups of targets are of different causes."""
_MAX_SETS = 3000
"""Most different sets of features to compare with each other; rarer ones join the nearest."""
_COMMON = 0.5
"""Share of the targets from which on a feature is common to a cluster."""

Key = tuple[str, str]
"""Kind and text of a feature."""


@dataclass(frozen=True)
class Cluster:
    """Targets of one cause."""

    id: str
    """Eight hexadecimal digits, the same for the same common features."""
    common: tuple[Key, ...]
    """Features of at least half of the targets, the heaviest first."""
    attempts: tuple[str, ...]
    """The targets, by attempt."""
    representative: str
    """The attempt that is most like all others."""
    unlike: Mapping[str, tuple[tuple[Key, ...], tuple[Key, ...]]]
    """By attempt of an outlier, the features that it has beyond the common ones, and lacks."""


def clusters(features: pa.Table, attempts: Sequence[str]) -> list[Cluster]:
    """Return the clusters of targets, the largest first; one without features has none.

    :param features: rows of the table ``features``
    :param attempts: the targets, the latest first
    """
    weights: dict[Key, float] = {}
    sets: dict[str, set[Key]] = defaultdict(set)
    columns = ("attempt", "kind", "feature", "weight")
    for attempt, kind, text, weight in zip(
        *(features[name].to_pylist() for name in columns), strict=True
    ):
        weights[kind, text] = weight
        sets[attempt].add((kind, text))
    members: dict[frozenset[Key], list[str]] = defaultdict(list)
    for attempt in attempts:
        members[frozenset(sets.get(attempt, ()))].append(attempt)
    alike = [*members.pop(frozenset(), [])]
    found = [_cluster([frozenset()], {frozenset(): alike}, weights)] if alike else []
    for group in _groups(members, weights):
        found.append(_cluster(group, members, weights))
    return sorted(found, key=lambda each: (not each.common, -len(each.attempts), each.id))


def _groups(
    members: Mapping[frozenset[Key], Sequence[str]], weights: Mapping[Key, float]
) -> list[list[frozenset[Key]]]:
    """Return groups of similar sets."""
    ordered = sorted(members, key=lambda each: (-len(members[each]), sorted(each)))
    if len(ordered) < 2:
        return [ordered] if ordered else []
    first, rest = ordered[:_MAX_SETS], ordered[_MAX_SETS:]
    near = _similarity(first, first, weights)
    distance = np.clip(1 - near, 0, 1)
    np.fill_diagonal(distance, 0)
    labels = fcluster(linkage(squareform(distance, checks=False), "average"), _APART, "distance")
    groups: dict[int, list[frozenset[Key]]] = defaultdict(list)
    for label, each in zip(labels, first, strict=True):
        groups[int(label)].append(each)
    for start in range(0, len(rest), _MAX_SETS):
        part = rest[start : start + _MAX_SETS]
        nearest = _similarity(part, first, weights)
        for each, best, row in zip(part, nearest.argmax(axis=1), nearest, strict=True):
            is_near = row[best] > 1 - _APART
            groups[int(labels[best]) if is_near else len(groups) + len(labels) + 1].append(each)
    return [*groups.values()]


def _similarity(
    first: Sequence[frozenset[Key]], second: Sequence[frozenset[Key]], weights: Mapping[Key, float]
) -> NDArray[np.float64]:
    """Return the weighted Jaccard similarity of all pairs of sets, none of them empty."""
    keys = {key: number for number, key in enumerate(weights)}
    weight = np.array([*weights.values()])

    def matrix(sets: Sequence[frozenset[Key]]) -> NDArray[np.float64]:
        made = np.zeros((len(sets), len(keys)))
        for row, each in enumerate(sets):
            made[row, [keys[key] for key in each]] = 1
        return made

    one, other = matrix(first), matrix(second)
    common = (one * weight) @ other.T
    both = (one @ weight)[:, None] + (other @ weight)[None, :] - common
    similarity: NDArray[np.float64] = common / both
    return similarity


def _cluster(
    sets: Sequence[frozenset[Key]],
    members: Mapping[frozenset[Key], Sequence[str]],
    weights: Mapping[Key, float],
) -> Cluster:
    count = Counter(key for each in sets for key in each for _ in members[each])
    total = sum(len(members[each]) for each in sets)
    common = sorted(
        (key for key, number in count.items() if number >= _COMMON * total),
        key=lambda key: (-weights[key], -count[key], key),
    )
    shared = frozenset(common)
    numbers = np.array([len(members[each]) for each in sets])
    likeness = _similarity(sets, sets, weights) @ numbers if shared else numbers
    representative = members[sets[int(np.argmax(likeness))]][0]
    unlike = {
        attempt: (tuple(sorted(each - shared)), tuple(sorted(shared - each)))
        for each in sets
        if each != shared
        for attempt in members[each]
    }
    digest = hashlib.sha256(repr(common).encode()).hexdigest()[:8]
    attempts = tuple(attempt for each in sets for attempt in members[each])
    return Cluster(digest, tuple(common), attempts, representative, unlike)


def failures(targets: pd.DataFrame) -> pd.DataFrame:
    """Return the failed targets by step and error: the number, and an example of each."""
    failed = targets[targets["state"] == "failed"]
    error = [
        str(error).replace(str(target), "TARGET")
        for error, target in zip(failed["error"], failed["target"], strict=True)
    ]
    grouped = failed.assign(error=error).groupby(["step", "error"])["target"]
    return (
        grouped.agg(targets="size", example="first")
        .reset_index()
        .sort_values("targets", ascending=False)
    )
