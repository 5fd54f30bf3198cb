# SPDX-License-Identifier: LGPL-2.1-or-later
"""A program that kcensus did not open: drgn's command line, a script, a notebook did."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import drgn

from kcensus.sources.capsule import NotRecorded
from kcensus.sources.debuginfo.finder import load_debug_info
from kcensus.sources.formats.sniff import Sniffed, sniff
from kcensus.sources.model import Target, TargetError, check_platform, kernel_release
from kcensus.text import printable

_KEY = "kcensus_target"
"""Where :attr:`drgn.Program.config` holds the target that a program was opened as."""
_UNNAMED = "(program)"


def remember(target: Target) -> None:
    """Let :func:`adopt` return ``target`` for its program."""
    target.prog.config[_KEY] = target


def adopt(prog: drgn.Program, symbols: tuple[Path, ...] = ()) -> Target:
    """Return the target that a program of a Linux kernel is.

    Debug info that the program lacks is searched for, as in a target that kcensus opens: the
    kernel's now, that of modules when an analysis needs it.

    :param symbols: files and directories with debug info, tried first. The directories become
        options of the program
    :raises TargetError: the program is not a Linux kernel, the machine is not supported, or the
        debug info of the kernel is not found
    """
    if not prog.flags & drgn.ProgramFlags.IS_LINUX_KERNEL:
        raise TargetError(
            "the program is not a Linux kernel; open a vmcore or the running kernel in drgn"
        )
    known = prog.config.get(_KEY)
    if isinstance(known, Target):
        if not symbols or known.recorded_for is not None:
            return known
        return load_debug_info(replace(known), symbols)
    target = _live(prog) if prog.flags & drgn.ProgramFlags.IS_LIVE else _dump(prog)
    if _has_own_types(prog):
        check_platform(prog, target.name)
        return target
    return load_debug_info(target, symbols)


def _live(prog: drgn.Program) -> Target:
    """Describe a program that reads a running kernel; workers would share its descriptor."""
    is_local = prog.flags & drgn.ProgramFlags.IS_LOCAL
    name, kind = ("the running kernel", "live") if is_local else ("the QEMU guest", "qmp")
    return Target(prog, name, kind, format="live", live=True, kernel=kernel_release(prog))


def _dump(prog: drgn.Program) -> Target:
    """Describe a program that reads a dump, or something that only its owner knows."""
    path = prog.core_dump_path
    try:
        header = sniff(path) if path is not None else Sniffed("unknown")
    except TargetError:  # the file is gone, or the program's owner helped drgn to read it
        header = Sniffed("unknown")
    return Target(
        prog,
        _UNNAMED if path is None else printable(path),
        kind="vmcore",
        format=header.format + (", truncated" if header.truncated else ""),
        live=False,
        missing_end=header.missing_end,
        kernel=kernel_release(prog),
        shareable=path is not None,
        compressed=header.compressed,
    )


def _has_own_types(prog: drgn.Program) -> bool:
    """Return whether the types of a program come from callbacks, such as CTF or a capsule's."""
    try:
        if not prog.main_module().wants_debug_file():
            return False
    except LookupError:
        pass
    try:
        prog.type("struct page")
    except LookupError:
        return False
    except NotRecorded:
        pass
    return True
