# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bundled samples, with what their guests' kernels counted."""

from __future__ import annotations

import json
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pytest

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.reports import Report, examine
from kcensus.results import Result
from kcensus.sources import Target, open_target
from tests.running import document, recorded_analyses

_TRUTH = Path(__file__).parent / "truth"


NAMES = ("sample", "sample-after")
"""Of one workload."""
IO = "sample-io"
"""A guest whose disk's scheduler starves writes."""
WAITS = "sample-waits"
"""A guest with a deadlock."""


class Sample:
    """A sample; what is computed of it is computed once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.target: Target = open_target(name)
        self.truth: dict[str, Any] = json.loads((_TRUTH / f"{name}.json").read_text())
        self.context = Context.of(self.target)
        self.run = cache(self._run)

    @property
    def analyses(self) -> tuple[str, ...]:
        """The analyses that it was recorded for."""
        return recorded_analyses(self.name)

    def _run(self, name: str) -> Result:
        return self.context.run(analyses()[name])

    @cached_property
    def report(self) -> Report:
        return examine(self.context)

    @cached_property
    def document(self) -> Any:
        """The JSON of the report."""
        return json.loads(document(self.report))


open_sample = cache(Sample)


@pytest.fixture(scope="session", params=NAMES)
def sample(request: pytest.FixtureRequest) -> Sample:
    return open_sample(request.param)


@pytest.fixture(scope="session")
def starved() -> Sample:
    return open_sample(IO)


@pytest.fixture(scope="session")
def deadlocked() -> Sample:
    return open_sample(WAITS)


@pytest.fixture(scope="session")
def before() -> Sample:
    return open_sample("sample")


@pytest.fixture(scope="session")
def after() -> Sample:
    return open_sample("sample-after")
