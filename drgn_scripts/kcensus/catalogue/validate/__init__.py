# SPDX-License-Identifier: LGPL-2.1-or-later
"""Check on pairs of targets, without and with a patch, whether it has the promised effect."""

from kcensus.catalogue.validate.judge import Judgement, Verdict, interval, judge
from kcensus.catalogue.validate.pairs import Condition, Pair, Refused, Side, look_at
from kcensus.catalogue.validate.result import TABLES, validation_result

__all__ = [
    "TABLES",
    "Condition",
    "Judgement",
    "Pair",
    "Refused",
    "Side",
    "Verdict",
    "interval",
    "judge",
    "look_at",
    "validation_result",
]
