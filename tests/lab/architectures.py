# SPDX-License-Identifier: LGPL-2.1-or-later
"""What differs between the architectures of guests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

AMD64, ARM64 = "amd64", "arm64"
"""Architectures as Debian names them."""

_COMMON = "quiet panic=-1 {}mitigations=off"
_GUEST = Path(__file__).parent / "guest"


@dataclass(frozen=True)
class Architecture:
    """How kernels of an architecture are booted, and programs built for them."""

    emulator: str
    board: tuple[str, ...]
    """QEMU's arguments for the machine."""
    cpu: str
    """QEMU's name of the CPU, unless the kernel has another one."""
    reports: tuple[str, ...]
    """QEMU's arguments that connect the character device `serial` as the second serial port."""
    console: str
    """Boot parameters of every kernel."""
    compiler: str
    """What compiles for it: a prefix of GCC's tools."""
    includes: tuple[Path, ...] = ()
    """Directories of the guest's programs with what is special: headers, and whole programs."""
    libraries: str = ""
    """The directory of a package with its shared libraries."""

    @property
    def headers(self) -> list[Path]:
        """The headers of our own."""
        return sorted(path for each in self.includes for path in each.rglob("*.h"))


# A busy host keeps time badly, and emulation is slow.
_ALL = {
    AMD64: Architecture(
        emulator="qemu-system-x86_64",
        board=(),
        # Some versions emulate cmpxchg16b wrongly, and five-level page tables slowly.
        cpu="max,la57=off,cx16=off",
        reports=("-serial", "chardev:serial"),
        console=f"console=ttyS0 {_COMMON.format('tsc=reliable no_timer_check ')}",
        compiler="",
    ),
    ARM64: Architecture(
        emulator="qemu-system-aarch64",
        board=("-machine", "virt,gic-version=3"),
        # Its PAC with an algorithm of QEMU's own, since it emulates the usual one slowly.
        cpu="max,pauth-impdef=on",
        # The machine has one serial port; see guest/arm64/sys/io.h for the other one.
        reports=("-device", "pci-serial,chardev=serial"),
        console=f"console=ttyAMA0 {_COMMON.format('iomem=relaxed ')}",
        compiler="aarch64-linux-gnu-",
        includes=(_GUEST / "arm64",),
        libraries="aarch64-linux-gnu",
    ),
}


def architecture(machine: str) -> Architecture:
    """Return what is known of an architecture, by Debian's name of it."""
    return _ALL[machine]
