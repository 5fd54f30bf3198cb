# SPDX-License-Identifier: LGPL-2.1-or-later
"""Symbols of a kernel from its System.map, or from a copy of its /proc/kallsyms."""

from __future__ import annotations

import os
import re
from pathlib import Path

import drgn
import numpy as np

from kcensus.arch import KERNEL, architecture_of
from kcensus.sources.debuginfo.kallsyms import decode
from kcensus.sources.debuginfo.kallsyms.symbol_names import BadKallsyms, of_text
from kcensus.sources.debuginfo.kallsyms.symbols import Symbols
from kcensus.sources.reader import FileReader, os_error
from kcensus.sources.vmcoreinfo.text import Vmcoreinfo, vmcoreinfo_of

# System.map of 7.3 has 11 MB, and /proc/kallsyms with many modules twice as much.
_MAX_BYTES = 128 << 20
_LINE = re.compile(rb"^([0-9a-f]{8,16}) ([A-Za-z?]) ([!-~]{1,1024})(?:[ \t]+\[[!-~]{1,256}\])?$")
# Labels of the assembler, with control characters; a kernel with KVM can have __kvm_nvhe_.L…
_LABEL = re.compile(rb"^[0-9a-f]{8,16} [A-Za-z?] [!-~]{0,64}\.L[!-~\x01\x02]{1,1024}$")
# nm(1) lists weak symbols that are nowhere defined first, without an address.
_UNDEFINED = re.compile(rb"^ {8,16} [UVvWw] [!-~]{1,1024}$")
_FIRST_LINE = re.compile(rb"(?:[0-9a-f]{8,16} [A-Za-z?]| {8,16} [UVvWw]) [!-~]")
# Symbols of VMCOREINFO besides _stext that must be in the file: a kernel without KALLSYMS_ALL has
# few, and _stext of many kernels is at the same place.
_MIN_KNOWN = 3
_BANNER = b"Linux version "
_PROC = "/proc/kallsyms"
_EXACT = "; pass the System.map of exactly this build"


def is_symbols(start: bytes) -> bool:
    """Return whether a file that begins so is a System.map or like /proc/kallsyms."""
    return bool(_FIRST_LINE.match(start))


def is_of_running_kernel(path: str | Path) -> bool:
    """Return whether a path is /proc/kallsyms, whose size is 0 by stat()."""
    return os.path.abspath(path) == _PROC


def from_file(path: str | Path, prog: drgn.Program) -> Symbols:
    """Return the symbols of the kernel of ``prog``, without those of its modules.

    A System.map has addresses as linked, so the offset of KASLR is added. A file that contradicts
    the SYMBOL lines of VMCOREINFO, or linux_banner in memory, belongs to another kernel.

    :raises BadKallsyms: the file is not such a list, or not of this kernel
    :raises TargetError: the file cannot be read
    """
    architecture = architecture_of(prog.platform)
    fixed = architecture.fixed if architecture is not None else 1 << 64
    table = parsed(_contents(path), vmcoreinfo_of(prog), fixed)
    address = table.address("linux_banner")
    if address is not None:
        try:
            banner = prog.read(address, len(_BANNER))
        except (drgn.FaultError, ValueError, OverflowError):
            banner = _BANNER  # Its page is not in the dump.
        if banner != _BANNER:
            raise BadKallsyms(
                f"belongs to another kernel: linux_banner is not at 0x{address:x}{_EXACT}"
            )
    return table


def _contents(path: str | Path) -> bytes:
    if is_of_running_kernel(path):
        try:
            with open(_PROC, "rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise os_error(_PROC, error) from error
    else:
        with FileReader(path) as reader:
            data = reader.read(0, _MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise BadKallsyms("the file is too large for a list of symbols")
    return data


def parsed(data: bytes, info: Vmcoreinfo, fixed: int) -> Symbols:
    """Return the symbols in the lines of ``data``.

    :param fixed: lowest address that KASLR does not move, behind the kernel
    :raises BadKallsyms: a line is no symbol, or a symbol not where VMCOREINFO says it is
    """
    lines = data.splitlines()
    if not len(lines) >= decode.MIN_SYMBOLS:
        raise BadKallsyms("the file does not have enough lines for the symbols of a kernel")
    if len(lines) > 4 * decode.MAX_SYMBOLS:
        raise BadKallsyms("the file has too many lines for the symbols of a kernel")
    places: list[int] = []
    names: list[bytes] = []
    for number, line in enumerate(lines, 1):
        match = _LINE.match(line)
        if match is None and (_LABEL.match(line) or _UNDEFINED.match(line)):
            continue
        if match is None:
            raise BadKallsyms(f"line {number} is not an address, a type and a symbol")
        if not line.endswith(b"]"):
            places.append(int(match[1], 16))
            names.append(b"\n" + match[2] + match[3])
    if not any(places):
        raise BadKallsyms(
            "all addresses are 0; read /proc/kallsyms as root, with sysctl kernel.kptr_restrict=1"
        )
    address = np.array(places, np.uint64)
    order = np.argsort(address, kind="stable")
    address = address[order]
    text = b"".join(names[row] for row in order.tolist())
    known = info.own_symbols()
    names_ = of_text(text)
    linked = Symbols(names_, address)
    stext = known.get("_stext")
    offset = info.kernel_offset
    if offset and stext is not None and stext not in linked.addresses("_stext"):
        # Per-CPU variables are below, as places in a CPU's area.
        moves = (address >= KERNEL) & (address <= np.uint64(fixed - 1))
        table = Symbols(names_, address + np.uint64(offset) * moves.astype(np.uint64))
        is_boot = False
    else:
        # The offset of KASLR is another one at each boot.
        table, is_boot = linked, bool(offset)
    try:
        decode.check_known(table, known, "the file")
    except BadKallsyms as error:
        raise BadKallsyms(f"belongs to another kernel: {error}{_EXACT}") from error
    if not is_boot and sum(bool(table.addresses(name)) for name in known) <= _MIN_KNOWN:
        raise BadKallsyms("the file has too few symbols of VMCOREINFO to tell the kernel")
    return table
