# SPDX-License-Identifier: LGPL-2.1-or-later
"""The analyses: one folder per question.

A folder here whose package defines ``ANALYSIS`` (an :class:`Analysis`) *is* a command: the
command line, the report and the tests find it by themselves. To add an analysis, add a folder.

``ANALYSIS`` is metadata, cheap to import; the code that answers the question is named in it and
imported when it runs.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kcensus.kernel.kernel import Kernel
    from kcensus.results import Answer, Gauge, Result
    from kcensus.results.charts import ChartSpec, RamUse
    from kcensus.results.graphs import Picture
    from kcensus.results.tables import TableSpec


class AnalysisError(Exception):
    """The question cannot be answered on this target; the message is one sentence saying why."""


class ParamError(AnalysisError):
    """An option has a value that the analysis cannot take; the message names the option."""


@dataclass(frozen=True)
class Param:
    """An option of one analysis, described without naming a command-line library."""

    name: str
    """Python identifier; the option is ``--name`` with dashes."""
    type: type[int] | type[float] | type[str] | type[bool]
    default: int | float | str | bool | None
    help: str


@dataclass(frozen=True)
class Analysis:
    """One question that kcensus answers."""

    name: str
    """The command's name."""
    question: str
    """One line for ``--help``."""
    runner: str
    """``module:function``; the function is called as ``run(kernel, **params)`` with a
    :class:`~kcensus.kernel.kernel.Kernel` and returns an :class:`~kcensus.results.Answer`."""
    specs: str = ""
    """``module:TABLES``, a tuple with the :class:`TableSpec` of every table of the answer."""
    charts: str = ""
    """``module:CHARTS``, a tuple of :class:`ChartSpec`: what pages and notebooks draw."""
    ram: str = ""
    """``module:function``; the function takes a :class:`~kcensus.results.Result` and returns the
    :class:`RamUse` of what the analysis accounts for, a byte of another analysis never."""
    description: str = ""
    """What the figures mean; shown by ``kcensus NAME --help``."""
    examples: tuple[tuple[str, str], ...] = ()
    """(command line, what it is for)."""
    params: tuple[Param, ...] = ()
    headline: tuple[str, ...] = ()
    """Up to three keys of the summary that tell most; the line of the report shows them."""
    first_tables: tuple[str, ...] = ()
    """Two or three tables that tell most, of memory before those of a trace; the screen shows those
    of the result first and names the others."""
    picture: str = ""
    """``module:function``, where it makes a graph; the function takes a
    :class:`~kcensus.results.Result` and returns the :class:`Picture` that pages and ``--dot``
    draw."""
    gauges: str = ""
    """``module:function``; the function takes a :class:`~kcensus.kernel.kernel.Kernel` and returns
    the :class:`~kcensus.results.Gauge` of each number that the kernel keeps of the subject, in
    milliseconds. One that the kernel lacks, or that cannot be read, is left out."""
    modules: tuple[str, ...] = ()
    """Kernel modules whose debug info it uses where the kernel has them loaded."""
    without_target: tuple[str, ...] = ()
    """Parameters that replace the target: if one of them is given and no target is, none is
    opened."""

    def needs_target(self, spec: str | None, params: Mapping[str, object]) -> bool:
        """Return whether a target has to be opened for ``params``."""
        return spec is not None or all(params.get(name) is None for name in self.without_target)

    def load(self) -> Callable[..., Answer]:
        """Import the function that answers the question."""
        function: Callable[..., Answer] = _named(self.runner)
        return function

    def tables(self) -> tuple[TableSpec, ...]:
        """Import the declarations of its tables."""
        return tuple(_named(self.specs)) if self.specs else ()

    def chart_specs(self) -> tuple[ChartSpec, ...]:
        """Import the declarations of its charts."""
        return tuple(_named(self.charts)) if self.charts else ()

    def ram_of(self, result: Result) -> Sequence[RamUse]:
        """Return the memory that a result of it accounts for."""
        return tuple(_named(self.ram)(result)) if self.ram else ()

    def gauges_of(self, kernel: Kernel) -> Sequence[Gauge]:
        """Read what the kernel itself counts of the subject, in milliseconds."""
        return tuple(_named(self.gauges)(kernel)) if self.gauges else ()

    def picture_of(self, result: Result) -> Picture | None:
        """Return the picture of the graph in a result; ``None`` where it makes none."""
        return _named(self.picture)(result) if self.picture else None


def _named(place: str) -> Any:
    """Import the object that ``module:name`` names."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def analyses() -> Mapping[str, Analysis]:
    """Return all analyses by name, in alphabetical order."""
    return _discover()


@functools.cache
def _discover() -> Mapping[str, Analysis]:
    known = {}
    for info in pkgutil.iter_modules(__path__):
        if info.ispkg:
            package = importlib.import_module(f"{__name__}.{info.name}")
            analysis = getattr(package, "ANALYSIS", None)
            if isinstance(analysis, Analysis):
                known[analysis.name] = analysis
    return dict(sorted(known.items()))
