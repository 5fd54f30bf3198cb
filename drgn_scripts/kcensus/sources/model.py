# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a target is, whichever source of memory it comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import drgn


class TargetError(Exception):
    """A target or its debug info is unusable.

    The text is one sentence on one line, made of printable characters: what is wrong and what to
    do next. A face prints it as it is and exits with status 3.
    """


class ModuleDebugInfo(Protocol):
    """Loads the debug info of kernel modules; see :meth:`Target.need_modules`."""

    def need_modules(self, *names: str) -> list[str]: ...

    def places(self) -> list[tuple[str, str]]:
        """Where debug info was found: (kernel or module, file), printable."""
        ...


@dataclass
class Target:
    """A kernel whose memory and types can be read."""

    prog: drgn.Program
    name: str
    """As its user spelled it, escaped to printable characters."""
    kind: str
    """``vmcore``, ``live``, ``qmp`` or ``capsule``."""
    format: str
    """How the memory is stored, for people: ``ELF``, ``kdump-compressed (lzo)``, ``live``, …"""
    live: bool
    """Whether the kernel may change while it is read."""
    kernel: str
    """Kernel release."""
    shareable: bool
    """Whether forked worker processes may read through :attr:`prog`."""
    compressed: bool
    """Whether reading means decompressing, so that workers pay even for small jobs."""
    modules: ModuleDebugInfo | None = field(default=None, repr=False, compare=False)
    """Where module debug info comes from; None where the target brings all types itself."""
    facts: Callable[[], list[tuple[str, str, str]]] = field(default=list, repr=False, compare=False)
    """What else is worth knowing of it: (key, label, printable text)."""
    recorded_for: tuple[str, ...] | None = None
    """Of a capsule: the analyses that it can be expected to answer; None for whole memories."""

    def need_modules(self, *names: str) -> list[str]:
        """Load the debug info of the named kernel modules, and of no others.

        :param names: module names; dashes and underscores are the same
        :return: one sentence for each module that is loaded in the kernel but whose debug info
            was not found; a module that the kernel does not have loaded needs none
        """
        return self.modules.need_modules(*names) if self.modules is not None else []


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    spec: str | None
    """The target as spelled; None for the running kernel."""
    symbols: tuple[Path, ...] = ()
    """Files and directories with debug info, tried before any other place."""
    allow_truncated: bool = False


@dataclass(frozen=True)
class Source:
    """One source of memory: the ``SOURCE`` of one module of this package."""

    claims: Callable[[str | None], bool]
    """Whether this spelling of a target belongs to the source. Must neither raise nor block."""
    open: Callable[[Request], Target]
    """Opens it; raises :class:`TargetError`."""
    fallback: bool = False
    """Asked only when no other source claims the target."""


def check_platform(prog: drgn.Program, name: str) -> None:
    """Refuse machines whose memory layout the engine does not know.

    :param name: the target's name, already printable
    :raises TargetError: unless it is 64-bit little-endian x86_64 or aarch64
    """
    platform = prog.platform
    wanted = drgn.PlatformFlags.IS_64_BIT | drgn.PlatformFlags.IS_LITTLE_ENDIAN
    if (
        platform is None
        or platform.arch not in (drgn.Architecture.X86_64, drgn.Architecture.AARCH64)
        or platform.flags & wanted != wanted
    ):
        what = platform.arch.name.lower() if platform is not None else "unknown"
        raise unsupported_machine(name, what)


def unsupported_machine(name: str, machine: str) -> TargetError:
    """The error for a kernel of another architecture; ``machine`` must be printable."""
    return TargetError(
        f"{name}: comes from a machine of architecture {machine}, "
        "but kcensus reads only x86_64 and aarch64 (64-bit, little-endian)"
    )


def kernel_release(prog: drgn.Program) -> str:
    """The kernel's release, which drgn knows from VMCOREINFO without any debug info."""
    release: bytes = prog["UTS_RELEASE"].string_()
    return release.decode("utf-8", "replace")
