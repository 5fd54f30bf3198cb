# SPDX-License-Identifier: LGPL-2.1-or-later
"""Charts of the tables of a result."""

from __future__ import annotations

from collections.abc import Sequence

from kcensus.analyses import analyses
from kcensus.charts import Chart, ChartSpec, chart, compares
from kcensus.results import Result


def specs(result: Result) -> Sequence[ChartSpec]:
    """Return the declared charts of the analysis of a result."""
    known = analyses().get(result.analysis)
    return known.chart_specs() if known else ()


def charts(result: Result) -> list[Chart]:
    """Return the charts of a result that compare enough bytes."""
    return [each for spec in specs(result) if compares(each := chart(result, spec))]
