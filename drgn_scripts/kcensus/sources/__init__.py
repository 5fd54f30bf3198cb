# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sources of memory and types: the running kernel, vmcores, QEMU guests, capsules.

To add a source, add a module with a ``SOURCE`` (a :class:`~kcensus.sources.model.Source`).
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import pkgutil
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from kcensus.sources import live, session, vmcore
from kcensus.sources.model import SYMBOLS, Request, RequestError, Source, Target, TargetError
from kcensus.sources.reader import os_error
from kcensus.text import printable

__all__ = [
    "RequestError",
    "Target",
    "TargetError",
    "is_running_kernel",
    "open_target",
    "shared_places",
]

_MODULE = re.compile(r"\.ko(\.|$)")
_MANY = 3
"""Modules of one directory from which on the directory stands for them in commands to paste."""

# drgn logs missing debug info and unreadable modules. Without a handler, Python prints these lines
# on the terminal, in addition to our error message.
logging.getLogger("drgn").addHandler(logging.NullHandler())


@functools.cache
def _sources() -> list[Source]:
    """Return all sources in alphabetical order of their modules, fallbacks last."""
    names = (f"{__name__}.{info.name}" for info in pkgutil.iter_modules(__path__))
    sources = (getattr(importlib.import_module(name), "SOURCE", None) for name in names)
    return sorted(filter(None, sources), key=lambda source: source.fallback)


def open_target(
    spec: str | os.PathLike[str] | None,
    symbols: Sequence[str | os.PathLike[str]] = (),
    *,
    allow_truncated: bool = False,
    vmcoreinfo: str | os.PathLike[str] | None = None,
) -> Target:
    """Open a kernel for reading and load the debug info of the kernel, without its modules.

    >>> import kcensus
    >>> kcensus.open_target("sample").kind
    'capsule'

    :param spec: None for the running kernel; the path of a vmcore or capsule, the name of a bundled
        capsule (``sample``), or ``qmp:PATH`` for a QEMU guest with its QMP socket at PATH. While a
        command of crash or drgn runs, None and ``session`` are the kernel that is open there. At
        drgn's prompt itself they are not: there, pass ``prog`` to the functions of :mod:`kcensus`
    :param symbols: files and directories with debug info, tried before the environment variable
        ``KCENSUS_SYMBOLS``, separated by colons, and before drgn's own search
    :param allow_truncated: open a dump that lacks its end; the missing memory is reported as a gap
    :param vmcoreinfo: file with the VMCOREINFO of a vmcore that has none, or a wrong one: its text,
        its ELF note, another dump of the same boot, or a copy of /sys/kernel/vmcoreinfo. Without
        it, kcensus searches the memory of a vmcore that has none
    :raises RequestError: one of ``symbols`` does not exist, or ``vmcoreinfo`` is not for a vmcore
    :raises TargetError: the target or its debug info is unusable
    """
    spec = os.fspath(spec) if spec is not None else session.SPEC if session.is_open() else None
    if spec == "":
        raise TargetError("the target is ''; leave it out to read the running kernel")
    named, shared = tuple(_existing("-s", symbols)), shared_places()
    info = _existing("--vmcoreinfo", [vmcoreinfo] if vmcoreinfo is not None else [])
    words = []
    if spec is not None and not session.is_session(spec):
        words.append(f"./{spec}" if spec.startswith("-") else spec)  # or it would be an option
    words += ["--allow-truncated"] if allow_truncated else []
    words += [word for path in info for word in ("--vmcoreinfo", os.fspath(path))]
    words += [word for path in _in_directories(symbols) for word in ("-s", path)]
    for source in _sources():
        if source.claims(spec):
            # A session's target is that of the next command, too: it stays as it is.
            if info and source is not vmcore.SOURCE:
                raise RequestError("--vmcoreinfo: is only for the file of a vmcore")
            target = source.open(Request(spec, named, shared, allow_truncated, *info))
            return replace(target, words=shlex.join(words))
    raise TargetError(f"'{printable(spec or '')}' is not a target that kcensus can open")


def shared_places() -> tuple[Path, ...]:
    """Return the files and directories in ``KCENSUS_SYMBOLS``, which are for many kernels.

    A note of the target says which ones are unusable.
    """
    return tuple(map(Path, filter(None, os.environ.get(SYMBOLS, "").split(os.pathsep))))


def _in_directories(symbols: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the paths of debug info, with one directory for several modules of it."""
    paths = [os.fspath(path) for path in symbols]
    folders = [
        os.path.dirname(path) or "." if _MODULE.search(os.path.basename(path)) else ""
        for path in paths
    ]
    count = Counter(folders)
    shown = [
        folder if folder and count[folder] >= _MANY else path
        for path, folder in zip(paths, folders, strict=True)
    ]
    return list(dict.fromkeys(shown))


def is_running_kernel(spec: str | os.PathLike[str] | None) -> bool:
    """Return whether a target, as passed to :func:`open_target`, is the kernel that runs here."""
    return live.SOURCE.claims(os.fspath(spec) if spec is not None else None)


def _existing(origin: str, paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return paths that exist; a :class:`RequestError` says that ``origin`` named another."""
    existing = []
    for path in paths:
        name = f"{origin} {printable(os.fspath(path))}"
        try:
            os.stat(path)
        except OSError as error:
            raise RequestError(str(os_error(name, error))) from error
        except ValueError as error:
            raise RequestError(f"{name}: is not a valid path") from error
        existing.append(Path(path))
    return existing
