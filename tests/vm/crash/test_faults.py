# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whatever the child does, crash's prompt comes back, and nothing is left."""

from __future__ import annotations

import itertools
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kcensus.sources import open_target
from tests.lab import build, host
from tests.running import on, runner
from tests.vm.crash import stub
from tests.vm.crash.formats import cpus
from tests.vm.crash.prompt import Prompt, at_prompt, has_ended, reaches, wait_for
from tests.vm.crash.session import Session, build_extension, extension

_SAYS = {
    "dies": "was killed by signal 9",
    "dies_inside": "was killed by signal 11",
    "closes": "closed its connection",
    "random_bytes": "not in protocol 1",
    "long_request": "not in protocol 1",
    "large_read": "not in protocol 1",
    "empty_read": "not in protocol 1",
    "wrapped_read": "not in protocol 1",
    "unknown_space": "not in protocol 1",
    "slow": "slow but right",
    "leaves_a_process": "",
}
"""What the terminal shows for each fault of a child."""


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest) -> int:
    return 20 if request.config.getoption("--all") else 2


@pytest.fixture(scope="module")
def session() -> Session:
    dump = build("6.1", "mixed")
    return Session(dump.vmlinux, (dump.formats["elf"],))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stub.install(tmp_path_factory.mktemp("stub"))


@pytest.fixture(scope="module")
def opened(session: Session, python: Path) -> Iterator[Prompt]:
    """One crash for all tests that leave it running: opening the dump takes most of the time."""
    with at_prompt(session, extension(), python) as prompt:
        # The first command loads what crash keeps.
        prompt.run("kcensus slow")
        yield prompt


@pytest.fixture
def prompt(opened: Prompt) -> Iterator[Prompt]:
    """A prompt of which nothing is left that was not there at first."""
    before = opened.descriptors(), opened.settings()
    yield opened
    assert "48879" in opened.run("eval 0xbeef")
    assert opened.children() == []
    assert (opened.descriptors(), opened.settings()) == before


def child_of(prompt: Prompt) -> int:
    assert wait_for(lambda: prompt.children() != [])
    return prompt.children()[0]


@pytest.mark.parametrize("fault", _SAYS)
def test_child_that_fails(prompt: Prompt, fault: str, runs: int) -> None:
    for _ in range(runs):
        shown = prompt.run(f"kcensus {fault}")
        assert _SAYS[fault] in shown
        # The command as it was typed, and one sentence.
        assert len(shown.splitlines()) <= 3
        assert prompt.children() == []


@pytest.mark.parametrize("fault", ["silent", "stubborn", "deaf", "floods", "in_a_long_call"])
def test_ctrl_c(prompt: Prompt, fault: str, runs: int) -> None:
    # This one takes seconds.
    for _ in range(3 if fault == "in_a_long_call" else runs):
        shown = prompt.run(f"kcensus {fault}", prompt.interrupt)
        assert ("did not stop on Ctrl-C" in shown) == (fault == "stubborn")
        assert shown.count("kcensus: ") == (fault in ("stubborn", "in_a_long_call"))
        assert prompt.children() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_crash_alone(prompt: Prompt, number: signal.Signals, runs: int) -> None:
    for _ in range(runs):
        prompt.run("kcensus silent", lambda: prompt.signal(number))
        assert prompt.children() == []


def test_ctrl_c_at_any_time(prompt: Prompt, runs: int) -> None:
    for run in range(runs):
        prompt.process.sendline("kcensus report")
        # Before, readline may be setting the terminal, which crash does not undo.
        reaches(child_of(prompt), run / runs)
        prompt.interrupt()
        prompt.process.sendline("eval 0xbeef")
        prompt.process.expect("decimal: 48879")
        shown = prompt.process.before or ""
        prompt.process.expect_exact("crash> ")
        assert "Traceback" not in shown
        assert shown.count("kcensus: ") <= 1
        assert prompt.children() == []
    assert "xfs_inode" in prompt.run("kcensus slab --table caches --top 0")


def test_child_is_killed_at_any_time(prompt: Prompt, runs: int) -> None:
    for run in range(runs):
        prompt.process.sendline("kcensus report")
        child = child_of(prompt)
        assert reaches(child, 0.8 * run / runs)
        prompt.signal(signal.SIGKILL, child)
        prompt.process.expect("was killed by signal 9")
        prompt.process.expect_exact("crash> ")
        assert prompt.children() == []


_ENDS: dict[str, Callable[[Prompt], None]] = {
    "SIGKILL": lambda prompt: prompt.signal(signal.SIGKILL),
    "terminal": Prompt.hang_up,
}
"""How crash is made to quit; SIGTERM ends only the command."""


def test_crash_quits(session: Session, python: Path, runs: int) -> None:
    # Of all six of them, each second one without --all.
    ways = [*itertools.product(_ENDS, ["silent", "deaf", "report"])][:: 1 if runs > 2 else 2]
    runs = max(runs, len(ways))
    for run, (way, command) in zip(range(runs), itertools.cycle(ways), strict=False):
        with at_prompt(session, extension(), python) as prompt:
            prompt.process.sendline(f"kcensus {command}")
            child = child_of(prompt)
            if command == "report":
                reaches(child, run / runs)
            else:
                prompt.process.expect_exact("waiting")
            _ENDS[way](prompt)
            assert has_ended(prompt.pid), way
            assert has_ended(child), (way, command)


