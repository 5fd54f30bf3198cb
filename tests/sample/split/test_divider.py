# SPDX-License-Identifier: LGPL-2.1-or-later
"""A report whose tasks are done by others, with a program of their own, is the same report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import drgn
import pytest

from kcensus import cli
from kcensus.analyses.runner import Context
from kcensus.engine.workers import WorkersKilled
from kcensus.fleets.split import Outcome, travel
from kcensus.fleets.split.leader import Divider
from kcensus.reports import examine
from kcensus.samples import capsule
from kcensus.sources import open_target
from tests.running import document
from tests.sample.conftest import open_sample

pytestmark = pytest.mark.slow

_CHUNK = 64 << 10


class InProcess:
    """Workers in this process; every answer is lost whose number is in ``lost``."""

    processes = 2

    def __init__(self, prog: drgn.Program, lost: dict[int, Outcome] | None = None) -> None:
        self.prog, self.lost = prog, lost or {}
        self.shares = self.dropped = 0

    def send(self, content: bytes) -> Any:
        return travel.unpacked(content, self.prog)

    def submit(self, work: str, handle: Any, tasks: range) -> Any:
        self.shares += 1
        lost = self.lost.get(self.shares)
        return Outcome(travel.answer(handle[0], handle[1], tasks)) if lost is None else lost

    def outcome(self, share: Any) -> Outcome:
        assert isinstance(share, Outcome)
        return share

    def drop(self, shares: list[Any]) -> None:
        self.dropped += len(shares)


def divided(name: str, hands: InProcess | None, least: int = 1) -> tuple[Any, Divider]:
    divider = Divider(hands or InProcess(open_target(name).prog), least)
    context = Context.of(open_target(name), chunk_bytes=_CHUNK, divide=divider.each)
    return json.loads(document(examine(context))), divider


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sample", "sample-waits", "sample-arm64"])
def test_a_divided_report_is_that_of_one_process(name: str) -> None:
    found, divider = divided(name, None)
    assert found == open_sample(name).document
    assert divider.divided > 50
    assert (divider.redone, divider.reason) == (0, "")


def test_what_is_lost_is_done_here() -> None:
    hands = InProcess(
        open_target("sample-arm64").prog,
        {1: Outcome(), 7: Outcome(error="OSError: gone"), 20: Outcome(error="x", signal=9)},
    )
    found, divider = divided("sample-arm64", hands)
    assert found == open_sample("sample-arm64").document
    assert divider.redone >= 3
    assert divider.divided > divider.redone


def test_what_is_short_is_not_divided() -> None:
    hands = InProcess(open_target("sample-arm64").prog)
    found, divider = divided("sample-arm64", hands, least=1000)
    assert found == open_sample("sample-arm64").document
    assert (hands.shares, divider.divided, divider.redone) == (0, 0, 0)
    assert 0 < divider.longest < 1000


def test_a_dump_that_shrinks_is_an_error() -> None:
    hands = InProcess(open_target("sample").prog, {2: Outcome(error="x", signal=7)})
    divider = Divider(hands, 1)
    with pytest.raises(WorkersKilled, match="SIGBUS"):
        list(divider.each(str, 100, 1))
    assert hands.dropped > 0


def test_an_error_of_a_task_is_that_of_one_process() -> None:
    def work(task: int) -> int:
        return 1 // (50 - task)

    class Failing(InProcess):
        def submit(self, work: str, handle: Any, tasks: range) -> Any:
            return (
                Outcome(error="ZeroDivisionError: …")
                if 50 in tasks
                else Outcome(travel.answer(handle[0], handle[1], tasks))
            )

    results: Iterator[int] = Divider(Failing(drgn.Program()), 1).each(work, 100, 1)
    with pytest.raises(ZeroDivisionError):
        list(results)


@pytest.mark.parametrize("target", ["sample-arm64", str(capsule("sample-arm64"))])
def test_a_small_target_is_read_here(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["slab", target, "--json"]
    alone = (cli.main(words), *capsys.readouterr())
    status = cli.main([*words, "--scheduler", "tcp://127.0.0.1:9"])  # none is there
    out, error = capsys.readouterr()
    assert (status, out) == alone[:2]
    assert error.startswith("kcensus: the workers of --scheduler are not used: ")
    assert error.count("\n") == 1


def test_jobs_are_for_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["slab", "sample", "--scheduler", "tcp://127.0.0.1:9", "--jobs", "2"]) == 2
    assert "omit --jobs" in capsys.readouterr().err
