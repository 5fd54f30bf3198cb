# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the memory of a dump says about its kernel and modules."""

from __future__ import annotations

import contextlib
import logging.handlers
import os
from collections.abc import Collection, Iterable, Iterator

import drgn

from kcensus.sources.formats.banner import same_build
from kcensus.text import printable

_MAX_WARNINGS = 1 << 20
_TAINT_OOT_MODULE = 1 << 12
"""Bit of ``module.taints``: its modinfo has no ``intree=Y``."""


@contextlib.contextmanager
def held_warning() -> Iterator[None]:
    """Leave out drgn's warning about a kernel without debug info, unless an error follows.

    Other types may serve.
    """
    held: list[logging.LogRecord] = []

    def is_shown(record: logging.LogRecord) -> bool:
        if not record.getMessage().startswith("missing debugging symbols for kernel"):
            return True
        held.append(record)
        return False

    logger = logging.getLogger("drgn")
    logger.addFilter(is_shown)
    is_served = False
    try:
        yield
        is_served = True
    finally:
        logger.removeFilter(is_shown)
        for record in () if is_served else held:
            logger.handle(record)


def holds(prog: drgn.Program, contents: Iterable[tuple[int, bytes]], offset: int) -> bool:
    """Return whether memory has these bytes at their linked addresses; False without any.

    A redacted capsule has a banner without its builder.
    """
    equal = set()
    for address, data in contents:
        with contextlib.suppress(drgn.FaultError, ValueError, OverflowError):
            equal.add(same_build(data, bytes(prog.read(address + offset, len(data)))))
    return equal == {True}


def loaded_modules(
    prog: drgn.Program, wanted: Collection[str]
) -> tuple[list[drgn.RelocatableModule], list[str]]:
    """Return drgn's modules of the loaded ones with the names.

    :param wanted: names without dashes
    :return: also a sentence if the kernel's list of modules is unreadable, as far as that matters
    """
    # drgn only logs unreadable parts of the list.
    warnings = logging.handlers.BufferingHandler(_MAX_WARNINGS)
    warnings.setLevel(logging.WARNING)
    logger = logging.getLogger("drgn")
    logger.addHandler(warnings)
    try:
        with modules_from_memory():
            prog.create_loaded_modules()
        modules = [
            module
            for module in prog.modules()
            if isinstance(module, drgn.RelocatableModule) and module.name in wanted
        ]
    except MemoryError:
        raise
    except Exception as error:
        # drgn's errors have no common base class. Analyses work without modules.
        return [], [unreadable_modules(wanted, str(error))]
    finally:
        logger.removeHandler(warnings)
    unseen = set(wanted) - {module.name for module in modules}
    if unseen and warnings.buffer:
        return modules, [unreadable_modules(unseen, warnings.buffer[-1].getMessage())]
    return modules, []


def is_out_of_tree(module: drgn.Object) -> bool:
    """Return whether a module was built outside of the kernel's tree; False if unknown.

    :param module: ``struct module``
    """
    with contextlib.suppress(Exception):  # drgn's errors have no common base class
        return bool(int(module.taints) & _TAINT_OOT_MODULE)
    return False


def unreadable_modules(names: Collection[str], reason: str) -> str:
    """Return the sentence about an unreadable list of modules."""
    return (
        f"cannot determine whether the modules {', '.join(sorted(names))} are loaded "
        f"(drgn: {printable(reason)})"
    )


@contextlib.contextmanager
def modules_from_memory() -> Iterator[None]:
    """Let drgn find modules of the running kernel in its memory meanwhile, unless told otherwise.

    By default, drgn takes their addresses from /sys/module, where they are 0 if
    kernel.kptr_restrict is 2, and where a module that is unloaded meanwhile is an error. It reads
    the variable for each module; the environment may be that of another program.
    """
    name = "DRGN_USE_SYS_MODULE"
    is_ours = name not in os.environ
    os.environ.setdefault(name, "0")
    try:
        yield
    finally:
        if is_ours:
            os.environ.pop(name, None)
