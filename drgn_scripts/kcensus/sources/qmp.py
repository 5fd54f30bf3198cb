# SPDX-License-Identifier: LGPL-2.1-or-later
"""A QEMU guest, read over its QMP socket: ``qmp:PATH``.

Running or paused, the guest counts as live: whoever paused it may let it run again at any time.
"""

from __future__ import annotations

import os
import socket
import stat
import struct

import drgn

from kcensus.sources.debuginfo.finder import DebugInfo
from kcensus.sources.model import (
    Request,
    Source,
    Target,
    TargetError,
    check_platform,
    kernel_release,
)
from kcensus.sources.reader import os_reason
from kcensus.text import printable

_PREFIX = "qmp:"
# QEMU greets at once, unless another client has the socket: it serves one at a time.
_GREETING_SECONDS = 5.0
# A guest under load answers late, but it answers.
_ANSWER_SECONDS = 60


def _connect(path: str, name: str) -> socket.socket:
    """A connection to a socket that has greeted as QEMU does; the greeting is still to be read."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise TargetError(f"{name}: is not a socket; pass the path given to QEMU's -qmp unix:")
    except FileNotFoundError as error:
        raise TargetError(
            f"{name}: no such socket; start QEMU with -qmp unix:PATH,server=on,wait=off"
        ) from error
    except PermissionError as error:
        raise TargetError(f"{name}: permission denied; run as root or as QEMU's user") from error
    except OSError as error:
        raise TargetError(f"{name}: cannot be reached ({os_reason(error)})") from error
    except ValueError as error:
        raise TargetError(f"{name}: is not a valid path") from error
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_GREETING_SECONDS)
        connection.connect(path)
        # Left in the socket, so that drgn finds it there.
        greeting = connection.recv(64, socket.MSG_PEEK)
        if not greeting.lstrip().startswith(b"{") or b"QMP" not in greeting:
            raise TargetError(f"{name}: does not answer like a QMP socket of QEMU")
        # From here on drgn reads, with plain read(2): give that a limit, too.
        connection.setblocking(True)
        limit = struct.pack("@ll", _ANSWER_SECONDS, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    except TimeoutError as error:
        connection.close()
        raise TargetError(
            f"{name}: does not answer within {_GREETING_SECONDS:.0f} s; it is no QMP socket, or "
            "another client is connected to it (QEMU serves one at a time)"
        ) from error
    except PermissionError as error:
        connection.close()
        raise TargetError(f"{name}: permission denied; run as root or as QEMU's user") from error
    except ConnectionRefusedError as error:
        connection.close()
        raise TargetError(f"{name}: nobody listens on this socket; is QEMU running?") from error
    except OSError as error:
        connection.close()
        raise TargetError(f"{name}: cannot be reached ({os_reason(error)})") from error
    except TargetError:
        connection.close()
        raise
    return connection


def _set_qmp(prog: drgn.Program, path: str, name: str) -> None:
    connection = _connect(path, name)
    try:
        # drgn owns the descriptor from here on, whether it succeeds or not.
        prog.set_qemu_qmp(connection.detach())
    except Exception as error:
        # drgn's errors have no common base class.
        raise TargetError(
            f"{name}: cannot be read as a QEMU guest (drgn: {printable(str(error))})"
        ) from error
    if not prog.flags & drgn.ProgramFlags.IS_LINUX_KERNEL:
        raise TargetError(
            f"{name}: the guest shows no VMCOREINFO; run QEMU with `-device vmcoreinfo` and load "
            "the module qemu_fw_cfg in the guest"
        )


def _open(request: Request) -> Target:
    spec = request.spec or ""
    name = printable(spec)
    prog = drgn.Program()
    _set_qmp(prog, spec.removeprefix(_PREFIX), name)
    check_platform(prog, name)
    debug_info = DebugInfo(prog, request.symbols)
    debug_info.load_kernel()
    return Target(
        prog=prog,
        name=name,
        kind="qmp",
        format="live (QEMU guest over QMP)",
        live=True,
        kernel=printable(kernel_release(prog)),
        # One connection, one conversation.
        shareable=False,
        compressed=False,
        modules=debug_info,
    )


def _claims(spec: str | None) -> bool:
    return spec is not None and spec.startswith(_PREFIX)


SOURCE = Source(_claims, _open)
