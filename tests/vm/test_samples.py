# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bundled samples have the memory that every analysis reads."""

from __future__ import annotations

import pytest

from kcensus.analyses import analyses
from kcensus.sources import open_target
from tests.lab.samples import GUESTS


@pytest.mark.parametrize("name", list(GUESTS))
def test_samples_hold_every_analysis(name: str) -> None:
    recorded_for = open_target(name).recorded_for or ()
    missing = sorted(set(analyses()) - set(recorded_for))
    assert not missing, "record the samples again with `./run samples`"
