# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests in the scheduler by slice of a trace."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from kcensus.analyses.iosched.trace.figures import CLASSES, Figures
from kcensus.sources.blktrace.events import Integers

MAX_STEPS = 32
"""Slices of time."""
MAX_TASKS = 4
"""Tasks with a color and slices of their own."""
OTHERS = "others"


def _width(figures: Figures) -> int:
    return max(-(-figures.end // MAX_STEPS), 1)


def _label(step: int, width: int) -> str:
    return f"{step * width / 1e9:.3f} s"


def over_time(figures: Figures) -> pd.DataFrame:
    """Return the number of requests in the scheduler, by slice and task."""
    rows = np.flatnonzero(figures.wait >= 0)
    index, names = figures.task
    index = index[rows]
    begin = figures.bios.inserted[rows]
    end = begin + figures.wait[rows]
    total = np.bincount(index, figures.wait[rows], len(names))
    top = np.argsort(-total, kind="stable")[:MAX_TASKS]
    top = top[total[top] > 0]
    place = np.full(len(names), len(top))
    place[top] = np.arange(len(top))
    task, width = place[index], _width(figures)
    is_gone = ~figures.is_waiting[rows]
    entered = _moments(begin, task, width, len(top) + 1)
    left = _moments(end, task, width, len(top) + 1)
    waiting = np.diff(_passed(*entered, width) - _passed(*left, width), axis=0) / width
    counts = {
        "waiting": np.round(np.maximum(waiting, 0), 3),
        "inserted": entered[0],
        "dispatched": _moments(end[is_gone], task[is_gone], width, len(top) + 1)[0],
    }
    labels = [*(names[each] for each in top.tolist()), OTHERS]
    used = np.array([bool(each.any()) for each in counts["inserted"].T])
    steps, tasks = np.nonzero(np.broadcast_to(used, (MAX_STEPS, len(used))))
    return pd.DataFrame(
        {
            "time": [_label(step, width) for step in steps.tolist()],
            "task": [labels[each] for each in tasks.tolist()],
            **{name: each[steps, tasks] for name, each in counts.items()},
        }
    )


def _moments(times: Integers, task: Integers, width: int, tasks: int) -> tuple[Integers, Integers]:
    """Return moments by slice and task: their number, and the sum of their offsets in it."""
    step = np.minimum(times // width, MAX_STEPS - 1)
    code = step * tasks + task
    size = MAX_STEPS * tasks
    counts: Integers = np.bincount(code, minlength=size).reshape(MAX_STEPS, tasks)
    late: Integers = np.bincount(code, times - step * width, size).reshape(MAX_STEPS, tasks)
    return counts, late


def _passed(counts: Integers, late: npt.NDArray[np.float64], width: int) -> npt.NDArray[np.float64]:
    """Return the total age of all moments at the edges of slices.

    :return: shape (slices + 1, tasks)
    """
    before = np.cumsum(counts, axis=0)
    grown = counts * width - late
    grown[1:] += before[:-1] * width
    edges = np.zeros((len(counts) + 1, counts.shape[1]))
    edges[1:] = np.cumsum(grown, axis=0)
    return edges


def slices(figures: Figures) -> dict[str, npt.ArrayLike]:
    """Return the longest waiting request of each slice."""
    rows = np.flatnonzero(figures.wait >= 0)
    begin = figures.bios.inserted[rows]
    end = begin + figures.wait[rows]
    width = _width(figures)
    first, last = begin // width, np.minimum(end // width, MAX_STEPS - 1)
    # Requests that left the scheduler in the slice.
    waited = np.full(MAX_STEPS, -1)
    np.maximum.at(waited, last, figures.wait[rows])
    worst = np.full(MAX_STEPS, -1)
    is_longest = waited[last] == figures.wait[rows]
    worst[last[is_longest]] = rows[is_longest]
    # Requests that were still in the scheduler at the end of a slice.
    crossing = np.flatnonzero(last > first)
    for step in range(MAX_STEPS - 1):
        there = crossing[(first[crossing] <= step) & (last[crossing] > step)]
        if len(there):
            oldest = there[np.argmin(begin[there])]
            age = (step + 1) * width - int(begin[oldest])
            if age > waited[step]:
                waited[step], worst[step] = age, rows[oldest]
    known = worst >= 0
    steps = range(MAX_STEPS if len(rows) else 0)
    shown = worst[known]
    index, names = figures.tasks(shown)
    texts = {
        "task": [names[each] for each in index.tolist()],
        "device": [figures.devices[each] for each in figures.bios.device[shown].tolist()],
        "operation": [CLASSES[each] for each in figures.kind[shown].tolist()],
    }
    # Slices without requests are steps of the scale, too.
    place = np.where(known, np.cumsum(known) - 1, -1)[: len(steps)].tolist()
    return {
        "time": [_label(step, width) for step in steps],
        "longest": np.where(known, waited / 1e9, 0.0)[: len(steps)],
        **{name: [[*own, "-"][each] for each in place] for name, own in texts.items()},
    }
