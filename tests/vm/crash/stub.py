# SPDX-License-Identifier: LGPL-2.1-or-later
"""A child of the extension that behaves as its first word says: ``KCENSUS_PYTHON`` names it.

Any other word makes it the Python that the extension expects.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

_HEADER = struct.Struct("=II")
_READ = struct.Struct("=QII")
_CPU = struct.Struct("=IIQQQ")
HELLO, VMCOREINFO, READ, CPUS = 1, 2, 3, 4
PHYSICAL, VIRTUAL = 0, 1
_MAX_REPLY = 4 << 20


def _request(kind: int, payload: bytes = b"") -> bytes:
    return _HEADER.pack(len(payload), kind) + payload


def _read_request(address: int, size: int, space: int) -> bytes:
    return _request(READ, _READ.pack(address, size, space))


class Extension:
    """The other end of the socket."""

    def __init__(self) -> None:
        self.socket = socket.socket(fileno=int(sys.argv[4]))
        # As the program of the extension does.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])

    def _receive(self, size: int) -> bytes:
        data = self.socket.recv(size, socket.MSG_WAITALL)
        if len(data) < size:
            raise EOFError
        return data

    def ask(self, kind: int, payload: bytes = b"") -> tuple[int, bytes]:
        """Return the status and the payload of the reply."""
        self.socket.sendall(_request(kind, payload))
        length, status = _HEADER.unpack(self._receive(_HEADER.size))
        return status, self._receive(length)

    def read(self, address: int, size: int, space: int) -> tuple[int, bytes]:
        return self.ask(READ, _READ.pack(address, size, space))


def protocol(extension: Extension, output: str, *places: str) -> None:
    """Write what the extension answers to ``output``; places are ``ADDRESS,SIZE,SPACE``."""
    reads = []
    for place in places:
        address, size, space = (int(word, 0) for word in place.split(","))
        status, data = extension.read(address, size, space)
        reads.append([status, data.hex()])
    _, cpus = extension.ask(CPUS)
    facts = extension.ask(HELLO)[1].decode().split("\0")
    answers = {
        "facts": dict(fact.split("=", 1) for fact in facts if fact),
        "vmcoreinfo": extension.ask(VMCOREINFO)[1].decode(),
        "reads": reads,
        "cpus": list(_CPU.iter_unpack(cpus)),
        "descriptors": sorted(map(int, os.listdir("/proc/self/fd"))),
        "columns": os.environ.get("COLUMNS"),
        "stdin": os.readlink("/proc/self/fd/0"),
    }
    Path(output).write_text(json.dumps(answers))


def dies(extension: Extension) -> None:
    """Is killed in the middle of a conversation."""
    extension.ask(HELLO)
    os.kill(os.getpid(), signal.SIGKILL)


def dies_inside(extension: Extension) -> None:
    """Is killed in the middle of a request."""
    extension.socket.sendall(_read_request(0, 0, PHYSICAL)[:-11])
    os.kill(os.getpid(), signal.SIGSEGV)


def closes(extension: Extension) -> None:
    """Closes its socket, and goes on."""
    extension.ask(HELLO)
    extension.socket.close()
    time.sleep(600)


def slow(extension: Extension) -> None:
    """Sends a request byte by byte, and reads its reply byte by byte."""
    for byte in _read_request(1 << 20, 8, PHYSICAL):
        extension.socket.sendall(bytes([byte]))
        time.sleep(0.01)
    for _ in range(_HEADER.size + 8):
        assert extension.socket.recv(1)
        time.sleep(0.01)
    print("slow but right")


def silent(extension: Extension) -> None:
    """Never asks."""
    # Python would miss a signal that comes just before it sleeps.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    print("waiting", flush=True)
    time.sleep(600)


def stubborn(extension: Extension) -> None:
    """Never asks, and ignores that it should end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("waiting", flush=True)
    time.sleep(600)


def deaf(extension: Extension) -> None:
    """Asks, and reads no reply."""
    print("waiting", flush=True)
    while True:
        extension.socket.sendall(_read_request(1 << 20, _MAX_REPLY, PHYSICAL))


def floods(extension: Extension) -> None:
    """Asks faster than crash answers, and reads each reply."""
    print("waiting", flush=True)
    extension.socket.setblocking(True)
    if os.fork() == 0:
        while True:
            extension.socket.sendall(_request(HELLO) * 64)
    while True:
        extension.socket.recv(1 << 16)


def in_a_long_call(extension: Extension) -> None:
    """Notices Ctrl-C late, as Python does in a function of C, and says so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("kcensus: interrupted"))
    print("waiting", flush=True)
    time.sleep(600)


def leaves_a_process(extension: Extension) -> None:
    """Ends, while a process that it started has the socket."""
    if os.fork() == 0:
        os.setsid()
        time.sleep(3)
        os._exit(0)


_WRONG = {
    "random_bytes": os.urandom(1 << 20),
    "long_request": _HEADER.pack((1 << 32) - 1, HELLO),
    "large_read": _read_request(0, _MAX_REPLY + 1, PHYSICAL),
    "empty_read": _read_request(0, 0, PHYSICAL),
    "wrapped_read": _read_request((1 << 64) - 16, 32, VIRTUAL),
    "unknown_space": _read_request(0, 16, 2),
}
"""Bytes that are not in the protocol."""


def wrong(extension: Extension, data: bytes) -> None:
    """Sends bytes in the middle of a conversation."""
    extension.ask(HELLO)
    # crash may close its end before it has all.
    with suppress(OSError):
        extension.socket.sendall(data)
    time.sleep(600)


BEHAVIOURS: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (
        protocol, dies, dies_inside, closes, slow, silent, stubborn, deaf, floods, in_a_long_call,
        leaves_a_process,
    )
}  # fmt: skip
BEHAVIOURS |= {name: partial(wrong, data=data) for name, data in _WRONG.items()}


def install(directory: Path) -> Path:
    """Write a program that runs this module, as ``KCENSUS_PYTHON`` has it."""
    program = directory / "stub"
    # A library that crash alone needs is not for the child.
    lines = ("#!/bin/sh", "unset LD_PRELOAD", f'exec "{sys.executable}" "{__file__}" "$@"', "")
    program.write_text("\n".join(lines))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


if __name__ == "__main__":
    # -c PROGRAM SOURCE FD VERSION -- BEHAVIOUR WORD…
    if (behaviour := BEHAVIOURS.get(sys.argv[7])) is None:
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    behaviour(Extension(), *sys.argv[8:])
