# SPDX-License-Identifier: LGPL-2.1-or-later
"""Capsules of a kernel with SLAB, with the truth of their guests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sample.guest import Guest

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def mixed() -> Guest:
    return Guest(DATA, "mixed")


@pytest.fixture(scope="session")
def bfq() -> Guest:
    return Guest(DATA, "bfq")


@pytest.fixture(scope="session", params=["mixed", "bfq"])
def guest(request: pytest.FixtureRequest) -> Guest:
    found: Guest = request.getfixturevalue(request.param)
    return found
