# SPDX-License-Identifier: LGPL-2.1-or-later
"""A guest under QEMU, and the two lines to it.

QMP stops it and takes its dump. The guest's program reports over the second serial port;
its reports ("phases") look like this::

    BEGIN before
    FILE dentry-state 26
    ...26 bytes...
    END before
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from . import host
from .debian.machines import Architecture
from .host import LabError
from .scenario import THROTTLE

THROTTLED = "throttled"
"""The drive of a guest whose speed can be limited."""

_BLOCK = 4096
_CHUNK = 256 * _BLOCK
_ZEROES = bytes(_CHUNK)

_running: set[subprocess.Popen[bytes]] = set()
_stopping = threading.Event()


def kill_all() -> None:
    """End every guest of this process, whichever thread waits for it, and start no more."""
    _stopping.set()
    for process in list(_running):
        process.kill()


def copy_sparse(source: int, path: Path) -> None:
    """Copy from a pipe to a file that has holes where there are only zeroes."""
    with open(source, "rb") as stream, path.open("wb") as out:
        while chunk := stream.read(_CHUNK):
            start = None
            if chunk != _ZEROES:
                for at in range(0, len(chunk), _BLOCK):
                    empty = chunk.startswith(_ZEROES[:_BLOCK], at)
                    if empty and start is not None:
                        out.write(chunk[start:at])
                        start = None
                    if empty:
                        out.seek(min(_BLOCK, len(chunk) - at), os.SEEK_CUR)
                    elif start is None:
                        start = at
                if start is not None:
                    out.write(chunk[start:])
            else:
                out.seek(len(chunk), os.SEEK_CUR)
        out.truncate(out.tell())


def _missing_bytes(path: Path) -> int:
    """Bytes of the segments of an ELF file that are behind its end."""
    with path.open("rb") as file:
        ident = file.read(64)
        order = "<" if ident[5] == 1 else ">"
        (at,), (count,) = (
            struct.unpack_from(f"{order}{code}", ident, place)
            for code, place in (("Q", 32), ("H", 56))
        )
        file.seek(at)
        headers = struct.iter_unpack(f"{order}II6Q", file.read(56 * count))
        end: int = max(offset + size for _, _, offset, _, _, size, *_ in headers)
    return max(0, end - path.stat().st_size)


_MULTI, _SINGLE = "tcg,thread=multi", "tcg,thread=single"


def emulated(architecture: Architecture, cpu: str = "") -> list[str]:
    """Return the arguments of QEMU for every guest.

    :param cpu: by default that of the architecture
    """
    return [
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *architecture.board,
        *("-cpu", cpu or architecture.cpu, "-accel", _MULTI),
    ]


def simulated(arguments: Iterable[str], begin: datetime) -> list[str]:
    """Return arguments for a guest whose clocks all begin at a time, and skip idle time.

    Its time is that of its instructions, and in an idle guest goes on to the next timer at once.
    """
    single = [_SINGLE if each == _MULTI else each for each in arguments]
    clock = f"base={begin:%Y-%m-%dT%H:%M:%S},clock=vm"
    return [*single, "-icount", "shift=3,align=off,sleep=off", "-rtc", clock]


class Lost(LabError):
    """A guest did not come to its end, which may be the emulator's doing."""


class TooSlow(Lost):
    """A guest did not come to its end in time."""


class Died(Lost):
    """QEMU ended before the guest did."""


@contextmanager
def keeping(console: Path, name: str, what: str) -> Iterator[None]:
    """If a guest fails, keep its console and say where."""
    try:
        yield
    except LabError as error:
        kept = host.cache() / "failed" / f"{name}.log"
        kept.parent.mkdir(parents=True, exist_ok=True)
        if console.exists():
            shutil.copy(console, kept)
        raise type(error)(f"{what}: the guest {error}; its console is in {kept}.") from None


