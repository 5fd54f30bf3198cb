# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus collect`` where other programs keep the CPUs busy."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from kcensus.commands.collect.child import _Work
from kcensus.commands.collect.order import CAPSULE, FORMS, Account, Order
from kcensus.commands.collect.run import _PROGRAM, Case, _Target
from kcensus.commands.shared.options import Reading
from kcensus.limits.children import connected
from kcensus.progress import SilentProgress

_LIGHT = """
import sys
from kcensus.cli import main
from kcensus.commands.collect import archive, run, versions
versions.versions()
sys.exit(main(["collect", sys.argv[1]]) != 2 or not {"numpy", "drgn"}.isdisjoint(sys.modules))
"""


def test_the_first_process_imports_little(tmp_path: Path) -> None:
    """It starts the one that reads, and packs: both count in the time."""
    done = subprocess.run([sys.executable, "-c", _LIGHT, tmp_path / "none"], capture_output=True)
    assert done.returncode == 0


def test_the_second_process_of_a_killed_one_ends() -> None:
    process, connection = connected(_PROGRAM.format(1))
    with connection:
        assert process.wait(60) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "nice"), [((), os.getpriority(os.PRIO_PROCESS, 0)), (("--full",), 19)]
)
def test_it_is_nice_only_without_a_limit_of_time(
    words: tuple[str, ...], nice: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "kcensus", "collect", "sample-waits", "-o"]
    process = subprocess.Popen([*command, str(tmp_path / "case.tar.zst"), *words])
    last = dict[str, int]()
    while process.poll() is None:
        with suppress(OSError):
            children = f"/proc/{process.pid}/task/{process.pid}/children"
            for each in [str(process.pid), *Path(children).read_text().split()]:
                last[each] = os.getpriority(os.PRIO_PROCESS, int(each))
        time.sleep(0.02)
    assert process.returncode == 0
    assert len(last) > 1
    assert {*last.values()} == {nice}


@pytest.mark.parametrize(("ago", "least"), [(1, 30), (20, 20), (200, 20)])
def test_analyses_leave_time_for_the_report(ago: float, least: float) -> None:
    """As much as it took to open the target, but half of what is left at most."""
    now = time.monotonic()
    order = Order("record", None, Reading(), {}, analyses_until=now + 30)
    work = _Work(replace(order, started=now - ago, until=now + 40), lambda *_: None)
    work._leave_time()
    assert work._analyses_until == pytest.approx(now + least, abs=2)


def test_a_capsule_that_was_not_begun_is_listed() -> None:
    account = Account(None, "the running kernel", forms=["report.txt"])
    with ExitStack() as stack:
        files = {
            name: stack.enter_context(tempfile.TemporaryFile()).fileno()
            for name in (*FORMS, CAPSULE)
        }
        _Target(Case([None]), account, files, None, 0.0, None, SilentProgress())._conclude()
    assert CAPSULE in [what for what, _ in account.left_out]
