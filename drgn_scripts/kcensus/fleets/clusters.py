# SPDX-License-Identifier: LGPL-2.1-or-later
"""Targets clustered by cause: by the features that they have in common.

Targets with the same features are one *set*; work and memory follow the number of different sets,
which has a bound.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse import csr_array
from scipy.spatial.distance import squareform

from kcensus.fleets.causes import STACK

_APART = 0.5
"""Weighted Jaccard distance from which on groups of sets are of different causes."""
_MAX_SETS = 3000
"""Most sets to compare with each other; rarer ones join the nearest."""
_MAX_ROUNDS = 3
"""Most times that this is done, each time with the sets that are unlike all before."""
_MAX_CLUSTERS = 1000
"""Most clusters to describe; smaller ones are left out."""
_COMMON = 0.5
"""Share of the targets from which on a feature is common to a cluster."""

Key = tuple[str, str]
"""Kind and text of a feature."""
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Cluster:
    """Targets of one cause."""

    id: str
    """Eight hexadecimal digits, the same for the same common features."""
    common: tuple[Key, ...]
    """Features of at least half of the targets, the heaviest first; empty if they have none."""
    targets: Ints
    """Numbers of the targets, ascending, shape (targets,)."""
    representative: int
    """The target that is most like the common features."""
    unlike: Ints
    """The targets with other features, or without a common one, shape (unlike,)."""


@dataclass(frozen=True)
class Clusters:
    """All targets, by cause."""

    features: Features
    found: Sequence[Cluster]
    """The clusters, the largest first."""
    healthy: Ints
    """Numbers of the targets without a feature."""
    left_out: Ints
    """Numbers of the targets of rare sets, beyond the bounds, that are unlike all clusters."""


@dataclass(frozen=True)
class Features:
    """The features of targets, as a matrix.

    A feature that some targets have with a higher weight than others (a finding of another
    severity) has a column for each of its weights, ascending, with the weight beyond the one
    before: sets differ by the difference of the weights.
    """

    keys: Sequence[Key]
    key: Ints
    """Number of the key of each column, in order, shape (columns,)."""
    weight: Floats
    """Weight of each column, shape (columns,)."""
    sets: csr_array
    """1 for each column of each set, shape (sets, columns)."""
    set_of: Ints
    """Number of the set of each target, shape (targets,)."""

    @staticmethod
    def of(table: pa.Table, attempts: Sequence[str]) -> Features:
        """Return the features of targets.

        :param table: rows of the table ``features``; those without a weight are left out
        :param attempts: the targets
        """
        target = pc.index_in(table["attempt"].cast(pa.string()), pa.array(attempts, pa.string()))
        names = ["kind", "feature", "weight"]
        frame = table.select(names).to_pandas(strings_to_categorical=True)
        for name in ("kind", "feature"):
            texts = frame[name].astype("category").cat
            frame[name] = texts.set_categories(sorted(texts.categories))
        frame = frame.assign(target=target.to_numpy())
        frame = frame[frame["target"].notna() & (frame["weight"] > 0)]
        frame = frame.sort_values("weight", kind="stable")
        frame = frame.drop_duplicates(["target", "kind", "feature"], keep="last")
        columns = frame.groupby(names, observed=True)
        level = columns.ngroup().to_numpy(np.int64)
        known = columns.size().reset_index()
        keys = known.groupby(["kind", "feature"], observed=True)
        key = keys.ngroup().to_numpy(np.int64)
        first_of_key = known.drop_duplicates(["kind", "feature"])
        pairs = zip(first_of_key["kind"], first_of_key["feature"], strict=True)
        before = keys["weight"].shift().fillna(0.0).to_numpy(np.float64)
        # A target has the columns of its feature up to its own weight.
        first = np.searchsorted(key, key, "left")[level]
        number = level - first + 1
        column = np.repeat(first, number) + _within(number)
        row = np.repeat(frame["target"].to_numpy(np.int64), number)
        shape = len(attempts), len(known)
        matrix = csr_array((np.ones(len(row)), (row, column)), shape=shape)
        chosen, set_of = _different(matrix)
        weight = known["weight"].to_numpy(np.float64) - before
        return Features([*pairs], key, weight, matrix[chosen], set_of)

    @cached_property
    def count(self) -> Ints:
        """Number of targets of each set."""
        return np.bincount(self.set_of, minlength=self.sets.shape[0]).astype(np.int64)

    def likeness(self, first: csr_array, second: csr_array) -> Floats:
        """Return the weighted Jaccard similarity of all pairs of sets, none of them empty."""
        weighted = first * self.weight
        common = (weighted @ second.T).toarray()
        both = weighted.sum(axis=1)[:, None] + (second @ self.weight)[None, :] - common
        similarity: Floats = common / both
        return similarity

    def named(self, columns: NDArray[np.intp]) -> tuple[Key, ...]:
        """Return the keys of columns, the heaviest first."""
        weight: dict[int, float] = {}
        for column in columns:
            number = int(self.key[column])
            weight[number] = weight.get(number, 0.0) + float(self.weight[column])
        return tuple(
            self.keys[number] for number in sorted(weight, key=lambda each: (-weight[each], each))
        )

    def telling(self, common: Sequence[Key]) -> Floats:
        """Return 1 for each key whose absence or presence makes an outlier, 0 for others.

        Stacks do if a cluster has nothing else in common.
        """
        if all(kind == STACK for kind, _ in common):
            return np.ones(len(self.keys))
        return self._is_no_stack

    @cached_property
    def _is_no_stack(self) -> Floats:
        return np.array([float(kind != STACK) for kind, _ in self.keys])

    def differences(self, cluster: Cluster, target: int) -> tuple[tuple[Key, ...], tuple[Key, ...]]:
        """Return the features of a target that its cluster has not in common, and lacking ones."""
        telling = self.telling(cluster.common)
        columns = self.has[[self.set_of[target]]].indices
        own = [self.keys[int(at)] for at in columns if telling[at]]
        more = tuple(sorted({*own} - {*cluster.common}))
        common = [key for key in cluster.common if telling[self.number[key]]]
        return more, tuple(key for key in common if key not in own)

    def differing(self, cluster: Cluster) -> tuple[Mapping[Key, int], Mapping[Key, int]]:
        """Return how many targets of a cluster have further features, and lack common ones."""
        sets = np.bincount(self.set_of[cluster.targets], minlength=len(self.count))
        has = (self.has.T @ sets) * self.telling(cluster.common)
        total = len(cluster.targets)
        more = {self.keys[int(at)]: int(has[at]) for at in np.flatnonzero(has)}
        lack = {key: total - more.pop(key) for key in cluster.common if key in more}
        return more, {key: count for key, count in lack.items() if count}

    @cached_property
    def number(self) -> Mapping[Key, int]:
        """Number of each key."""
        return {key: number for number, key in enumerate(self.keys)}

    @cached_property
    def has(self) -> csr_array:
        """1 for each feature of each set, whatever its weight, shape (sets, keys)."""
        return self.sets[:, np.searchsorted(self.key, np.arange(len(self.keys)))]


def _within(counts: Ints) -> Ints:
    """Return 0, 1, … for each of the groups with these sizes."""
    ends = counts.cumsum()
    result: Ints = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
    return result


def _different(matrix: csr_array) -> tuple[NDArray[np.intp], Ints]:
    """Return one row of each kind of equal rows, and the number of its kind for each row."""
    # Sums of random numbers tell sets apart; the same ones each time, so that the order is.
    random = np.random.default_rng(0).integers(0, 1 << 40, (matrix.shape[1], 2))
    digests = matrix.astype(np.int64) @ random
    _, chosen, kinds = np.unique(digests, axis=0, return_index=True, return_inverse=True)
    return chosen, kinds.reshape(-1).astype(np.int64)


def clusters(table: pa.Table, attempts: Sequence[str]) -> Clusters:
    """Return the clusters of targets.

    :param table: rows of the table ``features``
    :param attempts: the targets, the ones to prefer as representatives first
    """
    features = Features.of(table, attempts)
    is_empty = features.sets.sum(axis=1) == 0
    # Sets with many targets first; among equal ones that of the first target.
    _, first = np.unique(features.set_of, return_index=True)
    order = np.lexsort((first, -features.count))
    label = _labels(features, order[~is_empty[order]])
    made = _clusters(features, label)
    is_left_out = ~is_empty[features.set_of]
    for each in made:
        is_left_out[each.targets] = False
    return Clusters(
        features,
        sorted(made, key=lambda each: (-len(each.targets), each.id)),
        np.flatnonzero(is_empty[features.set_of]),
        np.flatnonzero(is_left_out),
    )


def _labels(features: Features, order: NDArray[np.intp]) -> Ints:
    """Return the group of similar sets of each set; -1 for those that are left out."""
    label = np.full(features.sets.shape[0], -1, np.int64)
    for _ in range(_MAX_ROUNDS):
        first, rest = order[:_MAX_SETS], order[_MAX_SETS:]
        if not len(first):
            break
        seen = features.sets[first]
        label[first] = label.max() + _groups(features.likeness(seen, seen))
        is_near = np.zeros(len(rest), bool)
        for start in range(0, len(rest), _MAX_SETS):
            part = slice(start, start + _MAX_SETS)
            likeness = features.likeness(features.sets[rest[part]], seen)
            is_near[part] = likeness.max(axis=1) > 1 - _APART
            label[rest[part]] = np.where(is_near[part], label[first[likeness.argmax(axis=1)]], -1)
        order = rest[~is_near]
    return label


def _groups(likeness: Floats) -> Ints:
    """Return the group of each row, from 1 on."""
    if len(likeness) == 1:
        return np.ones(1, np.int64)
    distance = np.clip(1 - likeness, 0, 1)
    np.fill_diagonal(distance, 0)
    tree = linkage(squareform(distance, checks=False), "average")
    groups: Ints = fcluster(tree, _APART, "distance").astype(np.int64)
    return groups


def _clusters(features: Features, label: Ints) -> list[Cluster]:
    """Return a cluster for the groups of sets with the same common features."""
    groups: dict[tuple[Key, ...], list[NDArray[np.intp]]] = {}
    by_label = np.argsort(label, kind="stable")
    by_label = by_label[label[by_label] >= 0]
    parts = np.split(by_label, np.flatnonzero(np.diff(label[by_label])) + 1)
    parts.sort(key=lambda sets: -int(features.count[sets].sum()))
    for sets in parts[:_MAX_CLUSTERS] if len(by_label) else []:
        common = tuple(sorted(features.named(_common(features, sets))))
        groups.setdefault(common, []).append(sets)
    targets = np.argsort(features.set_of, kind="stable")
    ends = features.count.cumsum()
    made = []
    for keys, parts in groups.items():
        sets = np.concatenate(parts)
        common_columns = _common(features, sets)
        centre = csr_array(
            (np.ones(len(common_columns)), common_columns, [0, len(common_columns)]),
            shape=(1, len(features.key)),
        )
        likeness = features.likeness(features.sets[sets], centre)[:, 0]
        own = [targets[ends[each] - features.count[each] : ends[each]] for each in sets]
        best = np.lexsort(([part[0] for part in own], -features.count[sets], -likeness))[0]
        members = np.sort(np.concatenate(own))
        is_common = np.bincount(features.key[common_columns], minlength=len(features.keys)) > 0
        telling = features.telling(features.named(common_columns))
        has = features.has[sets]
        further = has @ telling + (is_common * telling).sum() - 2 * (has @ (is_common * telling))
        unlike = members[np.isin(features.set_of[members], sets[further > 0])]
        digest = hashlib.sha256(repr(keys).encode()).hexdigest()[:8]
        shared = features.named(common_columns)
        made.append(Cluster(digest, shared, members, int(own[best][0]), unlike))
    return made


def _common(features: Features, sets: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the columns of most targets of sets, or else those of the most frequent set."""
    count = features.count[sets]
    share = (features.sets[sets].T @ count) / count.sum()
    columns = np.flatnonzero(share >= _COMMON)
    return columns if len(columns) else features.sets[[sets[count.argmax()]]].indices
