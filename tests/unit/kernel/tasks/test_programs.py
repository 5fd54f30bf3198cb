# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs that suspend or freeze, by the names of processes of *synthetic* kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kcensus.kernel.tasks.programs import DEVICE_MAPPER, FREEZERS, condition
from tests.unit.kernel.waiting.making import Sleepers

_TYPES = """
struct task_struct 64 : 8 int tgid
"""


def _condition(
    *names: str, waiters: tuple[int, ...] = (), exited: bool = False, has_pseudonyms: bool = False
) -> str:
    scene = Sleepers(_TYPES, *("pause" for _ in names))
    for at, task in enumerate(scene.task):
        scene.k.write_words(task + 8, 100 + at)
    known = replace(
        scene.known, comm=[*names], has_exited=np.full(len(names), exited, dtype=np.bool_)
    )
    scene.kernel.has_pseudonyms = has_pseudonyms
    return condition(scene.kernel, known, DEVICE_MAPPER, "suspended", waiters)


def test_a_program_that_is_at_work() -> None:
    found = _condition("bash", "lvcreate", "dmsetup")
    assert found == ", unless lvcreate (PID 101), dmsetup (PID 102) still need it suspended"
    assert "unless dmsetup (PID 101)" in _condition("lvcreate", "dmsetup", waiters=(100,))


def test_a_program_that_waits_for_itself() -> None:
    found = _condition("lvcreate", waiters=(100,))
    assert found.startswith(": lvcreate (PID 100) may have suspended it, but waits")


@pytest.mark.parametrize(
    ("names", "exited"), [(("bash", "lvmx"), False), (("dmsetup",), True), (("sh",), False)]
)
def test_no_program_is_left(names: tuple[str, ...], exited: bool) -> None:
    assert "no process has a name like lvm" in _condition(*names, exited=exited)


def test_names_of_a_redacted_capsule_say_nothing() -> None:
    found = _condition("dmsetup", has_pseudonyms=True)
    assert "once no program is at work" in found
    assert "PID" not in found


def test_names_are_as_long_as_the_kernel_keeps_them() -> None:
    every = DEVICE_MAPPER.names | FREEZERS.names
    assert {name for name in every if len(name) > 15} == set()
    assert FREEZERS.include("backup-agent")
    assert not DEVICE_MAPPER.include("backup-agent")
