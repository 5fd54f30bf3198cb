# SPDX-License-Identifier: LGPL-2.1-or-later
"""Each test starts with the same state."""

from __future__ import annotations

import pytest

from tests.unit.watch import making


@pytest.fixture(autouse=True)
def _state() -> None:
    making.reset()
