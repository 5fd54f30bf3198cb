# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a command takes of its machine, measured by the kernel: in processes of their own."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from kcensus import cli
from kcensus.commands import Exit
from kcensus.commands.shared.options import Reading
from kcensus.commands.shared.target import opened
from kcensus.limits import is_own_process, memory
from kcensus.limits.memory import (
    MIN_AVAILABLE,
    MIN_BYTES,
    available_bytes,
    default_limit,
    is_enforced,
)

COMMAND = "from kcensus.cli import main; import sys; status = main(); "
END = "sys.exit(status)"
needs_limit = pytest.mark.skipif(
    not is_enforced(), reason="this system ignores RLIMIT_DATA, as qemu-user does"
)


def run(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True)


def printed(code: str, *args: str) -> Any:
    return json.loads(run(code, *args).stdout.splitlines()[-1])


@pytest.mark.slow
def test_on_the_running_kernel_others_go_first() -> None:
    """It does so before it opens /proc/kcore, so also where that fails."""
    look = """
import json, os
threads = [open(f"/proc/self/task/{each}/stat").read() for each in os.listdir("/proc/self/task")]
nice = [int(each.rpartition(")")[2].split()[16]) for each in threads]
print(json.dumps([nice, int(open("/proc/self/oom_score_adj").read())]))
"""
    nice, oom_score_adj = printed(COMMAND + look, "doctor")
    assert {*nice} == {19}
    assert oom_score_adj == 1000


@pytest.mark.slow
def test_a_dump_is_read_at_the_priority_of_the_user() -> None:
    """What is asked for is looked at: this may run at nice 19 itself."""
    look = """
import json, os, pathlib
asked = []
os.setpriority = lambda *_: asked.append("nice")
pathlib.Path.write_text = lambda *_: asked.append("oom_score_adj")
"""
    show = "print(json.dumps(asked))"
    assert {*printed(look + COMMAND + show, "doctor")} == {"nice", "oom_score_adj"}
    assert printed(look + COMMAND + show, "doctor", "sample") == []


@pytest.mark.slow
@pytest.mark.parametrize("percent", [20, 50])
def test_the_share_of_a_cpu_holds(percent: int) -> None:
    """By the clock it is less where others have the CPU meanwhile, so the sleeps count, too."""
    measure = f"""
import json, time
from kcensus.limits import limit_share
sleep, slept = time.sleep, []
time.sleep = lambda seconds: (slept.append(seconds), sleep(seconds))
start, used = time.monotonic(), time.process_time()
limit_share({percent})
import kcensus
target = kcensus.open_target("sample")
while time.process_time() - used < 1.5:
    kcensus.slab(target)
taken = time.process_time() - used
print(json.dumps([taken, time.monotonic() - start, sum(slept)]))
"""
    taken, elapsed, slept = printed(measure)
    assert taken / elapsed < 1.1 * percent / 100
    assert taken / (taken + slept) == pytest.approx(percent / 100, rel=0.1)
    # Its timer does not kill the process when Python has taken its handler away.
    assert run(COMMAND + END, "slab", "sample", "--cpu-share", str(percent)).returncode == 0


@pytest.mark.slow
@needs_limit
def test_an_analysis_beyond_the_limit_fails_alone() -> None:
    """What it took is given back: the others have their figures."""
    greedy = """
from kcensus.limits.memory import prepare
prepare()
import sys
import numpy as np
from kcensus import cli, reports
from tests.running import analysis_of

def take(kernel):
    held = [np.ones(1 << 20, np.uint8) for _ in range(1 << 10)]

known = reports.analyses()
reports.analyses = lambda: {"kcopyd": analysis_of("kcopyd", take), "slab": known["slab"]}
sys.exit(cli.main())
"""
    ended = run(greedy, "report", "sample", "--json", "--max-memory", "384M")
    report = json.loads(ended.stdout)
    assert ended.returncode == 6
    assert [*report["failed"]] == ["kcopyd"]
    assert "--max-memory" in report["failed"]["kcopyd"]
    assert report["analyses"]["slab"]["summary"]["utilization"] > 0


@needs_limit
@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "status"),
    [
        ("kcensus.sources.open_target", Exit.TARGET),
        ("kcensus.analyses.slab.run.run", Exit.INCOMPLETE),
        ("kcensus.analyses.runner.Context.run", Exit.TARGET),
        ("kcensus.reports.detect", Exit.INCOMPLETE),
        ("kcensus.render.report.write_report", Exit.FAILED),
    ],
)
def test_wherever_memory_runs_out_a_sentence_says_so(place: str, status: Exit) -> None:
    fail = f"""
from kcensus.limits.memory import prepare
prepare()
from unittest.mock import patch
patch({place!r}, side_effect=MemoryError).start()
"""
    ended = run(fail + COMMAND + END, "report", "sample", "--max-memory", "1G")
    assert ended.returncode == status, ended.stderr
    assert "--max-memory" in ended.stderr + ended.stdout
    assert "Traceback" not in ended.stderr


