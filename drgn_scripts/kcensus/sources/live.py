# SPDX-License-Identifier: LGPL-2.1-or-later
"""The running kernel, read through ``/proc/kcore``."""

from __future__ import annotations

import drgn

from kcensus.sources.debuginfo.finder import load_debug_info
from kcensus.sources.model import Request, Source, Target, TargetError, kernel_release
from kcensus.text import printable

_KCORE = "/proc/kcore"
_NAME = "the running kernel"


def _open(request: Request) -> Target:
    prog = drgn.Program()
    try:
        prog.set_kernel()
    except PermissionError as error:
        raise TargetError(
            f"{_NAME}: permission denied for {_KCORE}; run as root or pass a vmcore (kernel "
            "lockdown denies root, too; see /sys/kernel/security/lockdown)"
        ) from error
    except FileNotFoundError as error:
        raise TargetError(
            f"{_NAME}: {printable(error.filename or _KCORE)} does not exist: this kernel was built "
            "without CONFIG_PROC_KCORE, or this is a container; pass a vmcore"
        ) from error
    except Exception as error:
        # drgn's errors have no common base class.
        raise TargetError(
            f"{_NAME}: cannot be read (drgn: {printable(str(error))}); pass a vmcore"
        ) from error
    # Not shareable: since Linux kernel commit 17457784004c ("fs/proc/kcore: reinstate bounce buffer
    # for KCORE_TEXT regions") (in v6.5), as in older kernels, /proc/kcore copies through one page
    # per open file without a lock, so workers that inherit drgn's descriptor would get each
    # other's bytes.
    name, kernel = request.spec or _NAME, kernel_release(prog)
    target = Target(prog, name, kind="live", format="live", live=True, kernel=kernel)
    return load_debug_info(target, request.symbols)


SOURCE = Source(lambda spec: spec in (None, _KCORE), _open)
