# SPDX-License-Identifier: LGPL-2.1-or-later
"""A dump file: ELF or kdump-compressed, plain or in makedumpfile's flattened format."""

from __future__ import annotations

import drgn

from kcensus.limits import is_own_process
from kcensus.sources.debuginfo.opening import load_debug_info
from kcensus.sources.formats.sniff import sniff
from kcensus.sources.model import Request, Source, Target, TargetError
from kcensus.sources.reader import os_error
from kcensus.sources.shrunk import end_with_sentence
from kcensus.sources.vmcoreinfo.opening import open_dump
from kcensus.text import printable


def _open(request: Request) -> Target:
    path = request.spec or ""
    name = printable(path)
    sniffed = sniff(path, searched=True)
    if sniffed.truncated and not request.allow_truncated:
        raise TargetError(
            f"{name}: is truncated: {sniffed.truncated}; copy it again, or read the rest "
            "with --allow-truncated"
        )
    if sniffed.needs_libkdumpfile and not getattr(drgn, "_with_libkdumpfile", True):
        raise TargetError(
            f"{name}: is {sniffed.format}, but this drgn was built without libkdumpfile; install a "
            "drgn built with it, such as drgn's wheels on PyPI, or install libkdumpfile-dev and "
            "compile drgn again: pip install --force-reinstall --no-cache-dir drgn"
        )
    if is_own_process():
        end_with_sentence(name)
    try:
        prog, sniffed = open_dump(path, sniffed, request.vmcoreinfo)
    except OSError as error:
        raise os_error(name, error) from error
    except (MemoryError, TargetError):
        raise
    except Exception as error:
        # drgn's errors have no common base class.
        advice = f"; {sniffed.if_refused}" if sniffed.if_refused else ""
        raise TargetError(
            f"{name}: cannot be opened as {sniffed.format} (drgn: {printable(str(error))}){advice}"
        ) from error
    if not prog.flags & drgn.ProgramFlags.IS_LINUX_KERNEL:
        raise TargetError(f"{name}: is not a dump of a Linux kernel")
    # drgn opens another name of /proc/kcore, which live.py does not claim, as live.
    live = bool(prog.flags & drgn.ProgramFlags.IS_LIVE)
    target = sniffed.target(prog, name, live, not live)
    return load_debug_info(target, request.symbols, request.shared)


SOURCE = Source(lambda spec: spec is not None, _open, fallback=True)
