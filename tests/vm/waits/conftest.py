# SPDX-License-Identifier: LGPL-2.1-or-later
"""Fixtures: a guest with tasks that wait, and what kcensus says of it."""

from __future__ import annotations

import pytest

from kcensus.results import Result
from tests.vm.cases import analyzed
from tests.vm.waits.test_graph import Case, open_case


@pytest.fixture(scope="module")
def case(kernel: str, request: pytest.FixtureRequest) -> Case:
    return open_case(kernel, request.param)


@pytest.fixture(scope="module")
def result(case: Case) -> Result:
    return analyzed(case.target, "waits")
