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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kcensus.charts import ChartSpec, RamUse
    from kcensus.kernel.kernel import Kernel
    from kcensus.results import Answer, Gauge, Result
    from kcensus.results.tables import TableSpec


ALIASES = {
    "iostall": "iosched",
    "kpatches": "patches",
    "listlru": "list-lru",
    "negdent": "dentries",
    "slabutil": "slab",
    "whowaits": "waits",
}
"""Commands by other names, which the command line, crash and drgn take, too."""


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
    choices: tuple[str, ...] = ()
    """Names to complete; the value is several of them, separated by commas."""
    is_file: bool = False
    """Whether shells complete the value to a file."""


@dataclass(frozen=True)
class Analysis:
    """One question that kcensus answers."""

    name: str
    question: str
    """One line for ``--help``."""
    runner: str = ""
    """``module:function``; the function is called as ``run(kernel, **params)`` with a
    :class:`~kcensus.kernel.kernel.Kernel` and returns an :class:`~kcensus.results.Answer`. By
    default ``run`` of ``run.py`` in the folder."""
    specs: str = ""
    """``module:TABLES``, a tuple with the :class:`TableSpec` of every table of the answer; by
    default of ``tables.py`` in the folder. The module may have ``CHARTS``, a tuple of
    :class:`ChartSpec` that pages and notebooks draw, and :attr:`ram`."""
    description: str = ""
    """Meaning of the figures; shown by ``kcensus NAME --help``."""
    examples: tuple[tuple[str, str], ...] = ()
    """(command line, its purpose)."""
    params: tuple[Param, ...] = ()
    headline: tuple[str, ...] = ()
    """Keys of the summary for the line of the report, at most three."""
    first_tables: tuple[str, ...] = ()
    """Two or three tables to show first, those of memory before those of a trace; the screen prints
    the ones that the result has and names the others."""
    has_picture: bool = False
    """Whether the result has a :data:`kcensus.results.graphs.PICTURE` for pages and ``--dot``."""
    gauges: str = ""
    """``module:function``; the function takes a :class:`~kcensus.kernel.kernel.Kernel` and returns
    within milliseconds a :class:`~kcensus.results.Gauge` for each of the kernel's own counters. It
    leaves out counters that are missing or unreadable."""
    modules: tuple[str, ...] = ()
    """Kernel modules whose debug info the analysis uses if the kernel has them loaded."""
    needs: tuple[str, ...] = ()
    """Members, such as ``struct mem_cgroup.css``, without which it fails: older kernels lack
    them."""
    reads_stacks: bool = False
    """Whether it unwinds stacks, and reads machine code, for which some architectures have no
    reader."""
    reads_arguments: bool = False
    """Whether it reads arguments of functions, which only DWARF locates."""
    more_modules: str = ""
    """``module:function``; the function returns further ones, which readers declare."""
    without_target: tuple[str, ...] = ()
    """Parameters that replace the target: if one of them is given and no target is, none is
    opened."""
    plain: str = ""
    """What it looks at, for people who do not know the kernel: words of a list."""

    def needs_target(self, spec: str | None, params: Mapping[str, object]) -> bool:
        """Return whether a target has to be opened for ``params``."""
        return spec is not None or all(params.get(name) is None for name in self.without_target)

    @property
    def needed_modules(self) -> tuple[str, ...]:
        """All kernel modules whose debug info the analysis uses if they are loaded."""
        return (*self.modules, *(_named(self.more_modules)() if self.more_modules else ()))

    def load(self) -> Callable[..., Answer]:
        """Import the function that answers the question."""
        function: Callable[..., Answer] = _named(self.runner)
        return function

    def tables(self) -> tuple[TableSpec, ...]:
        """Import the declarations of the tables."""
        return tuple(_named(self.specs)) if self.specs else ()

    def chart_specs(self) -> tuple[ChartSpec, ...]:
        """Import the declarations of the charts."""
        return tuple(self._beside_tables("CHARTS") or ())

    @property
    def ram(self) -> Callable[[Result], Iterable[RamUse]] | None:
        """The function that returns the memory accounted for by a result, or None.

        No byte is accounted for by two analyses.
        """
        function: Callable[[Result], Iterable[RamUse]] | None = self._beside_tables("ram")
        return function

    def _beside_tables(self, name: str) -> Any:
        """Import an object from the module of the tables, or return None."""
        module = self.specs.partition(":")[0]
        return getattr(importlib.import_module(module), name, None) if module else None

    def gauges_of(self, kernel: Kernel) -> Sequence[Gauge]:
        """Read the kernel's own counters, in milliseconds."""
        return tuple(_named(self.gauges)(kernel)) if self.gauges else ()


def _named(place: str) -> Any:
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
                known[analysis.name] = replace(
                    analysis,
                    runner=analysis.runner or f"{package.__name__}.run:run",
                    specs=analysis.specs or f"{package.__name__}.tables:TABLES",
                )
    return dict(sorted(known.items()))
