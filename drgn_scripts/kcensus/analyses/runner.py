# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run an analysis on a target or a program, and convert its errors into one sentence."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any

import drgn

import kcensus.kernel.memcg.charges  # noqa: F401  # sees the pages in the pass of any analysis
from kcensus.analyses import Analysis, AnalysisError
from kcensus.engine.memory import CHUNK_BYTES
from kcensus.engine.slub.slabs import UnsupportedAllocator
from kcensus.engine.workers import Each, WorkersKilled, each
from kcensus.human import listed
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.knobs import has_knob
from kcensus.kernel.machine import machine
from kcensus.kernel.vfs.list_lru import NoListLru
from kcensus.limits import memory
from kcensus.progress import Progress
from kcensus.results import Answer, Check, CheckStatus, Finding, Gap, Gauge, Machine, Result, Unit
from kcensus.sources import Target, faults
from kcensus.sources.capsule import NotRecorded
from kcensus.sources.debuginfo.packages import module_gaps, modules_of
from kcensus.sources.faults import ZEROED
from kcensus.sources.model import kernel_release
from kcensus.text import printable

_MAX_JOBS = 8
"""With more processes, memory bandwidth is the limit, and each process takes memory."""
_MAX_NAMED = 16
"""Most variables to name in a gap."""
_CHANGED = "the kernel changed while it was read"
_DOUBTFUL = "counts as missing: figures that need it are missing; pass the System.map with -s"
UNSUPPORTED = "does not support this kernel"
"""In sentences about kernels whose layout kcensus does not know: no debug info helps."""
LACKING = "the debug info or the memory model of this kernel lacks what"
"""Beginning of sentences about types and variables that the debug info lacks."""
_NO_MEMBER = "has no member"
"""In errors of drgn: the type is known."""
UNEXPECTED = (drgn.FaultError, AttributeError, OverflowError, TypeError)
"""Causes of an :class:`AnalysisError` whose traceback may be informative."""
_TORN = (
    ArithmeticError,
    AttributeError,
    drgn.FaultError,
    drgn.OutOfBoundsError,
    IndexError,
    KeyError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors of an analysis that trusts a value although memory changes between reads."""


@dataclass(frozen=True)
class Context:
    """A kernel to analyze, and the target it was opened from."""

    kernel: Kernel
    target: Target | None = None
    """None for a program that was opened elsewhere, and without a target."""
    now: Kernel | None = None
    """The running kernel, where :attr:`kernel` has its memory of a moment ago: its counters tell
    how far they have moved since."""

    @staticmethod
    def of(
        target: Target,
        *,
        progress: Progress | None = None,
        jobs: int | None = None,
        chunk_bytes: int | None = None,
        divide: Each | None = None,
    ) -> Context:
        """Make the context of analyses on ``target``.

        :param jobs: worker processes; by default one per CPU (at most 8) for compressed dumps, else
            one. Always one where the target cannot be shared between processes
        :param divide: does the tasks of bulk reads, in place of processes of this machine
        """
        kernel = Kernel(
            target.prog,
            live=target.live,
            is_capsule=target.recorded_for is not None,
            has_pseudonyms=target.has_pseudonyms,
            # Threads of a cluster's client must not be forked.
            jobs=_jobs(target, jobs) if divide is None else 1,
            chunk_bytes=chunk_bytes or CHUNK_BYTES,
            progress=progress,
            divide=divide or each,
        )
        return Context(kernel, target)

    @staticmethod
    def without_target(progress: Progress | None = None) -> Context:
        """Make the context of an analysis that does without a target: an empty program."""
        return Context(Kernel(drgn.Program(), progress=progress))

    @property
    def name(self) -> str:
        """Name of the target as given by its user; printable."""
        return self.target.name if self.target is not None else "(program)"

    @property
    def release(self) -> str:
        """Kernel release; empty without a kernel."""
        if self.target is not None:
            return self.target.kernel
        try:
            return "" if self.kernel.prog.platform is None else kernel_release(self.kernel.prog)
        except LookupError:  # not a kernel
            return ""

    @property
    def machine(self) -> Machine:
        """The machine, as every output names it."""
        if self.target is None:
            return machine(self.kernel)
        known = machine(self.kernel)
        return replace(
            known,
            boot=self.target.boot or known.boot,
            has_pseudonyms=self.target.has_pseudonyms,
            types=self.target.type_sources,
        )

    @property
    def placeholders(self) -> dict[str, str]:
        """Words for placeholders in commands of kcensus: those that open the target, if known."""
        words = None if self.target is None else self.target.words
        return {} if words is None else {"TARGET": words}

    def truncation(self) -> list[Gap]:
        """Return a gap for the missing end of a truncated dump; empty for any other target."""
        missing = self.target.missing_end if self.target is not None else ""
        effect = "figures are lower bounds: objects in the missing memory are not counted"
        return [Gap("end of the dump", missing, 1, effect)] if missing else []

    def need_modules(self, *names: str) -> list[str]:
        """Load module debug info with :meth:`Target.need_modules`; return [] without a target."""
        return self.target.need_modules(*names) if self.target is not None and names else []

    def load_modules(self, analyses: Sequence[Analysis]) -> None:
        """Load the module debug info of all analyses first, since they share readers."""
        self.need_modules(
            *sorted({name for analysis in analyses for name in analysis.needed_modules})
        )

    def run(self, analysis: Analysis, **params: Any) -> Result:
        """Run an analysis; on a running kernel, once more after an error typical of torn memory.

        :param params: values of :attr:`Analysis.params`; missing ones have their default
        :raises AnalysisError: the question cannot be answered
        :raises BadCapsule: the capsule is corrupt
        """
        try:
            return (self._run_twice if self.kernel.live else self._run)(analysis, params)
        except NotRecorded as error:
            raise AnalysisError(str(error)) from error
        except (UnsupportedAllocator, NoListLru) as error:
            raise AnalysisError(f"{analysis.name} {UNSUPPORTED}: {error}") from error
        except (LookupError, drgn.ObjectAbsentError) as error:
            if _NO_MEMBER in str(error):
                raise AnalysisError(f"{analysis.name} {UNSUPPORTED}: {error}") from error
            is_drgns = isinstance(error, drgn.ObjectNotFoundError)
            if isinstance(error, (IndexError, KeyError)) and not is_drgns:
                raise  # a bug of ours, not something missing from the target
            raise AnalysisError(f"{LACKING} {analysis.name} needs: {error}") from error
        except drgn.FaultError as error:
            raise AnalysisError(faults.sentence(error, analysis.name, self.kernel.live)) from error
        except WorkersKilled as error:
            raise AnalysisError(str(error)) from error
        except MemoryError as error:
            raise AnalysisError(memory.exceeded(analysis.name)) from error
        except _TORN as error:
            is_of_types = isinstance(error, UNEXPECTED)
            recorded_for = (self.target and self.target.recorded_for) or ()
            if not is_of_types or analysis.name not in recorded_for:
                raise  # a bug of ours: types come from debug info
            raise AnalysisError(
                f"types, variables or memory in the capsule do not fit {analysis.name} ({error}); "
                "it is of an older kcensus, or damaged: record the vmcore again"
            ) from error

    def _run_twice(self, analysis: Analysis, params: Mapping[str, Any]) -> Result:
        """Run again after an error of torn memory, which rarely hits the same place twice."""
        try:
            return self._run(analysis, params)
        except drgn.ObjectNotFoundError:  # a KeyError, but symbols are never torn
            raise
        except _TORN:
            pass
        # Outside of the handler, which would keep the arrays of the first run in memory.
        return replace(self, kernel=self.kernel.renewed())._run(analysis, params)

    def _run(self, analysis: Analysis, params: Mapping[str, Any]) -> Result:
        defaults = {param.name: param.default for param in analysis.params}
        gaps = self._gaps(analysis)
        before = self._counted(analysis, self.kernel)
        answer = analysis.load()(self.kernel, **{**defaults, **params})
        after = self._counted(analysis, self.now.renewed() if self.now else self.kernel)
        answer = replace(
            answer,
            checks=[self._drifted(check, before, after) for check in answer.checks],
            findings=[self._possible(finding) for finding in answer.findings],
            gaps=gaps + answer.gaps,
        )
        result = self._result(analysis.name, answer)
        files = {name.upper(): params.get(name) for name in analysis.without_target}
        given = {name: quote(file) for name, file in files.items() if isinstance(file, str)}
        return replace(result, placeholders=self.placeholders | given)

    def _counted(self, analysis: Analysis, kernel: Kernel) -> dict[str, Gauge]:
        try:
            gauges = analysis.gauges_of(kernel) if kernel.live else ()
        except Exception:  # a check then lacks only the drift of its counter
            return {}
        return {gauge.source: gauge for gauge in gauges if gauge.source}

    def _drifted(
        self, check: Check, before: Mapping[str, Gauge], after: Mapping[str, Gauge]
    ) -> Check:
        if not self.kernel.live:
            return check
        if check.source in before and check.source in after:
            first, last = (self._reading(each[check.source], check) for each in (before, after))
            check = check.over(first, check.counter, last)
        if check.moved is None and check.status is CheckStatus.DIFFER:
            check = replace(check, note="; ".join(filter(None, (check.note, _CHANGED))))
        return check

    def _reading(self, gauge: Gauge, check: Check) -> int:
        is_finer = (gauge.unit, check.unit) == (Unit.BYTES, Unit.PAGES)
        return gauge.value >> self.kernel.memory.page_shift if is_finer else gauge.value

    def _possible(self, finding: Finding) -> Finding:
        needed = dict.fromkeys(knob for remedy in finding.remedies for knob in remedy.knobs)
        lacking = [knob for knob in needed if has_knob(self.kernel, knob) is False]
        if not lacking:
            return finding
        possible = tuple(each for each in finding.remedies if not set(each.knobs) & set(lacking))
        no_remedy = finding.no_remedy
        if not possible and not no_remedy:
            no_remedy = f"this kernel lacks {' and '.join(lacking)}"
        return replace(finding, remedies=possible, no_remedy=no_remedy)

    def _gaps(self, analysis: Analysis) -> list[Gap]:
        gaps = self.truncation()
        lacking = self.need_modules(*analysis.needed_modules)
        own = module_gaps(lacking, "structures of these modules are not read")
        self.kernel.untyped_modules |= {name for gap in own for name in modules_of(gap)}
        gaps += own
        return gaps + self._unrecorded(analysis)

    def _doubts(self) -> list[Gap]:
        doubts = self.target.doubts if self.target is not None else {}
        return [
            Gap(f"symbol {printable(name)}", printable(reason), 1, _DOUBTFUL)
            for name, reason in doubts.items()
        ]

    def _lost_variables(self) -> list[Gap]:
        names = self.kernel.lost_variables
        effect = (
            f"figures that depend on these may be wrong: {printable(listed(names, _MAX_NAMED))}"
        )
        return [Gap("variables", ZEROED, len(names), effect)] if names else []

    def _unrecorded(self, analysis: Analysis) -> list[Gap]:
        recorded_for = self.target.recorded_for if self.target is not None else None
        if recorded_for is None or analysis.name in recorded_for:
            return []
        return [
            Gap(
                "capsule without this analysis",
                f"it was recorded for {', '.join(recorded_for) or 'nothing'}",
                1,
                "figures may be too low: the capsule lacks memory; record the vmcore again with "
                f"`kcensus capsule create VMCORE OUT --analyses {analysis.name}`",
            )
        ]

    def left_out(self, analysis: Analysis) -> Result | None:
        """Return the empty result of an analysis that a capsule was not recorded for.

        :return: None if the target was recorded for it, or is not a capsule
        """
        gaps = self._unrecorded(analysis)
        nothing = f"the capsule was recorded without {analysis.name}"
        return self._result(analysis.name, Answer(nothing=nothing, gaps=gaps)) if gaps else None

    def _result(self, name: str, answer: Answer) -> Result:
        if self.release and answer.measures:
            contradictions = self.kernel.size.contradictions
            gaps = [Gap(each.what, each.reason, 1, each.effect) for each in contradictions]
            gaps += self._lost_variables()
            answer = replace(answer, gaps=answer.gaps + gaps)
        answer = replace(answer, gaps=answer.gaps + self._doubts())
        parts = {key: value for key, value in vars(answer).items() if key != "source"}
        target = self.name if self.target is not None or self.release else "(no target)"
        return Result(
            name,
            answer.source or target,
            self.release,
            self.kernel.live,
            self.machine if self.release else None,
            **parts,
        )


def _jobs(target: Target, wanted: int | None) -> int:
    if not target.shareable:
        return 1
    if wanted is not None:
        return wanted
    return min(len(os.sched_getaffinity(0)), _MAX_JOBS) if target.compressed else 1
