# SPDX-License-Identifier: LGPL-2.1-or-later
"""A capsule that does not fit: a limit is named only if it is the reason."""

from __future__ import annotations

import tempfile
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from kcensus.capsule import Recording
from kcensus.commands.collect.capsules import Capsules
from kcensus.commands.collect.files import TooLarge
from kcensus.commands.collect.order import CAPSULE, SIZE, Order
from kcensus.commands.collect.reasons import NO_ROOM, of_target
from kcensus.commands.shared.options import Reading
from kcensus.outputs import OutputError
from kcensus.progress import SilentProgress
from kcensus.reports import Report, Section
from kcensus.results import Result


def _written(redact: tuple[str, ...]) -> list[Any]:
    """Return what a process tells of a capsule of one analysis that does not fit."""

    def refuse(*_: object, **__: object) -> None:
        raise TooLarge

    recorder = SimpleNamespace(
        touched=np.ones(4, np.bool_), snapshot=None, sample=lambda *_: (1.0, 0.0)
    )
    recording = SimpleNamespace(
        recorder=recorder, find_names=lambda *_: None, probe_patches=lambda: None, write=refuse
    )
    told: list[Any] = []
    with tempfile.TemporaryFile() as file:
        files = {CAPSULE: file.fileno()}
        order = Order("record", None, Reading(), files, redact=redact)
        capsules = Capsules(
            order, cast(Recording, recording), SilentProgress(), lambda *each: told.append(each)
        )
        capsules.mark("waits", 0.1)
        result = Result("waits", "t", "k")
        capsules.write(Report(result, [Section("waits", result)]), 1 << 20)
    return told


def test_the_limit_of_size() -> None:
    (why,) = [value[1] for key, value in _written(()) if key == "left_out"]
    assert SIZE in why


def test_a_full_disk_is_an_error_of_the_output() -> None:
    with pytest.raises(OutputError, match="disk") as refused:
        _written(("names",))
    assert SIZE not in str(refused.value)
    assert of_target(refused.value, None) == NO_ROOM
