# SPDX-License-Identifier: LGPL-2.1-or-later
"""The analyses as functions, and their results as DataFrames that render themselves."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd
from rich.console import Console

from kcensus import reports, results
from kcensus.analyses import Analysis
from kcensus.api.source import Readable, context_of
from kcensus.progress import Progress
from kcensus.render.report import write_report
from kcensus.render.terminal import write_terminal
from kcensus.results import Check, Finding, Gap, Scalar
from kcensus.results.tables import Table

_WIDTH = 100
"""Columns of text that a result is shown in."""
_PAGE = '<pre style="white-space:pre; overflow-x:auto; line-height:1.3">{code}</pre>'


def _text(write: Callable[[Console], None]) -> str:
    """Return what ``write`` prints, as a terminal without colours shows it."""
    out = io.StringIO()
    write(Console(file=out, width=_WIDTH, highlight=False, markup=False, emoji=False))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _page(write: Callable[[Console], None]) -> str:
    """Return what ``write`` prints on a terminal, as HTML."""
    console = Console(
        file=io.StringIO(), width=_WIDTH, record=True, force_terminal=True,
        highlight=False, markup=False, emoji=False, legacy_windows=False,
    )  # fmt: skip
    write(console)
    return console.export_html(inline_styles=True, code_format=_PAGE)


@dataclass(frozen=True, repr=False)
class Result:
    """The answer of one analysis."""

    result: results.Result
    """All of it, as the faces of kcensus take it."""

    @property
    def summary(self) -> dict[str, Scalar]:
        """Its figures by name: bytes, counts, ratios, exact; :attr:`units` says which."""
        return {key: figure.value for key, figure in self.result.summary.items()}

    @property
    def units(self) -> dict[str, str]:
        """Units of :attr:`summary`: ``bytes``, ``count``, ``ratio``, ``seconds``, …"""
        return {key: figure.unit.value for key, figure in self.result.summary.items()}

    @cached_property
    def tables(self) -> dict[str, pd.DataFrame]:
        """Its tables by name, all rows, exact values.

        ``attrs`` of each has ``title``, and by column ``units``, ``labels`` and ``help``.
        """
        return {name: _frame(table) for name, table in self.result.tables.items()}

    @property
    def checks(self) -> list[Check]:
        """Its figures held against counters that the kernel keeps itself."""
        return self.result.checks

    @property
    def findings(self) -> list[Finding]:
        """What is worth acting on."""
        return self.result.findings

    @property
    def gaps(self) -> list[Gap]:
        """What could not be read, and what that does to the figures."""
        return self.result.gaps

    def __repr__(self) -> str:
        return _text(lambda console: write_terminal(self.result, console))

    def _repr_html_(self) -> str:
        return _page(lambda console: write_terminal(self.result, console))


def _frame(table: Table) -> pd.DataFrame:
    frame = table.frame.copy(deep=False)
    frame.attrs = {
        "title": table.title,
        "units": {name: column.unit.value for name, column in table.columns.items()},
        "labels": {name: column.label for name, column in table.columns.items()},
        "help": {name: column.help for name, column in table.columns.items()},
    }
    return frame


@dataclass(frozen=True, repr=False)
class Report:
    """The answers of all analyses, and which patches the kernel has."""

    report: reports.Report
    results: Mapping[str, Result] = field(default_factory=dict)
    """By the name of the analysis; ``patches`` is one of them."""

    @property
    def findings(self) -> list[tuple[str, Finding]]:
        """All findings with the names of their analyses, the most urgent first."""
        return self.report.findings

    @property
    def failed(self) -> dict[str, str]:
        """Analyses that could not be answered, and why."""
        return {one.name: one.error for one in self.report.sections if one.result is None}

    def __repr__(self) -> str:
        return _text(lambda console: write_report(self.report, console))

    def _repr_html_(self) -> str:
        return _page(lambda console: write_report(self.report, console))


def analysis_function(analysis: Analysis) -> Callable[..., Result]:
    """Make the function that runs ``analysis`` on a program or a target."""
    name = analysis.name.replace("-", "_")

    def function(
        source: Readable,
        *,
        jobs: int | None = None,
        progress: Progress | None = None,
        **params: Any,
    ) -> Result:
        return Result(context_of(source, jobs=jobs, progress=progress).run(analysis, **params))

    unknown = inspect.Parameter
    keyword = unknown.KEYWORD_ONLY
    function.__name__ = function.__qualname__ = name
    function.__doc__ = _docstring(analysis, name)
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            unknown("source", unknown.POSITIONAL_OR_KEYWORD, annotation=Readable),
            *(
                unknown(one.name, keyword, default=one.default, annotation=one.type)
                for one in analysis.params
            ),
            unknown("jobs", keyword, default=None, annotation="int | None"),
            unknown("progress", keyword, default=None, annotation="Progress | None"),
        ],
        return_annotation=Result,
    )
    return function


def _docstring(analysis: Analysis, name: str) -> str:
    """Return the docstring of an analysis' function, with an example that runs on the sample."""
    params = "".join(f":param {one.name}: {one.help}\n" for one in analysis.params)
    examples = [f'>>> result = kcensus.{name}(kcensus.open_target("sample"))']
    for key in analysis.headline[:1]:
        examples += [f'>>> result.summary["{key}"] is None, result.units["{key}"] == ""']
        examples += ["(False, False)"]
    for table in analysis.first_tables[:1]:
        examples += [f'>>> list(result.tables["{table}"]) == []', "False"]
    lines = "\n".join(examples)
    return f"""\
Answer: {analysis.question}

{inspect.cleandoc(analysis.description)}

>>> import kcensus
{lines}

:param source: a drgn program, opened by anyone, or a target of :func:`kcensus.open_target`
{params}\
:param jobs: worker processes; by default as many as pay
:param progress: shows how far long reads are
:return: a :class:`Result`; in a notebook and at a prompt it shows itself
:raises AnalysisError: the question cannot be answered on this kernel; the message says why
"""


def report(
    source: Readable, *, jobs: int | None = None, progress: Progress | None = None
) -> Report:
    """Run all analyses, and detect which patches the kernel has.

    >>> import kcensus
    >>> report = kcensus.report(kcensus.open_target("sample"))
    >>> severity = report.findings[0][1].severity.name
    >>> severity, sorted(report.results)
    ('WARNING', ['dentries', 'kcopyd', 'list-lru', 'patches', 'slab'])

    :param source: a drgn program, opened by anyone, or a target of :func:`kcensus.open_target`
    :param jobs: worker processes; by default as many as pay
    :param progress: shows how far long reads are
    :return: findings first, then the :class:`Result` of each analysis
    """
    made = reports.examine(context_of(source, jobs=jobs, progress=progress))
    return Report(
        made, {one.name: Result(one.result) for one in made.sections if one.result is not None}
    )


def patches(
    source: Readable, *, jobs: int | None = None, progress: Progress | None = None
) -> Result:
    """Tell which kernel patches of the catalogue are in this kernel, and what they matter here.

    >>> import kcensus
    >>> found = kcensus.patches(kcensus.open_target("sample")).tables["patches"]
    >>> found.set_index("patch").loc["list-lru-xarray", "state"]
    'absent'

    :param source: a drgn program, opened by anyone, or a target of :func:`kcensus.open_target`
    :param jobs: worker processes; by default as many as pay
    :param progress: shows how far long reads are
    """
    return report(source, jobs=jobs, progress=progress).results["patches"]
