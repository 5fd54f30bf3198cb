# SPDX-License-Identifier: LGPL-2.1-or-later
"""Targets, and the sources that open them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import drgn

from kcensus.text import printable


class TargetError(Exception):
    """A target or its debug info is unusable.

    The text is one printable line: what is wrong, then what to do. The command line prints it
    unchanged and exits with status 3.
    """


class RequestError(TargetError):
    """Something that the user passed besides the target is wrong, whatever the target.

    The command line exits with status 2.
    """


class MissingDebugInfo(TargetError):
    """The debug info of a kernel is not found, or belongs to another build.

    :param build_id: build ID of the kernel in hexadecimal, if known
    """

    def __init__(self, text: str, build_id: str | None) -> None:
        super().__init__(text)
        self.build_id = build_id


class DamagedError(TargetError):
    """A dump ends before, or lies beyond, what its headers refer to.

    :param text: the whole sentence
    :param why: what of it is about the damage
    :param missing_bytes: how many bytes the file lacks at least
    """

    def __init__(self, text: str, why: str, missing_bytes: int = 0) -> None:
        super().__init__(text)
        self.why, self.missing_bytes = why, missing_bytes


class ModuleDebugInfo(Protocol):
    """Loads the debug info of kernel modules; see :meth:`Target.need_modules`."""

    def need_modules(self, *names: str) -> list[str]: ...

    def places(self) -> list[tuple[str, str]]:
        """Return (kernel or module, file) of all debug info, printable."""
        ...


@dataclass
class Target:
    """A kernel whose memory and types can be read."""

    prog: drgn.Program
    name: str
    """As the user passed it, escaped to printable characters."""
    kind: str
    """``vmcore``, ``live``, ``qmp`` or ``capsule``."""
    format: str
    """How the memory is stored: ``ELF``, ``kdump-compressed (lzo)``, ``live``, …"""
    live: bool
    """Whether the kernel may change while it is read."""
    kernel: str
    """Kernel release."""
    shareable: bool = False
    """Whether forked worker processes may read through :attr:`prog`."""
    compressed: bool = False
    """Whether reading decompresses, so that workers pay off even for small jobs."""
    modules: ModuleDebugInfo | None = field(default=None, repr=False, compare=False)
    """Loads the debug info of modules; None if the target holds all types itself."""
    facts: Callable[[], list[tuple[str, str, str]]] = field(default=list, repr=False, compare=False)
    """More facts about the target: (key, label, printable text)."""
    recorded_for: tuple[str, ...] | None = None
    """The analyses that a capsule was recorded for; None for any other target."""
    missing_end: str = ""
    """Which end of a truncated dump is missing, in one sentence; empty if none is."""
    has_pseudonyms: bool = False
    """Whether names are pseudonyms, in a redacted capsule."""
    options: str = ""
    """The options that it was opened with, quoted for a shell."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Why analyses failed when a capsule was recorded, in one sentence each."""
    paths: tuple[str, ...] = ()
    """The files of a dump as its source has them, for one that the user did not name."""
    verify: Callable[[], list[str]] = field(default=list, repr=False, compare=False)
    """Reads all of a capsule; returns the names of its corrupt sections."""

    def need_modules(self, *names: str) -> list[str]:
        """Load the debug info of the named kernel modules only.

        :param names: module names; dashes and underscores are the same
        :return: one sentence for each module that is loaded in the kernel but whose debug info
            was not found
        """
        return self.modules.need_modules(*names) if self.modules is not None else []


@dataclass(frozen=True)
class Request:
    """A target to open, as the user passed it."""

    spec: str | None
    """The target as passed; None for the running kernel."""
    symbols: tuple[Path, ...] = ()
    """Files and directories with debug info, tried first."""
    allow_truncated: bool = False


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
    """Refuse machines whose memory layout the engine does not know.

    :param name: name of the target, already printable
    :raises TargetError: the machine is not x86_64 or aarch64, 64-bit and little-endian
    """
    platform = prog.platform
    required = drgn.PlatformFlags.IS_64_BIT | drgn.PlatformFlags.IS_LITTLE_ENDIAN
    if (
        platform is None
        or platform.arch not in (drgn.Architecture.X86_64, drgn.Architecture.AARCH64)
        or platform.flags & required != required
    ):
        machine = platform.arch.name.lower() if platform is not None else "unknown"
        raise unsupported_machine(name, machine)


def unsupported_machine(name: str, machine: str) -> TargetError:
    """Return the error for a kernel of another architecture; ``machine`` must be printable."""
    return TargetError(
        f"{name}: comes from a machine of architecture '{machine}', "
        "but kcensus reads only x86_64 and aarch64 (64-bit, little-endian)"
    )


def kernel_release(prog: drgn.Program) -> str:
    """Return the kernel release, printable; drgn takes it from VMCOREINFO, without debug info."""
    return printable(prog["UTS_RELEASE"].string_())
