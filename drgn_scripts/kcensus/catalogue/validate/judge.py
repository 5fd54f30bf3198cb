# SPDX-License-Identifier: LGPL-2.1-or-later
"""The verdict over all pairs."""

from __future__ import annotations

import enum
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kcensus.catalogue.model import UNITS, Moment, Patch
from kcensus.catalogue.validate.pairs import Pair
from kcensus.results import Unit

MIN_CHANGE = 0.1
"""Least relative change; smaller changes count as noise."""
_PREDICTED_SHARE = 0.5
"""Least share of the reduction that the model predicts from BEFORE. The model takes the least
memory that the patch allows (slabs packed full, lists only where BEFORE has objects), so that a
kernel with the patch uses more."""
_RESAMPLES = 10_000


class Verdict(enum.Enum):
    """The conclusion from all pairs together."""

    CONFIRMED = "confirmed"
    CONTRADICTED = "contradicted"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Judgement:
    """The verdict, with its basis."""

    verdict: Verdict
    reasons: tuple[str, ...]
    pairs: tuple[Pair, ...]
    change: float
    """Median over pairs, with its 95 % confidence interval :attr:`low` to :attr:`high`."""
    low: float
    high: float
    claimed: float | None
    """The published change."""
    predicted: float | None
    """Median of the changes that the model predicts; None without a prediction."""

    @property
    def confirmed_from(self) -> float:
        """Least change that confirms the patch."""
        return max(MIN_CHANGE, _PREDICTED_SHARE * (self.predicted or 0))

    @property
    def contradicted_below(self) -> float:
        """Change below which the patch is contradicted: none, or noise where much is predicted."""
        return MIN_CHANGE if _PREDICTED_SHARE * (self.predicted or 0) >= MIN_CHANGE else 0.0


def judge(patch: Patch, pairs: Sequence[Pair]) -> Judgement:
    """Return the verdict over all pairs that count."""
    useful = [pair for pair in pairs if pair.counts]
    reasons = list(dict.fromkeys(problem for pair in pairs for problem in pair.problems))
    changes = [pair.change for pair in useful or pairs]
    predictions = [pair.predicted_change for pair in useful or pairs]
    known = [each for each in predictions if each is not None]
    low, high = interval(changes)
    judgement = Judgement(
        verdict=Verdict.INCONCLUSIVE,
        reasons=tuple(reasons),
        pairs=tuple(pairs),
        change=statistics.median(changes),
        low=low,
        high=high,
        claimed=_claimed(patch, pairs[0].unit),
        predicted=statistics.median(known) if known else None,
    )
    if not useful:
        return judgement
    if low >= judgement.confirmed_from and not all(pair.is_switched for pair in useful):
        return replace(judgement, verdict=Verdict.CONFIRMED)
    if high <= 0 or high < judgement.contradicted_below:
        return replace(judgement, verdict=Verdict.CONTRADICTED)
    return judgement


def interval(changes: Sequence[float]) -> tuple[float, float]:
    """Return the 95% confidence interval of the median, by resampling with a fixed seed."""
    if len(changes) == 1:
        return changes[0], changes[0]
    values = np.sort(np.asarray(changes, float))
    drawn = np.random.default_rng(0).choice(values, (_RESAMPLES, len(values)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(low), float(high)


def _claimed(patch: Patch, unit: Unit) -> float | None:
    claim = patch.validation.claim if patch.validation else ""
    # A run may also have figures in other units.
    sizes = [
        (figure.moment, figure.base)
        for figure in patch.figures
        if claim and figure.run == claim and UNITS[figure.unit][0] == unit.value
    ]
    before = [size for moment, size in sizes if moment is Moment.BEFORE]
    after = [size for moment, size in sizes if moment is Moment.AFTER]
    return 1 - max(after) / max(before) if before and after else None
