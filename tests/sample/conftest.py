# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bundled samples, with what their guests' kernels counted."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.results import Result
from kcensus.sources import Target, open_target

_TRUTH = Path(__file__).parent / "truth"


class Sample:
    """A sample, opened."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.target: Target = open_target(name)
        self.truth: dict[str, Any] = json.loads((_TRUTH / f"{name}.json").read_text())
        self.run = cache(self._run)

    def _run(self, name: str) -> Result:
        """What an analysis says of it."""
        analysis = analyses()[name]
        return Context.of(self.target).run(analysis)


@pytest.fixture(scope="session", params=["sample", "sample-after"])
def sample(request: pytest.FixtureRequest) -> Sample:
    return Sample(request.param)


@pytest.fixture(scope="session")
def before() -> Sample:
    return Sample("sample")


@pytest.fixture(scope="session")
def after() -> Sample:
    return Sample("sample-after")
