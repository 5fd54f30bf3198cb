# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dumps of the lab, opened and analyzed, and results compared."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import drgn
import pytest
from pandas.testing import assert_frame_equal

from kcensus import cli
from kcensus.analyses import Analysis, AnalysisError, analyses
from kcensus.analyses.runner import Context
from kcensus.render.json import write_json
from kcensus.results import Finding, Remedy, Result
from kcensus.sources import Target, open_target
from kcensus.sources.faults import reason
from tests.lab import Dump

_Oracle = TypeVar("_Oracle")


def opened(dump: Dump, *modules: str, form: str = "") -> Target:
    """Open a dump, by default in its first format, with the debug info of some modules loaded."""
    path = dump.formats[form] if form else dump.core
    target = open_target(str(path), dump.debug)
    assert target.need_modules(*modules) == []
    return target


def analyzed(target: Target, name: str, **params: Any) -> Result:
    return Context.of(target, jobs=1).run(analyses()[name], **params)


@dataclass(frozen=True)
class Case(Generic[_Oracle]):
    """A dump, what an analysis says of it, and what a slow walk says."""

    dump: Dump
    target: Target
    result: Result
    oracle: _Oracle

    @staticmethod
    def of(
        dump: Dump,
        target: Target,
        name: str,
        walk: Callable[[drgn.Program], _Oracle],
        **params: Any,
    ) -> Case[_Oracle]:
        return Case(dump, target, analyzed(target, name, **params), walk(target.prog))

    @property
    def prog(self) -> drgn.Program:
        return self.target.prog

    @property
    def page(self) -> int:
        """Bytes of a page."""
        return int(self.prog["PAGE_SIZE"])

    def figure(self, name: str) -> Any:
        return self.result.summary[name].value

    def table(self, name: str) -> Any:  # pandas-stubs: a cell may be any scalar
        return self.result.tables[name].frame


def finding(result: Result, id_: str) -> Finding:
    (match,) = (each for each in result.findings if each.id == id_)
    return match


def remedy(result: Result, id_: str, text: str) -> Remedy:
    """Return the remedy of a finding whose command or effect has ``text``."""
    remedies = finding(result, id_).remedies
    return next(each for each in remedies if text in each.command + each.effect)


def assert_same(found: Result, expected: Result) -> None:
    """Compare all that two runs of an analysis say."""
    assert found.summary == expected.summary
    assert (found.checks, found.gaps) == (expected.checks, expected.gaps)
    assert found.findings == expected.findings
    assert list(found.tables) == list(expected.tables)
    for name, table in found.tables.items():
        assert_frame_equal(table.frame, expected.tables[name].frame)


def document(target: Target, analysis: Analysis, jobs: int = 1, **options: Any) -> str:
    """Return the JSON document of an analysis as the command writes it, or why there is none."""
    out = io.StringIO()
    try:
        context = Context.of(replace(target, name="target"), jobs=jobs, **options)
        write_json(context.run(analysis), out)
    except AnalysisError as error:
        return f"AnalysisError: {error}"
    except drgn.FaultError as error:
        return f"FaultError: {reason(error)}"
    return out.getvalue()


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any, str]:
    """Run a command; return its exit status, its JSON document and its messages."""
    capsys.readouterr()
    status = cli.main([*words, "--json"])
    out, err = capsys.readouterr()
    return status, json.loads(out), err
