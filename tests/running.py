# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs analyses on programs and targets, and makes analyses of functions."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import Any

import drgn

from kcensus.analyses import Analysis, analyses
from kcensus.analyses.runner import Context
from kcensus.kernel.kernel import Kernel
from kcensus.render.json import write_json
from kcensus.reports import Report
from kcensus.results import Answer, Result
from kcensus.samples import DIRECTORY
from kcensus.sources.capsule.container import Reader

_functions: dict[str, Callable[..., Answer]] = {}


def on(prog: drgn.Program, **options: Any) -> Context:
    """Make a context of a program that was opened elsewhere; options as :class:`Kernel` has."""
    return Context(Kernel(prog, **options))


def runner(name: str) -> Callable[..., Result]:
    """Return a function that runs the analysis ``name`` on a context."""

    def run(context: Context, **params: Any) -> Result:
        return context.run(analyses()[name], **params)

    return run


def rows(result: Result, table: str, *columns: str) -> list[tuple[Any, ...]]:
    """Return the rows of a table of a result, with these columns."""
    return [*result.tables[table].frame[[*columns]].itertuples(index=False, name=None)]


def document(subject: Result | Report) -> str:
    """Return a result or report as JSON."""
    out = io.StringIO()
    write_json(subject, out)
    return out.getvalue()


@cache
def recorded_analyses(sample: str = "sample") -> tuple[str, ...]:
    """Return the analyses that a sample was recorded for; new ones follow with ``./run samples``.

    The lab's tests demand that no analysis is missing. Types are not read: tests are named so.
    """
    recorded_for = Reader(str(DIRECTORY / f"{sample}.capsule")).manifest["analyses"]
    return tuple(name for name in analyses() if name in recorded_for)


def analysis_of(name: str, function: Callable[..., Answer], **metadata: Any) -> Analysis:
    """Make an analysis of a function."""
    key = f"function_{len(_functions)}"
    _functions[key] = function
    return Analysis(name, metadata.pop("question", name), f"{__name__}:{key}", **metadata)


def __getattr__(name: str) -> Callable[..., Answer]:
    try:
        return _functions[name]
    except KeyError:
        raise AttributeError(name) from None
