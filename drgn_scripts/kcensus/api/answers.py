# SPDX-License-Identifier: LGPL-2.1-or-later
"""The analyses as functions, and their results as DataFrames that render themselves."""

from __future__ import annotations

import inspect
import io
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, overload

from rich.console import Console

from kcensus import reports, results
from kcensus.analyses import ALIASES, Analysis, analyses
from kcensus.analyses.runner import Context
from kcensus.api.frames import Frame
from kcensus.api.source import Readable, context_of
from kcensus.catalogue import Catalogue, load
from kcensus.human import human
from kcensus.progress import Progress
from kcensus.render.html import cell_html
from kcensus.render.plain import label, shown_figure
from kcensus.render.report import write_report
from kcensus.results import Check, CheckStatus, Finding, Gap, Scalar, Unit, rank
from kcensus.results.tables import Show, Table
from kcensus.text import printable

_MAX_ITEMS = 10
"""Most findings, figures and names of tables of a result at a prompt."""
_WIDTH = 100
"""Columns of text of a result at a prompt."""


@dataclass(frozen=True, repr=False, eq=False)
class Result:
    """The answer of one analysis."""

    result: results.Result
    """The result in the form that :mod:`kcensus.render` takes."""
    first_tables: tuple[str, ...] = ()
    """Tables to show; all if empty."""

    @property
    def summary(self) -> dict[str, Scalar]:
        """Figures by name: bytes, counts, ratios, exact, in the units of :attr:`units`."""
        return {key: figure.value for key, figure in self.result.summary.items()}

    @property
    def units(self) -> dict[str, str]:
        """Units of :attr:`summary`: ``bytes``, ``count``, ``ratio``, ``seconds``, …"""
        return {key: figure.unit.value for key, figure in self.result.summary.items()}

    def text(self, name: str) -> str:
        """Return a figure of :attr:`summary` for people: ``94.7 MiB``, ``76.4%``."""
        return shown_figure(name, self.result.summary[name])[1]

    @cached_property
    def tables(self) -> dict[str, Frame]:
        """The tables of the result by name as DataFrames, all rows, exact values.

        ``attrs`` of each has ``title``, and by column ``units``, ``labels``, ``help``, and the
        ``types`` at addresses. Column ``address`` has the address of the row's object:
        :func:`kcensus.as_object` makes a :class:`drgn.Object` of a row. For people,
        :meth:`Frame.frame` has headings with units, and scaled values:

        >>> import kcensus
        >>> caches = kcensus.slab(kcensus.open_target("sample")).tables["caches"]
        >>> largest = caches[["cache", "bytes", "utilization"]].head(2)
        >>> largest.frame(labels=True, scale=True)
                cache  bytes [MiB]  util [%]
        0  kcopyd_job        45.16     70.12
        1      dentry         8.32     98.38
        """
        return {name: _frame(table) for name, table in self.result.tables.items()}

    @property
    def checks(self) -> list[Check]:
        """Figures cross-checked against the kernel's own counters."""
        return self.result.checks

    @property
    def findings(self) -> list[Finding]:
        """Findings, sorted by severity and cost; :func:`kcensus.stacks` shows their tasks."""
        return [replace(each, analysis=self.result.analysis) for each in self.result.findings]

    @property
    def gaps(self) -> list[Gap]:
        """Missing or unreadable memory, with its effect on the figures."""
        return self.result.gaps

    def _repr_html_(self) -> str:
        return cell_html(self.result, self.first_tables)

    def __repr__(self) -> str:
        """Return the part that fits a prompt."""
        result = self.result
        figures = itertools.starmap(shown_figure, result.summary.items())
        differing = sum(check.status is CheckStatus.DIFFER for check in result.checks)
        blocks = {
            "findings": [
                f"{finding.severity.name} {finding.title}"
                for finding in sorted(result.findings, key=rank)
                if not finding.part_of
            ],
            "summary": [f"{name}: {value}" for name, value in figures],
            "tables": [f"{name} ({len(table.frame):,})" for name, table in result.tables.items()],
        }
        lines = [_heading(self)]
        for name, items in blocks.items():
            more = [f"… {len(items) - _MAX_ITEMS} more"] if len(items) > _MAX_ITEMS else []
            lines += [f"{name}:", *(f"    {item}" for item in (*items[:_MAX_ITEMS], *more))]
        lines.append(f"checks: {len(result.checks)}, {differing} differ; gaps: {len(result.gaps)}")
        return "\n".join(map(printable, lines))


