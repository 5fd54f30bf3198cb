# SPDX-License-Identifier: LGPL-2.1-or-later
"""The analyses: one module or package per question.

A module or package here that defines ``ANALYSIS`` (an :class:`Analysis`) *is* a command: the
command line, the report and the tests find it here by themselves. To add an analysis, add one.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import drgn

from kcensus.engine.memory import CHUNK_BYTES
from kcensus.progress import Progress, SilentProgress
from kcensus.results import Gap, Result
from kcensus.sources import Target


class AnalysisError(Exception):
    """The question cannot be answered on this target; the message is one sentence saying why."""


class ParamError(AnalysisError):
    """An option has a value that the analysis cannot take; the message names the option."""


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
    lacking: tuple[str, ...] = ()
    """One sentence for each of :attr:`Analysis.modules` whose debug info was not found."""
    recorded_for: tuple[str, ...] | None = None
    """See :attr:`kcensus.sources.model.Target.recorded_for`."""

    def result(self, analysis: str) -> Result:
        """A result that names this target, and what the analysis has to do without."""
        gaps = [Gap("module debug info", sentence, 1, _LACKING) for sentence in self.lacking]
        if self.recorded_for is not None and analysis not in self.recorded_for:
            reason = f"it was recorded for {', '.join(self.recorded_for) or 'nothing'}"
            gaps.append(Gap("capsule without this analysis", reason, 1, _UNRECORDED))
        return Result(
            analysis=analysis, target=self.name, kernel=self.kernel, live=self.live, gaps=gaps
        )


_LACKING = "what only this module's types describe is missing from the figures"
_UNRECORDED = (
    "any figure may lack what is not in the capsule; record it anew with "
    "`kcensus capsule create VMCORE OUT --analyses …`"
)
_MOST_JOBS = 8
"""Reading is bound by memory from there on, and each process costs some of it."""


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
    modules: tuple[str, ...] = ()
    """Kernel modules whose debug info it uses where the kernel has them loaded."""
    without_target: tuple[str, ...] = ()
    """Parameters that give it something else to work on; with one of them and no target spelled,
    none is opened."""

    def needs_target(self, spec: str | None, params: Mapping[str, object]) -> bool:
        """Whether a target has to be opened for ``params``."""
        return spec is not None or all(params.get(name) is None for name in self.without_target)

    def context(
        self,
        target: Target,
        *,
        progress: Progress | None = None,
        jobs: int | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> Context:
        """What the analysis needs to :attr:`run` on ``target``; loads module debug info.

        :param jobs: worker processes; by default as many as pay. Never more than one where the
            target cannot be shared between processes.
        """
        return Context(
            prog=target.prog,
            name=target.name,
            kernel=target.kernel,
            live=target.live,
            progress=progress or SilentProgress(),
            jobs=_jobs(target, jobs),
            chunk_bytes=chunk_bytes,
            lacking=tuple(target.need_modules(*self.modules)) if self.modules else (),
            recorded_for=target.recorded_for,
        )


def no_target(progress: Progress | None = None) -> Context:
    """What an analysis gets that does without a target: an empty program."""
    return Context(drgn.Program(), "(no target)", "", progress=progress or SilentProgress())


def _jobs(target: Target, wanted: int | None) -> int:
    """Worker processes pay where decompression is the work, and need a target they can share."""
    if not target.shareable:
        return 1
    if wanted is not None:
        return wanted
    return min(len(os.sched_getaffinity(0)), _MOST_JOBS) if target.compressed else 1


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
