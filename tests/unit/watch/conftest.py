# SPDX-License-Identifier: LGPL-2.1-or-later
"""Each test starts with the same state."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from kcensus.watch import sampler
from tests.unit.watch import making


@pytest.fixture(autouse=True)
def _state(request: pytest.FixtureRequest) -> Iterator[None]:
    making.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "time", making.clock)
        if request.node.get_closest_marker("slow") is None:
            # It takes 0.3 s in a process as large as that of the tests.
            patch.setattr(sampler, "gc", SimpleNamespace(collect=int))
        yield
