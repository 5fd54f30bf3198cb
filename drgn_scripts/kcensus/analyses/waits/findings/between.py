# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings about objects between tasks and a device that stop tasks by themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from kcensus.analyses.waits.figures import Figures
from kcensus.analyses.waits.findings.told import Told, stall
from kcensus.kernel.names import MISSING
from kcensus.kernel.waiting.finder import Finder


def passages(figures: Figures, of_devices: Sequence[Told]) -> Iterator[Told]:
    """Yield them as parts of the findings about devices."""
    finders = [each for each in figures.waiting.finders if type(each).passage is not Finder.passage]
    graph, seen = figures.graph.sure, set[int]()
    for told in of_devices if finders else ():
        for node in np.flatnonzero(graph.reached(told.nodes, back=True)).tolist():
            kind, address = graph.kind[node], int(graph.address[node])
            for finder in finders:
                if kind not in finder.kinds or node in seen:
                    continue
                seen.add(node)
                with suppress(*MISSING):
                    if found := finder.passage(kind, address, stall(figures, node)):
                        yield Told(replace(found, part_of=told.finding.id), [node])
