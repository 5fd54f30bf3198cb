# SPDX-License-Identifier: LGPL-2.1-or-later
"""What differs between the architectures of guests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

AMD64, ARM64, PPC64EL, S390X = "amd64", "arm64", "ppc64el", "s390x"
"""Architectures as Debian names them."""

_COMMON = "quiet panic=-1 {}mitigations=off"
_GUEST = Path(__file__).parents[1] / "guest"


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
    loader: str = ""
    """The interpreter that its programs name."""
    flavor: str = ""
    """The kernels' name for it, unless that is Debian's of the architecture."""
    has_vmcoreinfo: bool = True
    """Whether QEMU has the device through which a kernel tells it where VMCOREINFO is."""

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
        loader="lib/ld-linux-aarch64.so.1",
    ),
    PPC64EL: Architecture(
        emulator="qemu-system-ppc64",
        # Against side channels, which an emulator cannot help.
        board=("-machine", "pseries,cap-cfpc=broken,cap-sbbc=broken,cap-ibs=broken"),
        cpu="power9",
        reports=("-serial", "chardev:serial"),
        console=f"console=hvc0 {_COMMON.format('')}",
        compiler="powerpc64le-linux-gnu-",
        includes=(_GUEST / "terminal",),
        libraries="powerpc64le-linux-gnu",
        loader="lib64/ld64.so.2",
        flavor="powerpc64le",
        has_vmcoreinfo=False,
    ),
    S390X: Architecture(
        emulator="qemu-system-s390x",
        board=("-machine", "s390-ccw-virtio"),
        cpu="qemu",
        reports=("-device", "virtio-serial-ccw", "-device", "virtserialport,chardev=serial"),
        console=f"console=ttyS0 {_COMMON.format('')}",
        compiler="s390x-linux-gnu-",
        includes=(_GUEST / "terminal",),
        libraries="s390x-linux-gnu",
        loader="lib/ld64.so.1",
        has_vmcoreinfo=False,
    ),
}


def architecture(machine: str) -> Architecture:
    """Return what is known of an architecture, by Debian's name of it."""
    return _ALL[machine]
