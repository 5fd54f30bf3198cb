# SPDX-License-Identifier: LGPL-2.1-or-later
"""The running kernel, read through ``/proc/kcore``."""

from __future__ import annotations

import drgn

from kcensus.sources.debuginfo.finder import load_debug_info
from kcensus.sources.live.refusals import KCORE, hardening, missing_debug_info, refusal
from kcensus.sources.model import (
    MissingDebugInfo,
    Request,
    Source,
    Target,
    TargetError,
    kernel_release,
)

_NAME = "the running kernel"


def _open(request: Request) -> Target:
    prog = drgn.Program()
    try:
        prog.set_kernel()
    except MemoryError:
        raise
    except Exception as error:
        # drgn's errors have no common base class.
        raise TargetError(f"{_NAME}: {refusal(error)}") from error
    # Not shareable: since Linux kernel commit 17457784004c ("fs/proc/kcore: reinstate bounce buffer
    # for KCORE_TEXT regions") (in v6.5), as in older kernels, /proc/kcore copies through one page
    # per open file without a lock, so workers that inherit drgn's descriptor would get each
    # other's bytes.
    name, kernel = request.spec or _NAME, kernel_release(prog)
    target = Target(prog, name, kind="live", format="live", live=True, kernel=kernel, facts=_facts)
    try:
        return load_debug_info(target, request.symbols)
    except MissingDebugInfo as error:
        if request.symbols:
            raise
        raise TargetError(f"{error}{missing_debug_info(kernel, error.build_id)}") from error


def _facts() -> list[tuple[str, str, str]]:
    values = hardening()
    return [("hardening", "hardening", f"{values} (no obstacle)")] if values else []


SOURCE = Source(lambda spec: spec in (None, KCORE), _open)
