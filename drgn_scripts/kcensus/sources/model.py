# SPDX-License-Identifier: LGPL-2.1-or-later
"""Targets, and the sources that open them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import drgn

from kcensus.arch import architecture_of, names
from kcensus.text import printable

SYMBOLS = "KCENSUS_SYMBOLS"
"""Environment variable with more files and directories with debug info, separated by colons."""


class TargetError(Exception):
    """A target or its debug info is unusable; the text is one printable line for the user.

    The command line exits with status 3.
    """


class RequestError(TargetError):
    """An argument besides the target is wrong; the command line exits with status 2."""


class MissingDebugInfo(TargetError):
    """The debug info of a kernel is not found, or belongs to another build."""

    def __init__(self, text: str, build_id: str | None) -> None:
        super().__init__(text)
        self.build_id = build_id


class DamagedError(TargetError):
    """The headers of a dump refer to data missing from the file.

    :param problem: ``truncated`` or ``corrupt``
    :param why: the damage, in words
    :param missing_bytes: least number of missing bytes
    """

    def __init__(
        self,
        name: str,
        problem: str,
        why: str,
        missing_bytes: int = 0,
        remedy: str = "copy it again",
    ) -> None:
        super().__init__(f"{name}: is {problem}: {why}; {remedy}")
        self.why, self.missing_bytes = why, missing_bytes


class ModuleDebugInfo(Protocol):
    """Loads the debug info of kernel modules; see :meth:`Target.need_modules`."""

    def need_modules(self, *names: str) -> list[str]: ...

    def places(self) -> list[tuple[str, str]]:
        """Return (kernel or module, file) of all debug info, printable."""
        ...


class ModuleTypes(ModuleDebugInfo, Protocol):
    """A source of types that knows of each module whether it has them."""

    def has(self, name: str) -> bool:
        """Return whether the types of a loaded module are loaded; ``name`` has no dashes."""
        ...

    def lacks(self, name: str) -> bool:
        """Return whether :meth:`need_modules` found a module loaded and has no types of it."""
        ...


@dataclass
class Target:
    """A kernel with readable memory and types."""

    prog: drgn.Program
    name: str
    """As the user passed it, escaped to printable characters."""
    kind: str
    """``vmcore``, ``live``, ``qmp`` or ``capsule``."""
    format: str
    """Form of the stored memory: ``ELF``, ``kdump-compressed (lzo)``, ``live``, …"""
    live: bool
    """Whether the kernel may change while it is read."""
    kernel: str
    shareable: bool = False
    """Whether forked worker processes may read through :attr:`prog`."""
    compressed: bool = False
    """Whether reading decompresses, so that workers pay off even for small jobs."""
    modules: ModuleDebugInfo | None = field(default=None, repr=False, compare=False)
    """Loads the debug info of modules; None if the target holds all types itself."""
    facts: Callable[[], list[tuple[str, str, str]]] = field(default=list, repr=False, compare=False)
    """More facts about the target: (key, label, printable text)."""
    recorded_for: tuple[str, ...] | None = None
    """The analyses of a capsule's recording; None for any other target."""
    missing_end: str = ""
    """Sentence about the missing end of a truncated dump; empty if it is complete."""
    types: str = "DWARF"
    """First source of the types and symbols: ``DWARF``, ``BTF`` or ``type pack``.

    Of a capsule, of the recorded dump.
    """
    completed: Callable[[], bool] = field(default=bool, repr=False, compare=False)
    """Returns whether BTF has so far given types that the first source lacks."""
    doubts: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """By name of a symbol that was looked up so far and is in doubt, the reason as a clause."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """Sentences about places of debug info that have nothing for this kernel."""
    has_pseudonyms: bool = False
    """Whether names are pseudonyms, in a redacted capsule."""
    boot: str = ""
    """Digest that identifies the boot, as a capsule states it; empty if memory has to tell."""
    words: str | None = None
    """Words of a command that open the target again, quoted for a shell: ``vmcore -s vmlinux``.
    Empty for the kernel that commands without a target read; None if unknown."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Reasons of failed analyses in a capsule's recording, in one sentence each."""
    paths: tuple[str, ...] = ()
    """Further files of a dump, not named by the user."""
    verify: Callable[[], list[str]] = field(default=list, repr=False, compare=False)
    """Reads all of a capsule; returns the names of its corrupt sections."""

    @property
    def is_torn(self) -> bool:
        """Return whether the memory is of many moments: that of a running kernel."""
        return self.live or self.format.endswith(" of live")

    @property
    def type_sources(self) -> str:
        """Sources of the types used so far, such as ``type pack, BTF``."""
        return f"{self.types}, BTF" if self.completed() else self.types

    def need_modules(self, *names: str) -> list[str]:
        """Load the debug info of the named kernel modules; dashes and underscores are the same.

        :return: a sentence for each module that is loaded in the kernel, but has no debug info
        """
        return self.modules.need_modules(*names) if self.modules is not None else []


@dataclass(frozen=True)
class Request:
    """A target to open, as the user passed it."""

    spec: str | None
    """None for the running kernel."""
    symbols: tuple[Path, ...] = ()
    """Files and directories with debug info that the user passed, tried first."""
    shared: tuple[Path, ...] = ()
    """Those of :data:`SYMBOLS`, which are for many kernels."""
    allow_truncated: bool = False
    vmcoreinfo: Path | None = None
    """File with the VMCOREINFO of a dump that has none, or a wrong one."""


@dataclass(frozen=True)
class Source:
    """One kind of target: the ``SOURCE`` of one module of this package."""

    claims: Callable[[str | None], bool]
    """Whether the source opens a target of this form. Must neither raise nor block."""
    open: Callable[[Request], Target]
    """Opens the target; raises :class:`TargetError`."""
    fallback: bool = False
    """Whether the source is tried only if no other source claims the target."""


def check_platform(prog: drgn.Program, name: str) -> None:
    """Raise :class:`TargetError` unless kcensus reads kernels of the machine's architecture."""
    platform = prog.platform
    if architecture_of(platform) is None:
        machine = platform.arch.name.lower() if platform is not None else "unknown"
        raise unsupported_machine(name, machine)


def unsupported_machine(name: str, machine: str) -> TargetError:
    """Return the error for a kernel of another architecture; ``machine`` must be printable."""
    return TargetError(
        f"{name}: comes from a machine of architecture '{machine}', "
        f"but kcensus reads only {names()}, 64-bit"
    )


def kernel_release(prog: drgn.Program) -> str:
    """Return the kernel release, printable; drgn takes it from VMCOREINFO, without debug info."""
    return printable(prog["UTS_RELEASE"].string_())