class Machine:
    """A running guest; it ends with the context."""

    def __init__(
        self, architecture: Architecture, arguments: list[str], console: Path, seconds: float
    ) -> None:
        self._log = console.with_name("qemu.log")
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._serial, serial = socket.socketpair()
        self._qmp, qmp = socket.socketpair()
        self._received = bytearray()
        self._answers = bytearray()
        command = [
            # Whatever becomes of this process, no guest outlives it.
            *(host.find("setpriv"), "--pdeathsig", "KILL", "--"),
            host.find(architecture.emulator),
            *("-serial", f"file:{console}"),
            *("-chardev", f"socket,id=serial,fd={serial.fileno()}", *architecture.reports),
            *("-chardev", f"socket,id=qmp,fd={qmp.fileno()}", "-mon", "chardev=qmp,mode=control"),
            *arguments,
        ]
        with serial, qmp, self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=[serial.fileno(), qmp.fileno()],
            )
        _running.add(self._process)
        if _stopping.is_set():
            self._process.kill()

    def __enter__(self) -> Machine:
        try:
            self._answer()  # the greeting
            self.command("qmp_capabilities")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        _running.discard(self._process)
        self._process.kill()
        self._process.wait()
        self._serial.close()
        self._qmp.close()

    def _receive(self, line: socket.socket, into: bytearray) -> None:
        line.settimeout(max(self._deadline - time.monotonic(), 0.01))
        try:
            data = line.recv(1 << 16)
        except TimeoutError:
            raise TooSlow(f"took longer than {self._seconds:.0f} s") from None
        except ConnectionError:
            data = b""
        if not data:
            errors = self._log.read_text(errors="replace").strip()
            reason = f": {errors.splitlines()[-1]}" if errors else ""
            raise Died(f"ended unexpectedly{reason}")
        into += data

    def _answer(self) -> dict[str, Any]:
        while (end := self._answers.find(b"\n")) < 0:
            self._receive(self._qmp, self._answers)
        answer: dict[str, Any] = json.loads(self._answers[:end])
        del self._answers[: end + 1]
        return answer

    def command(self, name: str, **arguments: object) -> object:
        return self._execute(name, arguments)

    def _execute(self, name: str, arguments: dict[str, object], *descriptors: int) -> object:
        request = json.dumps({"execute": name, "arguments": arguments})
        socket.send_fds(self._qmp, [request.encode() + b"\n"], descriptors)
        while "return" not in (answer := self._answer()):
            if "error" in answer:
                raise LabError(f"QEMU refused {name}: {answer['error']['desc']}")
        return answer["return"]

    def dump(self, path: Path) -> None:
        """Write the memory of the guest, which stands still, as an ELF vmcore."""
        source, sink = os.pipe()
        copy = threading.Thread(target=copy_sparse, args=(source, path))
        copy.start()
        try:
            self._execute("getfd", {"fdname": "dump"}, sink)
        finally:
            os.close(sink)
        self.command("dump-guest-memory", paging=False, protocol="fd:dump")
        copy.join()
        # QEMU 7.2 sometimes writes fewer registers of arm64's CPUs (SVE) than it makes room for.
        if lost := _missing_bytes(path):
            raise Lost(f"was dumped without {lost} bytes")

    def check(self) -> None:
        """Complain if the guest's program has given up by now."""
        self._serial.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while data := self._serial.recv(1 << 16):
                self._received += data
        if failed := re.search(rb"^FAIL (.*)", self._received, re.MULTILINE):
            raise LabError(f"gave up: {failed[1].decode(errors='replace')}")
        if self._process.poll() is not None:
            raise Died("ended unexpectedly")

    def extend(self, seconds: float) -> None:
        """Give the guest so many seconds from now on."""
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def resume(self) -> None:
        self._serial.sendall(b"\n")

    def _line(self) -> str:
        while (end := self._received.find(b"\n")) < 0:
            self._receive(self._serial, self._received)
        line = self._received[:end].decode(errors="surrogateescape")
        del self._received[: end + 1]
        if line.startswith("FAIL "):
            raise LabError(f"gave up: {line[5:]}")
        return line

    def phase(self, name: str) -> dict[str, str]:
        """Wait for a report of the guest's program, and return its files."""
        files: dict[str, str] = {}
        # The kernel probes the port; what that leaves in the line is not a report.
        while (line := self._line()) != f"BEGIN {name}":
            if line.startswith(f"BEGIN {THROTTLE}"):
                request = line.removeprefix("BEGIN ")
                files |= self._files(request)
                self.throttle(int(request.removeprefix(THROTTLE)))
                self.resume()
        return files | self._files(name)

    def throttle(self, iops: int) -> None:
        """Limit the disk to so many requests a second; with 0, nothing but flushes passes."""
        limits = dict.fromkeys(("bps", "bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr"), 0)
        # At one byte a second, a request takes an hour.
        limits |= {"iops": iops} if iops else {"bps": 1}
        self.command("block_set_io_throttle", device=THROTTLED, **limits)

    def _files(self, name: str) -> dict[str, str]:
        files: dict[str, str] = {}
        while (line := self._line()) != f"END {name}":
            file, _, size = line.removeprefix("FILE ").rpartition(" ")
            length = int(size)
            while len(self._received) < length:
                self._receive(self._serial, self._received)
            files[file] = self._received[:length].decode(errors="surrogateescape")
            del self._received[:length]
        return files
