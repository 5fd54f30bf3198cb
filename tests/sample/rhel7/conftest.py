# SPDX-License-Identifier: LGPL-2.1-or-later
"""Capsules of RHEL 7.9, with the truth of their guests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.kernel.kernel import Kernel
from kcensus.results import Result
from kcensus.sources import open_target

DATA = Path(__file__).parent / "data"


class Guest:
    """A guest; each analysis runs once."""

    def __init__(self, name: str) -> None:
        target = open_target(DATA / f"{name}.capsule")
        self.truth: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
        self.prog = target.prog
        self.kernel = Kernel(target.prog)
        context = Context.of(target)
        self.results: dict[str, Result] = {
            name: context.run(analysis) for name, analysis in analyses().items()
        }

    def value(self, analysis: str, key: str) -> Any:
        """Return a figure of the summary."""
        return self.results[analysis].summary[key].value


@pytest.fixture(scope="session")
def mixed() -> Guest:
    return Guest("mixed")


@pytest.fixture(scope="session")
def cfq() -> Guest:
    return Guest("cfq")


@pytest.fixture(scope="session", params=["mixed", "cfq"])
def guest(request: pytest.FixtureRequest) -> Guest:
    found: Guest = request.getfixturevalue(request.param)
    return found
