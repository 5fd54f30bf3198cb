# SPDX-License-Identifier: LGPL-2.1-or-later
"""Capsules of guests with tasks that wait: the same answer, and redaction."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.capsule import create
from kcensus.sources import open_target
from tests.lab import build
from tests.vm.test_capsule import document

_WAITS = analyses()["waits"]
_KEY = b"the same for all of them"
_MAX_BYTES = 4 << 20

pytestmark = pytest.mark.usually("6.1")


@pytest.mark.parametrize("scenario", ["waits-four", "waits-rwsem"])
def test_same_answer(kernel: str, scenario: str, tmp_path: Path) -> None:
    dump = build(kernel, scenario)
    target = open_target(str(dump.formats["elf"]), dump.debug)
    path = tmp_path / "capsule"
    assert create(target, path, [_WAITS]).failed == {}
    assert path.stat().st_size < _MAX_BYTES
    assert document(open_target(str(path)), _WAITS) == document(target, _WAITS)


def test_redaction_covers_names_of_processes(kernel: str, tmp_path: Path) -> None:
    dump = build(kernel, "waits-four")
    target = open_target(str(dump.formats["elf"]), dump.debug)
    path = tmp_path / "redacted"
    made = create(target, path, [_WAITS], redact=["names"], key=_KEY)
    assert made.unredacted == []
    result = Context.of(open_target(str(path))).run(_WAITS)
    plain = Context.of(target).run(_WAITS)
    assert [each.id for each in result.findings] == [each.id for each in plain.findings]
    assert result.amount("deadlocks") == 1
    # Kernel threads are named by the kernel; the two processes are not in any text.
    text = document(open_target(str(path)), _WAITS)
    for name in ("core-reader", "crash-with"):
        assert name in document(target, _WAITS)
        assert name not in text
