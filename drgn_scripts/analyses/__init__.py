# SPDX-License-Identifier: LGPL-2.1-or-later
"""The analyses: one module per question.

A module of this package that defines ``ANALYSIS`` (an :class:`Analysis`) *is* a command: the
command line, the report and the tests find it here by themselves. To add an analysis, add a file.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import drgn

from drgn_scripts.engine.memory import CHUNK_BYTES
from drgn_scripts.progress import Progress, SilentProgress
from drgn_scripts.results import Result


class AnalysisError(Exception):
    """The question cannot be answered on this target; the message is one sentence saying why."""


@dataclass(frozen=True)
class Context:
    """What an analysis works on."""

    prog: drgn.Program
    name: str
    """The target as its user would call it."""
    kernel: str
    """Kernel release."""
    live: bool = False
    progress: Progress = field(default_factory=SilentProgress)
    jobs: int = 1
    """Worker processes for bulk reads; 1 where the target cannot be shared between processes."""
    chunk_bytes: int = CHUNK_BYTES

    def result(self, analysis: str) -> Result:
        """An empty result that names this target."""
        return Result(analysis=analysis, target=self.name, kernel=self.kernel, live=self.live)


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
    run: Callable[..., Result]
    """``run(context, **params)``."""
    description: str = ""
    """What the figures mean; shown by ``kcensus NAME --help``."""
    examples: tuple[tuple[str, str], ...] = ()
    """(command line, what it is for)."""
    params: tuple[Param, ...] = ()


@functools.cache
def analyses() -> Mapping[str, Analysis]:
    """All analyses by name, in alphabetical order."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        analysis = getattr(module, "ANALYSIS", None)
        if isinstance(analysis, Analysis):
            found[analysis.name] = analysis
    return dict(sorted(found.items()))
