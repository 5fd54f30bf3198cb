# SPDX-License-Identifier: LGPL-2.1-or-later
"""A made-up analysis and target."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kcensus import cli
from tests.unit.faces.cli import Capture, Run
from tests.unit.synthetic import only_synthetic


@pytest.fixture
def synthetic() -> Iterator[None]:
    with only_synthetic():
        yield


@pytest.fixture
def run(synthetic: None, capsys: Capture) -> Run:
    def run(*args: str) -> tuple[int, str, str]:
        status = cli.main(["synthetic", *args])
        return (status, *capsys.readouterr())

    return run