def test_protocol(session: Session, prompt: Prompt, tmp_path: Path) -> None:
    prog = open_target(session.name, [session.vmlinux]).prog
    banner = prog.symbol("linux_banner").address
    physical, size, hole = 1 << 20, 3 * 4096 + 5, 1 << 45
    output = tmp_path / "answers"
    prompt.run(
        f"kcensus protocol {output} {physical},{size},0 {banner},16,1 {hole},16,0 0x1000,16,1 "
        f"{1 << 20},{4 << 20},0"
    )
    answers = json.loads(output.read_text())
    assert answers["facts"]["dumpfile"] == session.name
    assert answers["facts"]["namelist"] == str(session.vmlinux)
    assert (answers["facts"]["local"], answers["facts"]["live"]) == ("0", "0")
    assert answers["facts"]["release"] == prog["UTS_RELEASE"].string_().decode()
    vmcoreinfo = prog["VMCOREINFO"].string_().decode()
    assert answers["vmcoreinfo"] == vmcoreinfo
    assert f"KERNELOFFSET={answers['facts']['kaslr_offset']}\n" in vmcoreinfo
    assert answers["reads"] == [
        [0, prog.read(physical, size, physical=True).hex()],
        [0, b"Linux version 6.".hex()],
        [2, ""],
        [5, ""],
        [0, prog.read(1 << 20, 4 << 20, physical=True).hex()],
    ]
    assert [cpu for cpu, *_ in answers["cpus"]] == [0, 1]
    running = {int(line.split()[1]) for line in prompt.run("ps -A").splitlines() if line[:1] == ">"}
    assert {pid for _, pid, *_ in answers["cpus"]} == running
    registers = [(cpu.general["rip"], cpu.general["rsp"]) for cpu in cpus(Path(session.name))]
    places = [(pc, sp) for *_, pc, sp in answers["cpus"]]
    for place, (pc, sp) in zip(places, registers, strict=True):
        # crash does not find the registers of a CPU that ran in user mode.
        assert place == (pc, sp) if pc >> 63 else place in ((pc, sp), (0, 0))
    # The socket, and the directory that is listed.
    assert answers["descriptors"] == [0, 1, 2, 3, 4]
    assert (answers["columns"], answers["stdin"]) == (None, "/dev/null")


_WITHOUT = {
    "without a request": "exit",
    "cannot start": "",
    "cannot import kcensus": f'exec "{sys.executable}" -I -S "$@"',
    "speaks protocol 99": (
        f'program="$2"; shift 5; exec "{sys.executable}" -c "$program" / 3 99 "$@"'
    ),
}


def test_python_file_of_the_current_directory(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "click.py").write_text("raise SystemExit('a click of another project')\n")
    monkeypatch.chdir(tmp_path)
    with at_prompt(session, extension(), sys.executable) as prompt:
        assert "slab-waste:" in prompt.run("kcensus explain slab-waste")


def test_ctrl_c_while_the_program_starts(session: Session, tmp_path: Path, runs: int) -> None:
    """As on a file server that does not answer."""
    source, library = tmp_path / "hang.c", tmp_path / "hang.so"
    source.write_text("int pause(void);\nint execvpe(void) { return pause(); }\n")
    compiler = host.find("cc")
    host.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)])
    with at_prompt(session, extension(), sys.executable, {"LD_PRELOAD": str(library)}) as prompt:
        before = prompt.descriptors()
        for _ in range(runs):
            prompt.process.sendline("kcensus slab")
            child_of(prompt)
            prompt.interrupt()
            prompt.process.expect_exact("crash> ")
            assert "48879" in prompt.run("eval 0xbeef")
            assert (prompt.children(), prompt.descriptors()) == ([], before)


@pytest.fixture(scope="module")
def changing(
    session: Session, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Prompt, Path]]:
    """A prompt whose Python is a script that each test writes."""
    python = tmp_path_factory.mktemp("changing") / "python"
    with at_prompt(session, extension(), python) as prompt:
        yield prompt, python


@pytest.mark.parametrize("says", _WITHOUT)
def test_without_a_package(changing: tuple[Prompt, Path], says: str, runs: int) -> None:
    prompt, python = changing
    python.unlink(missing_ok=True)
    if _WITHOUT[says]:
        python.write_text(f"#!/bin/sh\n{_WITHOUT[says]}\n")
        python.chmod(0o755)
    prompt.run("kcensus slab")
    before = prompt.descriptors()
    for _ in range(runs):
        shown = prompt.run("kcensus slab")
        assert says in shown
        assert shown.count("kcensus: ") == 1
        assert (prompt.children(), prompt.descriptors()) == ([], before)


def test_address_sanitizer(session: Session, python: Path, tmp_path: Path) -> None:
    checked = build_extension(tmp_path, cflags="-fsanitize=address,undefined")
    output, answers = tmp_path / "slab.json", tmp_path / "answers"
    shown = session.script(
        [
            f"extend {checked}",
            *(f"kcensus {fault}" for fault in _SAYS),
            f"kcensus protocol {answers} 0x100000,65536,0 0x1000,16,1 {1 << 45},4194304,0",
            f"kcensus slab --json {output}",
            "help kcensus",
        ],
        tmp_path,
        extend=False,
        environment={
            "KCENSUS_PYTHON": str(python),
            "LD_PRELOAD": host.run([host.find("cc"), "-print-file-name=libasan.so"]).strip(),
            # crash frees nothing when it quits, and has an operator new of its own.
            "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:alloc_dealloc_mismatch=0",
            "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        },
    )
    assert "Sanitizer" not in shown
    assert "runtime error" not in shown
    assert "shared object loaded" in shown
    assert all(says in shown for says in _SAYS.values())
    assert json.loads(answers.read_text())["reads"][0][0] == 0
    context = on(open_target(session.name, [session.vmlinux]).prog)
    utilization = runner("slab")(context).summary["utilization"].value
    assert json.loads(output.read_text())["summary"]["utilization"] == utilization