def _frame(table: Table) -> Frame:
    frame = Frame(table.frame, copy=False)
    frame.attrs = {
        "title": table.title,
        "units": {name: column.unit.value for name, column in table.columns.items()},
        "labels": {name: label(name, column.label) for name, column in table.columns.items()},
        "help": {name: column.help for name, column in table.columns.items()},
        "types": {name: column.type for name, column in table.columns.items() if column.type},
        "data_only": [
            name
            for name, each in table.columns.items()
            if each.show is Show.DATA and name != "address"
        ],
    }
    return frame


@dataclass(frozen=True, repr=False, eq=False)
class Report:
    """The answers of all analyses, and the patches of the kernel."""

    report: reports.Report
    results: Mapping[str, Result]
    """Results by the name of the analysis, ``patches`` included."""

    @property
    def findings(self) -> list[Finding]:
        """Findings of all analyses, sorted by severity and cost; each names its analysis."""
        return [replace(finding, analysis=name) for name, finding in self.report.findings]

    @property
    def failed(self) -> dict[str, str]:
        """Reasons of analyses without a result, by analysis."""
        return self.report.errors

    def _repr_html_(self) -> str:
        return cell_html(self.report)

    def __repr__(self) -> str:
        """Return the report as text for a file."""
        console = Console(
            file=io.StringIO(), width=_WIDTH, record=True, force_terminal=False, highlight=False,
            markup=False, emoji=False, legacy_windows=False,
            force_jupyter=False,  # in a notebook, Rich would display recorded output
        )  # fmt: skip
        write_report(self.report, console)
        return "\n".join(line.rstrip() for line in console.export_text().splitlines())


class _Last(dict[str, Result | Report]):
    def __missing__(self, name: str) -> Result | Report:
        if name not in ALIASES:
            raise KeyError(name)
        return self[ALIASES[name]]

    def __repr__(self) -> str:
        """Return one line for each result."""
        lines = [f"{name!r}: {_heading(answer)}" for name, answer in self.items()]
        return "{" + ",\n ".join(lines) + "}"


def _heading(answer: Result | Report) -> str:
    if isinstance(answer, Report):
        return f"<report of {', '.join(answer.results)}>"
    made = answer.result
    return printable(f"<{made.analysis} on {made.target}, Linux {made.kernel}>")


last: dict[str, Result | Report] = _Last()
"""The last result of each command at drgn's prompt, and of each function of ``kcensus shell``, by
name: ``slab``, ``list-lru``, ``report``, …"""


@overload
def answer_of(made: results.Result) -> Result: ...
@overload
def answer_of(made: reports.Report) -> Report: ...
def answer_of(made: results.Result | reports.Report) -> Result | Report:
    """Return a result or report in the form of this module's functions."""
    if isinstance(made, reports.Report):
        answers = {name: answer_of(each) for name, each in made.results.items()}
        return Report(made, answers)
    known = analyses().get(made.analysis)
    return Result(made, known.first_tables if known else ())


