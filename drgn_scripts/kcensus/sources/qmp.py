# SPDX-License-Identifier: LGPL-2.1-or-later
"""A QEMU guest, read over its QMP socket: ``qmp:PATH``.

The guest counts as live even while it is paused, because it may be resumed at any time.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct

import drgn

from kcensus.sources.debuginfo.opening import load_debug_info
from kcensus.sources.model import Request, Source, Target, TargetError, kernel_release
from kcensus.sources.reader import os_reason
from kcensus.text import printable

_PREFIX = "qmp:"
# QEMU greets immediately, unless another client is connected: it serves one at a time.
_MAX_GREETING_SECONDS = 5.0
# A guest under load answers late.
_MAX_ANSWER_SECONDS = 60
_REFUSALS = {
    FileNotFoundError: "no such socket; start QEMU with -qmp unix:PATH,server=on,wait=off",
    PermissionError: "permission denied; run as root or as QEMU's user",
    ConnectionRefusedError: "connection refused; is QEMU running?",
}


def _connect(path: str, name: str) -> socket.socket:
    """Return a connection to a socket with QEMU's greeting, which stays unread."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise TargetError(f"{name}: is not a socket; pass the path given to QEMU's -qmp unix:")
        with contextlib.ExitStack() as on_error:
            connection = on_error.enter_context(socket.socket(socket.AF_UNIX))
            connection.settimeout(_MAX_GREETING_SECONDS)
            connection.connect(path)
            # Peek: drgn reads the greeting again.
            greeting = connection.recv(64, socket.MSG_PEEK)
            if not greeting.lstrip().startswith(b"{") or b"QMP" not in greeting:
                raise TargetError(f"{name}: does not answer like a QMP socket of QEMU")
            # drgn uses read(2) and write(2), which only these options limit.
            connection.setblocking(True)
            limit = struct.pack("@ll", _MAX_ANSWER_SECONDS, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            on_error.pop_all()
        return connection
    except TimeoutError as error:
        raise TargetError(
            f"{name}: does not answer within {_MAX_GREETING_SECONDS:.0f} s: it is not a QMP "
            "socket, or another client is connected to it (QEMU serves one at a time)"
        ) from error
    except ValueError as error:
        raise TargetError(f"{name}: is not a valid path") from error
    except OSError as error:
        why = _REFUSALS.get(type(error)) or f"cannot be reached ({os_reason(error)})"
        raise TargetError(f"{name}: {why}") from error


def _open(request: Request) -> Target:
    spec = request.spec or ""
    name = printable(spec)
    prog = drgn.Program()
    connection = _connect(spec.removeprefix(_PREFIX), name)
    try:
        # drgn closes the descriptor, whether it succeeds or not.
        prog.set_qemu_qmp(connection.detach())
    except Exception as error:
        # drgn's errors have no common base class.
        raise TargetError(
            f"{name}: cannot be read as a QEMU guest (drgn: {printable(str(error))})"
        ) from error
    if not prog.flags & drgn.ProgramFlags.IS_LINUX_KERNEL:
        raise TargetError(
            f"{name}: the guest does not publish VMCOREINFO; run QEMU with `-device vmcoreinfo` "
            "and load the module qemu_fw_cfg in the guest"
        )
    # Not shareable: workers would write to the same connection.
    format, kernel = "live (QEMU guest over QMP)", kernel_release(prog)
    target = Target(prog, name, kind="qmp", format=format, live=True, kernel=kernel)
    return load_debug_info(target, request.symbols, request.shared)


SOURCE = Source(lambda spec: spec is not None and spec.startswith(_PREFIX), _open)
