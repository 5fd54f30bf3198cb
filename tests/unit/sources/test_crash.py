# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel that crash has open, behind an extension that is a thread of the test."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import drgn
import pytest

from kcensus.commands import Exit
from kcensus.commands.doctor import _file_facts
from kcensus.prompts import crash as prompt
from kcensus.prompts.crash import main
from kcensus.samples import DIRECTORY
from kcensus.sources import Target, TargetError, crash, faults
from kcensus.sources.capsule.container import Reader
from kcensus.sources.crash import Crash, open_crash
from kcensus.sources.model import Request
from tests.unit.sources.test_sniff import elf_core

_PAGE = 4096
_BLOCK = 64 << 10
_MEMORY = (_BLOCK * 5 + 3 * _PAGE) * 25
_HEADER = struct.Struct("=II")
_READ = struct.Struct("=QII")
_HELLO, _VMCOREINFO, _READ_MEMORY = 1, 2, 3


def _vmcoreinfo() -> bytes:
    return Reader(str(DIRECTORY / "sample.capsule")).section("vmcoreinfo", 1 << 16)


@dataclass
class Extension:
    facts: tuple[bytes, ...] = (b"machine=X86_64", b"live=0")
    vmcoreinfo: bytes = b""
    memory: bytes = b""
    holes: dict[int, int] = field(default_factory=dict)
    """Status of a read by the page that it cannot read."""
    change: Callable[[int, int, bytes], bytes] = lambda kind, status, data: (
        _HEADER.pack(len(data), status) + data
    )
    """Packs a reply, rightly unless a test replaces it; an empty one closes the socket."""
    reads: list[tuple[int, int]] = field(default_factory=list)

    def _read(self, address: int, size: int) -> tuple[int, bytes]:
        pages = range(address // _PAGE, -(-(address + size) // _PAGE))
        for page in pages:
            if status := self.holes.get(page, 0 if page * _PAGE < len(self.memory) else 2):
                return status, self.memory[address : max(address, page * _PAGE)]
        return 0, self.memory[address : address + size]

    def _answer(self, kind: int, payload: bytes) -> bytes:
        if kind == _HELLO:
            return self.change(kind, 0, b"".join(fact + b"\0" for fact in self.facts))
        if kind == _VMCOREINFO:
            return self.change(kind, 0 if self.vmcoreinfo else 6, self.vmcoreinfo)
        address, size, space = _READ.unpack(payload)
        assert (kind, space) == (_READ_MEMORY, 0)
        self.reads.append((address, size))
        return self.change(kind, *self._read(address, size))

    def serve(self, end: socket.socket) -> None:
        """Answer until the other side closes, or a reply is empty."""
        with contextlib.suppress(ConnectionError), end, end.makefile("rb") as requests:
            while header := requests.read(_HEADER.size):
                length, kind = _HEADER.unpack(header)
                if not (reply := self._answer(kind, requests.read(length))):
                    return
                end.sendall(reply)

    @contextmanager
    def socket(self) -> Iterator[int]:
        """Return the descriptor of kcensus's side, for code that owns it."""
        end, other = socket.socketpair()
        thread = threading.Thread(target=self.serve, args=(end,))
        thread.start()
        fd = other.detach()
        try:
            yield fd
        finally:
            # Either side may have closed it.
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            assert not thread.is_alive()

    @contextmanager
    def connected(self) -> Iterator[Crash]:
        with self.socket() as fd:
            yield Crash(fd)


@pytest.fixture(scope="module")
def memory() -> bytes:
    return bytes(range(251)) * (_MEMORY // 251 + 1)


def test_facts() -> None:
    paths = (b"dumpfile=/tmp/\xff=core", b"namelist=/a", b"namelist=/b", b"module=/m.ko")
    others = (b"machine=ARM64", b"live=1", b"kaslr_offset=1c000000", b"unknown=1", b"no value")
    with Extension((*paths, *others)).connected() as connection:
        known = connection.facts
    assert (known.machine, known.live) == ("ARM64", True)
    assert os.fsencode(known.dumpfile) == b"/tmp/\xff=core"
    assert (known.namelists, known.modules) == (("/a", "/b"), ("/m.ko",))
    assert (known.kaslr_offset, known.release, known.local) == (0x1C000000, "", False)


def test_a_split_dump_is_named_by_all_its_parts(
    memory: bytes, symbols: list[Path], tmp_path: Path
) -> None:
    parts = [tmp_path / "p1", tmp_path / "p2"]
    for part in parts:
        part.write_bytes(b"x" * 1000)
    facts = (b"machine=X86_64", *(b"dumpfile=%s" % bytes(part) for part in parts))
    with Extension(facts, _vmcoreinfo(), memory).connected() as connection:
        target = open_crash(connection, Request(None))
    assert target.name == f"{parts[0]}, {parts[1]}"
    assert _file_facts(target.paths)["file_bytes"].value == 2000


def test_the_dump_of_crash_is_the_session(
    memory: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("vmcore", "other"):
        Path(name).write_bytes(b"\x7fELF")
    opened: list[str | None] = []

    def refuse(connection: Crash, request: Request) -> Target:
        opened.append(request.spec)
        raise TargetError("seen")

    monkeypatch.setattr(prompt, "open_crash", refuse)
    for name in ("vmcore", f"{tmp_path}/vmcore", "other"):
        with Extension((b"machine=X86_64", b"dumpfile=vmcore")).socket() as fd:
            assert main([str(fd), str(crash.PROTOCOL), "--", "slab", name]) == Exit.TARGET
    assert opened == ["vmcore", f"{tmp_path}/vmcore"]


@pytest.mark.parametrize(
    ("live", "addresses", "size", "reads"),
    [
        (0, (*range(0, _BLOCK, 64), _BLOCK - 3, 8), 16, [(0, _BLOCK), (_BLOCK, _BLOCK)]),
        (1, (40,) * 3, 16, [(40, 16)] * 3),
        (0, (10,), (4 << 20) + 5, [(10, 4 << 20), (10 + (4 << 20), 5)]),
    ],
    ids=["read ahead", "nothing is kept of a live kernel", "split"],
)
def test_reads(
    memory: bytes, live: int, addresses: tuple[int, ...], size: int, reads: list[tuple[int, int]]
) -> None:
    extension = Extension((b"machine=X86_64", b"live=%d" % live), memory=memory)
    with extension.connected() as connection:
        for address in addresses:
            assert connection.read(address, size) == memory[address : address + size]
    assert extension.reads == reads


@pytest.mark.parametrize(
    ("status", "why"),
    [
        *((1, faults.FILTERED), (2, faults.ABSENT), (3, faults.TRUNCATED)),
        *((4, faults.UNREADABLE), (5, faults.UNMAPPED), (77, faults.UNREADABLE)),
    ],
)
def test_faults(memory: bytes, status: int, why: str) -> None:
    with Extension(memory=memory, holes={2: status}).connected() as connection:
        for size in (_PAGE, 2 * _BLOCK):
            with pytest.raises(drgn.FaultError) as fault:
                connection.read(_PAGE + 7, size)
            assert fault.value.address == 2 * _PAGE
            assert faults.reason(fault.value) == why
        # Memory before and behind the hole, in the same block.
        for address, size in ((7, _PAGE), (3 * _PAGE, 16), (4 * _PAGE, 2 * _BLOCK)):
            assert connection.read(address, size) == memory[address : address + size]


_WRONG: dict[str, Callable[[bytes], bytes]] = {
    "closes": lambda data: b"",
    "too long for a reply": lambda data: _HEADER.pack((4 << 20) + 1, 0) + data,
    "more than was asked for": lambda data: _HEADER.pack(len(data) + 1, 0) + data + b"x",
    "less without a reason": lambda data: _HEADER.pack(len(data) - 1, 0) + data[1:],
}


def _wrong_memory(wrong: str) -> Callable[[int, int, bytes], bytes]:
    return lambda kind, status, data: (
        _WRONG[wrong](data) if kind == _READ_MEMORY else _HEADER.pack(len(data), status) + data
    )


@pytest.mark.parametrize("wrong", _WRONG)
def test_wrong_replies(memory: bytes, wrong: str) -> None:
    with Extension(memory=memory, change=_wrong_memory(wrong)).connected() as connection:
        for _ in range(2):
            with pytest.raises(TargetError):
                connection.read(0, 2 * _BLOCK)


@pytest.fixture
def symbols(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where debug info was looked for; none of it is loaded."""
    asked: list[Path] = []

    def load(target: Target, symbols: tuple[Path, ...], shared: tuple[Path, ...]) -> Target:
        asked.extend((*symbols, *shared))
        return target

    monkeypatch.setattr(crash, "load_debug_info", load)
    return asked


@pytest.mark.parametrize("live", [False, True])
def test_target(live: bool, memory: bytes, symbols: list[Path], tmp_path: Path) -> None:
    dump, vmlinux = tmp_path / "a dump", tmp_path / "vmlinux"
    dump.write_bytes(b"of a format that kcensus does not know" * 99)
    vmlinux.touch()
    facts = (
        b"machine=X86_64",
        b"live=%d" % live,
        b"dumpfile=%s" % bytes(dump),
        b"namelist=%s" % bytes(vmlinux),
        b"module=/does/not/exist",
    )
    # A hole in the first block, which the program reads in any case.
    extension = Extension(facts, _vmcoreinfo(), memory, {3: 1})
    with extension.connected() as connection:
        target = open_crash(connection, Request(None, (tmp_path,)))
        assert target.prog.read(40, 2 * _PAGE, physical=True) == memory[40 : 40 + 2 * _PAGE]
        with pytest.raises(drgn.FaultError) as fault:
            target.prog.read(2 * _PAGE, 3 * _PAGE, physical=True)
    assert (fault.value.address, faults.reason(fault.value)) == (3 * _PAGE, faults.FILTERED)
    assert (target.live, target.kind) == (live, "live" if live else "vmcore")
    assert (target.paths, target.shareable) == ((str(dump),), False)
    assert target.prog.flags & drgn.ProgramFlags.IS_LINUX_KERNEL
    assert bool(target.prog.flags & drgn.ProgramFlags.IS_LIVE) == live
    # What the user asked for comes before what crash has.
    assert symbols == [tmp_path, vmlinux]


def test_connection_that_breaks_in_the_program(memory: bytes, symbols: list[Path]) -> None:
    extension = Extension(vmcoreinfo=_vmcoreinfo(), memory=memory)
    with extension.connected() as connection:
        prog = open_crash(connection, Request(None)).prog
        extension.change = _wrong_memory("closes")
        for _ in range(2):
            with pytest.raises(TargetError):
                prog.read(0, 16, physical=True)


def test_vmcoreinfo_that_only_the_dump_has(symbols: list[Path], tmp_path: Path) -> None:
    dump = tmp_path / "vmcore"
    dump.write_bytes(elf_core([(b"VMCOREINFO", 0, _vmcoreinfo())], loaded=0))
    with Extension((b"machine=X86_64", b"dumpfile=%s" % bytes(dump))).connected() as connection:
        target = open_crash(connection, Request(None))
        assert target.prog["VMCOREINFO"].string_() == _vmcoreinfo()


@pytest.mark.parametrize(("local", "name"), [(1, "running"), (0, "another machine")])
def test_name_of_a_live_kernel(local: int, name: str, memory: bytes, symbols: list[Path]) -> None:
    facts = (b"machine=X86_64", b"live=1", b"local=%d" % local)
    with Extension(facts, _vmcoreinfo(), memory).connected() as connection:
        assert name in open_crash(connection, Request(None)).name


@pytest.mark.parametrize(
    ("facts", "has_vmcoreinfo", "said"),
    [
        ((b"machine=X86_64", b"release=9.9"), True, "9.9"),
        ((b"machine=X86_64", b"kaslr_offset=123"), True, "123"),
        ((b"machine=X86_64", b"namelist=/does/not/exist"), True, "uncompressed"),
        ((b"machine=X86_64",), False, None),
        ((b"machine=S390X",), False, None),
        ((), False, None),
    ],
)
def test_kernels_that_cannot_be_read(
    facts: tuple[bytes, ...], has_vmcoreinfo: bool, said: str | None
) -> None:
    extension = Extension(facts)
    if has_vmcoreinfo:
        extension.vmcoreinfo, extension.memory = _vmcoreinfo(), bytes(_MEMORY)
    with extension.connected() as connection, pytest.raises(TargetError, match=said):
        open_crash(connection, Request(None))
    assert has_vmcoreinfo or extension.reads == []


@pytest.mark.parametrize("status", [2, 4])
def test_end_of_a_truncated_dump(status: int, memory: bytes, tmp_path: Path) -> None:
    """crash does not say which memory was cut off, and which the dump never had."""
    dump = tmp_path / "vmcore"
    dump.write_bytes(elf_core([], loaded=4 * _PAGE, present=3 * _PAGE))
    facts = (b"machine=X86_64", b"dumpfile=%s" % bytes(dump))
    extension = Extension(facts, memory=memory, holes={3: status, 9: status})
    with extension.connected() as connection:
        reasons = []
        for page in (3, 9):
            with pytest.raises(drgn.FaultError) as fault:
                connection.read(page * _PAGE, 16)
            reasons.append(faults.reason(fault.value))
    assert reasons == [faults.TRUNCATED, {2: faults.ABSENT, 4: faults.UNREADABLE}[status]]


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    """A command that needs no memory asks for none; another says in a sentence what is wrong."""
    extension = Extension()
    with extension.socket() as fd:
        assert main([str(fd), "1", "--", "explain", "slab-waste"]) == Exit.DONE
        assert "slab-waste" in capsys.readouterr().out
        assert main([str(fd), "1", "--", "slab"]) == Exit.TARGET
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "VMCOREINFO" in captured.err
    assert len(captured.err.splitlines()) == 1
    # An extension of another version.
    with Extension().socket() as fd:
        assert main([str(fd), "99", "--", "slab"]) == Exit.USAGE
    assert "protocol 99" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("machine", "damage"),
    [
        *((name, what) for name in (b"X86_64", b"ARM64") for what in ("random", "short")),
        *((name, "page size") for name in (b"X86_64", b"ARM64")),
        (b"ARM64", "other machine"),  # the sample is of x86
    ],
)
def test_a_vmcoreinfo_that_describes_no_kernel_of_this_machine(
    machine: bytes, damage: str, memory: bytes
) -> None:
    text = {
        "random": random.Random(1).randbytes(500),
        "short": b"OSRELEASE=6.1\n",
        "page size": _vmcoreinfo().replace(b"PAGESIZE=4096", b"PAGESIZE=4097"),
        "other machine": _vmcoreinfo(),
    }[damage]
    extension = Extension((b"machine=" + machine, b"live=0"), text, memory)
    caught = pytest.raises(TargetError, match="VMCOREINFO")
    with extension.connected() as connection, caught as found:
        open_crash(connection, Request(None))
    assert str(found.value).isprintable()


def test_a_dump_of_many_files_has_a_short_name() -> None:
    paths = tuple(b"dumpfile=/%s/%d" % (b"x" * 2000, number) for number in range(1000))
    with Extension((b"machine=X86_64", *paths)).connected() as connection:
        assert len(connection.facts.dumpfiles) == 1000
        assert len(connection.facts.name) < 10_000
        assert connection.facts.name.endswith(" and 992 more")
