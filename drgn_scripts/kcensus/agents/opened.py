# SPDX-License-Identifier: LGPL-2.1-or-later
"""An open target, with the results that were computed for it."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kcensus import saved
from kcensus.agents.answers import AnswerError
from kcensus.agents.messages import Settings
from kcensus.analyses import Analysis, analyses
from kcensus.analyses.runner import Context
from kcensus.catalogue import load
from kcensus.progress import Progress
from kcensus.reports import Report, analyse, examine, price, report
from kcensus.results import Result
from kcensus.samples import CAPSULES, capsule
from kcensus.sources import Target, open_target
from kcensus.text import printable

_MAX_RESULTS = 32
"""Results kept for a target; options make others of one analysis."""


@dataclass(frozen=True)
class _Remembering(Context):
    """A context that runs an analysis once; what is running changes between two questions."""

    results: dict[str, Result] = field(default_factory=dict)

    def run(self, analysis: Analysis, **params: Any) -> Result:
        if self.kernel.live:
            return super().run(analysis, **params)
        key = f"{analysis.name} {sorted(params.items())!r}"
        if key not in self.results:
            if len(self.results) >= _MAX_RESULTS:
                self.results.clear()
            self.results[key] = super().run(analysis, **params)
        return self.results[key]


class Opened:
    """A target, opened when the first question needs it; or the saved report of one."""

    def __init__(self, spec: str | None, settings: Settings, progress: Progress) -> None:
        self._spec, self._settings, self._progress = spec, settings, progress
        self._context: Context | None = None
        self._saved = saved.load(spec) if spec and saved.is_document(spec) else None
        self._report: Report | None = None

    @property
    def notes(self) -> list[str]:
        """Sentences about how the target was opened."""
        target = self._context.target if self._context else None
        return [*target.notes] if target else []

    def target(self) -> Target:
        """Return the target itself.

        :raises AnswerError: there is only a saved report of it
        """
        if self._saved:
            raise AnswerError("a saved report has no memory to read; ask about the dump itself")
        target = self._fresh().target
        assert target is not None
        return target

    def report(self) -> Report:
        """Return the report: all analyses, and patches."""
        if self._saved:
            return self._saved
        context = self._fresh()
        if self._report is None or context.kernel.live:
            self._report = examine(context, load())
        return self._report

    def compared(self, names: Collection[str]) -> Report:
        """Return a report of some analyses, for a comparison."""
        if made := self._saved:
            return replace(made, sections=[each for each in made.sections if each.name in names])
        return report(self._fresh(), [each for each in analyses().values() if each.name in names])

    def has(self) -> Collection[str]:
        """Return the analyses that there are."""
        made = self._saved
        return {*made.results, *made.errors} if made else analyses()

    def result(self, name: str, params: Mapping[str, Any] | None = None) -> Result:
        """Return the result of an analysis, or of ``patches``.

        :param params: options other than their defaults
        :raises AnswerError: a saved report lacks it, or cannot have the options
        """
        if self._saved:
            return self._of_saved(self._saved, name, params or {})
        if name == "patches":
            return price(self._fresh(), load(), **(params or {}))
        return analyse(self._fresh(), analyses()[name], **(params or {}))

    def _of_saved(self, made: Report, name: str, params: Mapping[str, Any]) -> Result:
        if params:
            raise AnswerError(f"a saved report cannot be computed again with {', '.join(params)}")
        if name not in made.results:
            why = made.errors.get(name) or f"it has {', '.join(made.results) or 'no result'}"
            raise AnswerError(f"the saved report has no result of {name}: {printable(why)}")
        return made.results[name]

    def _fresh(self) -> Context:
        """Return the context; for a running kernel, one without results of earlier reads."""
        if self._context is None:
            with self._progress.step("opening the target", 0):
                target = open_target(
                    self._spec,
                    [Path(each) for each in self._settings.symbols],
                    allow_truncated=self._settings.allow_truncated,
                )
            # One process, which the limit of memory is for.
            made = Context.of(_called(target, self._spec), progress=self._progress, jobs=1)
            self._context = _Remembering(made.kernel, made.target)
        elif self._context.kernel.live:
            self._context = replace(self._context, kernel=self._context.kernel.renewed())
        return self._context


def _called(target: Target, path: str | None) -> Target:
    """Return a target, a sample by the name that people know it by."""
    for name in CAPSULES:
        if path == str(capsule(name)):
            words = (target.words or name).replace(shlex.quote(str(path)), name)
            return replace(target, name=name, words=words)
    return target
