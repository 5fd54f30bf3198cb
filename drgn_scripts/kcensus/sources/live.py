# SPDX-License-Identifier: LGPL-2.1-or-later
"""The running kernel, read through ``/proc/kcore``."""

from __future__ import annotations

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
from kcensus.text import printable

_KCORE = "/proc/kcore"
_NAME = "the running kernel"


def _set_kernel(prog: drgn.Program) -> None:
    try:
        prog.set_kernel()
    except PermissionError as error:
        # Lockdown denies root, too.
        raise TargetError(
            f"{_NAME}: permission denied for {_KCORE}; run as root (kernel lockdown, if "
            "/sys/kernel/security/lockdown shows it, forbids it even then), or pass a vmcore"
        ) from error
    except FileNotFoundError as error:
        raise TargetError(
            f"{_NAME}: there is no {printable(error.filename or _KCORE)}, so this kernel was built "
            "without CONFIG_PROC_KCORE or this is a container; pass a vmcore"
        ) from error
    except Exception as error:
        # drgn's errors have no common base class.
        raise TargetError(
            f"{_NAME}: cannot be read (drgn: {printable(str(error))}); pass a vmcore"
        ) from error


def _open(request: Request) -> Target:
    prog = drgn.Program()
    _set_kernel(prog)
    check_platform(prog, _NAME)
    debug_info = DebugInfo(prog, request.symbols)
    debug_info.load_kernel()
    return Target(
        prog=prog,
        name=printable(request.spec) if request.spec is not None else _NAME,
        kind="live",
        format="live",
        live=True,
        kernel=printable(kernel_release(prog)),
        # fs/proc/kcore.c copies through one page that belongs to the open file, without a lock
        # (last brought back by commit 17457784004c, v6.5): workers that inherit drgn's descriptor
        # would get each other's bytes.
        shareable=False,
        compressed=False,
        modules=debug_info,
    )


def _claims(spec: str | None) -> bool:
    return spec is None or spec == _KCORE


SOURCE = Source(_claims, _open)
