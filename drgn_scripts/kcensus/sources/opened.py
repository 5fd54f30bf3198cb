# SPDX-License-Identifier: LGPL-2.1-or-later
"""A program opened outside of kcensus: by drgn's command line, a script, or a notebook."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote

import drgn

from kcensus.sources.capsule import NotRecorded
from kcensus.sources.debuginfo.opening import has_types, load_debug_info
from kcensus.sources.formats.sniff import Sniffed, sniff
from kcensus.sources.model import Target, TargetError, check_platform, kernel_release
from kcensus.text import printable

_KEY = "kcensus_target"
"""Key in :attr:`drgn.Program.config` of the target of a program."""


def remember(target: Target) -> None:
    """Let :func:`adopt` return ``target`` for its program."""
    target.prog.config[_KEY] = target


def adopt(
    prog: drgn.Program, symbols: tuple[Path, ...] = (), shared: tuple[Path, ...] = ()
) -> Target:
    """Return the target of a program of a Linux kernel, with missing debug info loaded.

    :param symbols: files and directories with debug info, tried first; the directories become
        options of the program
    :param shared: others, for many kernels
    :raises TargetError: the program is not a Linux kernel, the machine is not supported, or the
        debug info of the kernel is not found
    """
    if not prog.flags & drgn.ProgramFlags.IS_LINUX_KERNEL:
        raise TargetError(
            "the program is not a Linux kernel; open a vmcore or the running kernel in drgn"
        )
    known = prog.config.get(_KEY)
    if isinstance(known, Target):
        if not (symbols or shared) or known.recorded_for is not None:
            return known
        return load_debug_info(replace(known), symbols, shared)
    target = _live(prog) if prog.flags & drgn.ProgramFlags.IS_LIVE else _dump(prog)
    if not has_types(prog) and _has_own_types(prog):
        check_platform(prog, target.name)
        return target
    return load_debug_info(target, symbols, shared)


def _live(prog: drgn.Program) -> Target:
    is_local = prog.flags & drgn.ProgramFlags.IS_LOCAL
    name, kind = ("the running kernel", "live") if is_local else ("the QEMU guest", "qmp")
    # Not shareable: workers would share its descriptor.
    target = Target(prog, name, kind, format="live", live=True, kernel=kernel_release(prog))
    return replace(target, words="" if is_local else None)


def _dump(prog: drgn.Program) -> Target:
    path = prog.core_dump_path
    try:
        header = sniff(path) if path is not None else Sniffed("unknown")
    except TargetError:  # the file is gone, or the program's owner helped drgn to read it
        header = Sniffed("unknown")
    name = "(program)" if path is None else printable(path)
    target = header.target(prog, name, live=False, shareable=path is not None)
    return replace(target, words=None if path is None else quote(path))


def _has_own_types(prog: drgn.Program) -> bool:
    """Return whether the types of a program come from callbacks, such as CTF or a capsule's."""
    with suppress(LookupError):
        if not prog.main_module().wants_debug_file():
            return False
    try:
        prog.type("struct page")
    except NotRecorded:
        return True
    except LookupError:
        return False
    return True
