# SPDX-License-Identifier: LGPL-2.1-or-later
"""Directory trees of *synthetic* kernels."""

from __future__ import annotations

import pytest

from tests.unit.analyses.dentries.scenes import populated
from tests.unit.fakekernel import FILE_ERAS
from tests.unit.fakekernel.dcache import FakeDcache


@pytest.fixture(params=list(FILE_ERAS))
def dcache(request: pytest.FixtureRequest) -> FakeDcache:
    return FakeDcache(request.param)


@pytest.fixture
def plain() -> FakeDcache:
    return populated()[0]