@needs_limit
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mebibytes", "status"),
    [
        # All but one MiB of it is left to showing what failed.
        (33, Exit.TARGET),
        # An eighth of it is left to debug info, and to libraries that reserve more.
        (MIN_BYTES * 7 // 8 >> 20, Exit.DONE),
    ],
)
def test_what_the_least_limit_is_enough_for(mebibytes: int, status: Exit) -> None:
    lower = "from kcensus.limits import memory; memory.MIN_BYTES = 1 << 20; "
    ended = run(lower + COMMAND + END, "report", "sample", "--max-memory", f"{mebibytes}M")
    assert ended.returncode == status, ended.stderr
    assert ("--max-memory" in ended.stderr) == (status is Exit.TARGET)
    assert "Traceback" not in ended.stderr


@needs_limit
def test_files_are_left_out_of_the_limit_after_the_target_was_opened_again() -> None:
    nested = """
import resource
from kcensus.limits.memory import limited, mapping_files

def soft():
    return resource.getrlimit(resource.RLIMIT_DATA)[0]

with limited(1 << 30):
    with limited(1 << 30):
        pass
    before = soft()
    with mapping_files():
        assert soft() > before + (1 << 30), (before, soft())
    assert abs(soft() - before) < 1 << 20, (before, soft())
"""
    ended = run(nested)
    assert ended.returncode == 0, ended.stderr


def test_more_processes_are_refused_under_a_limit() -> None:
    reading = Reading(jobs=2, cpu_share=50)
    with pytest.raises(click.UsageError, match="--jobs"), opened("sample", reading):
        pass


def test_limits_that_cannot_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert not is_own_process()
    for option, value, words in (
        # The process of another program is not limited, such as this one, or drgn's prompt.
        *(("--cpu-share", "50", "--cpu-share"), ("--max-memory", "1G", "--max-memory")),
        *(("--cpu-share", value, f"'{value}'") for value in ("0", "101", "x")),
        ("--max-memory", "1M", "'1M'"),
    ):
        assert cli.main(["slab", "sample", option, value]) == 2
        assert words in capsys.readouterr().err


def test_a_limit_that_the_system_ignores_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    reading = Reading(max_memory=1 << 30)
    with pytest.raises(click.UsageError, match="RLIMIT_DATA"), opened("sample", reading):
        pass


def test_available_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcensus.limits.cgroups.available_bytes", lambda: None)
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  8000000 kB\nMemAvailable:    1024 kB\n")
    assert available_bytes(meminfo) == 1 << 20
    meminfo.write_text("MemTotal:  8000000 kB\n")
    assert available_bytes(meminfo) is None
    assert available_bytes(tmp_path / "absent") is None
    monkeypatch.setattr("kcensus.limits.cgroups.available_bytes", lambda: 5 << 20)
    assert available_bytes(tmp_path / "absent") == 5 << 20
    meminfo.write_text("MemAvailable:    1024 kB\n")
    assert available_bytes(meminfo) == 1 << 20
    # The default limit fits small machines.
    assert default_limit(MIN_AVAILABLE - 1) is None
    assert default_limit(MIN_AVAILABLE) == default_limit(300 << 20) == MIN_BYTES
    assert default_limit(8 << 30) == 4 << 30
    assert default_limit(8 << 30, 4) == 1 << 30
    assert default_limit(1 << 30, 4) == MIN_BYTES


def test_too_little_memory_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for available, limit in ((None, None), (MIN_AVAILABLE, MIN_BYTES), (6 << 30, 1 << 30)):
        monkeypatch.setattr(memory, "available_bytes", lambda found=available: found)
        assert memory.affordable(3) == limit
    monkeypatch.setattr(memory, "available_bytes", lambda: MIN_AVAILABLE - 1)
    with pytest.raises(memory.Shortage, match="--max-memory 320M"):
        memory.affordable()


def test_threads_are_few_and_their_stacks_small() -> None:
    """A limit counts the stacks; a user's choice stays."""
    look = """
import json, os
names = ("OMP_NUM_THREADS", "OMP_STACKSIZE")
os.sched_getaffinity = lambda pid: range(64)
for name in names:
    os.environ.pop(name, None)
os.environ.update(json.loads({!r}))
from kcensus.limits.memory import prepare
prepare()
print(json.dumps([os.environ[name] for name in names]))
"""
    assert printed(look.format("{}")) == ["4", "2M"]
    assert printed(look.format('{"OMP_NUM_THREADS": "9"}')) == ["9", "2M"]