def analysis_function(analysis: Analysis) -> Callable[..., Result]:
    """Make the function that runs ``analysis`` on a program or a target."""

    def function(
        source: Readable | None = None,
        *,
        jobs: int | None = None,
        progress: Progress | None = None,
        **params: Any,
    ) -> Result:
        # Before it runs, since a later TypeError can also mean unexpected types in a capsule.
        signature.bind(*([] if source is None else [source]), **params)
        if source is not None:
            context = context_of(source, jobs=jobs, progress=progress)
        elif analysis.needs_target(None, params):
            raise TypeError(f"{name}() needs a source, or {' or '.join(analysis.without_target)}")
        else:
            context = Context.without_target(progress)
        return answer_of(reports.analyse(context, analysis, **params))

    source, jobs, progress, _ = inspect.signature(function).parameters.values()
    if not analysis.without_target:
        source = source.replace(default=source.empty)
    own = [
        jobs.replace(name=param.name, default=param.default, annotation=param.type)
        for param in analysis.params
    ]
    function.__name__ = function.__qualname__ = name = analysis.name.replace("-", "_")
    function.__doc__ = _docstring(analysis, name)
    signature = inspect.Signature([source, *own, jobs, progress], return_annotation=Result)
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def _docstring(analysis: Analysis, name: str) -> str:
    params = "".join(f":param {param.name}: {param.help}\n" for param in analysis.params)
    return f"""\
Answer: {analysis.question}

{inspect.cleandoc(analysis.description)}

>>> import kcensus
>>> result = kcensus.{name}(kcensus.open_target("sample"))
>>> all(table in result.tables for table in {analysis.first_tables[:2]})
True

:param source: a drgn program, a target of :func:`kcensus.open_target`, or a path or name
{params}\
:param jobs: worker processes; by default one per CPU for compressed dumps, otherwise 1
:param progress: shows how far long reads are
:return: a :class:`Result`; in a notebook and at a prompt it shows itself
:raises AnalysisError: the question cannot be answered on this kernel; the message says why
"""


Directories = str | PathLike[str] | Iterable[str | PathLike[str]]
"""A directory, or several."""


def load_with(directories: Directories) -> Catalogue:
    """Return the catalogue with the patches and rules of more directories."""
    if isinstance(directories, (str, PathLike)):
        directories = (directories,)
    return load([Path(each).expanduser() for each in directories])


def report(
    source: Readable,
    *,
    catalogue: Directories = (),
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Run all analyses, and detect which patches the kernel has.

    >>> import kcensus
    >>> report = kcensus.report("sample")
    >>> first = report.findings[0]
    >>> first.analysis, first.severity.name, "slab" in report.results
    ('kcopyd', 'WARNING', True)

    :param source: a drgn program, a target of :func:`kcensus.open_target`, or a path or name
    :param catalogue: a directory with patches and rules of your own, or several
    :param jobs: worker processes; by default one per CPU for compressed dumps, otherwise 1
    :param progress: shows how far long reads are
    :return: findings first, then the :class:`Result` of each analysis
    :raises CatalogueError: a file of your own is unusable; the message names it and the key
    """
    known = load_with(catalogue)
    return answer_of(reports.examine(context_of(source, jobs=jobs, progress=progress), known))


def patches(
    source: Readable,
    *,
    catalogue: Directories = (),
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """Detect the patches of this kernel, and their costs and savings.

    >>> import kcensus
    >>> states = kcensus.patches(kcensus.open_target("sample")).tables["patches"]
    >>> states.set_index("patch").loc["list-lru-xarray", "state"]
    'absent'

    :func:`report` has the same parameters.
    """
    known = load_with(catalogue)
    return answer_of(reports.price(context_of(source, jobs=jobs, progress=progress), known))


def patch_ids(catalogue: Directories = ()) -> list[str]:
    """Return the ids of all patches in the catalogue, and in directories of your own.

    >>> import kcensus
    >>> "list-lru-memory" in kcensus.patch_ids()
    True
    """
    return [*load_with(catalogue).patches]


def shown(value: Scalar, unit: str = "text") -> str:
    """Return a value for a screen: scaled, with its unit; a text is escaped.

    >>> import kcensus
    >>> kcensus.shown(1536, "bytes"), kcensus.shown("\\x1b[2J")
    ('1.5 KiB', '\\\\x1b[2J')

    :param unit: a value of :attr:`Result.units`
    :raises ValueError: there is no such unit
    """
    return printable(human(value, Unit(unit)))
