# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where BTF lies: in the memory of a kernel, and in files."""

from __future__ import annotations

import io
import lzma
import tarfile
from pathlib import Path

import drgn
from drgn import TypeKind

from kcensus.arch import architecture_of
from kcensus.sources.debuginfo.btf.format import MAGIC, MAX_BYTES, BadBtf
from kcensus.sources.debuginfo.btf.types import Btf
from kcensus.sources.formats import elf
from kcensus.sources.model import TargetError
from kcensus.sources.reader import FileReader
from kcensus.sources.types.nodes import build
from kcensus.text import printable

_MAX_SECTIONS_BYTES = 2 * MAX_BYTES
_MAX_MODULES = 1 << 13
_MAX_MODULES_BYTES = 512 << 20
"""Most bytes of all modules; a host has 40 MiB."""
_MAX_NAME = 64
"""Bytes of ``btf.name``, as of ``module.name``."""
_XZ = b"\xfd7zXZ\0"


def from_memory(prog: drgn.Program, start: int, stop: int, base: Btf | None = None) -> Btf:
    """Return the types of BTF in memory.

    :param start: address of its first byte: of a kernel, the symbol ``__start_BTF``
    :param stop: address behind its last byte: ``__stop_BTF``
    :raises BadBtf: it is malformed, or not in the dump
    """
    signed = _has_signed_char(prog.platform)
    return Btf(_read(prog, start, stop - start), base, has_signed_char=signed)


def _has_signed_char(platform: drgn.Platform | None) -> bool:
    """Return the choice of the machine's ABI."""
    architecture = architecture_of(platform)
    return architecture is None or architecture.has_signed_char


def _read(prog: drgn.Program, address: int, size: int) -> bytes:
    if not 0 < size <= _MAX_SECTIONS_BYTES:
        raise BadBtf(f"its size in memory is {size} bytes")
    try:
        data: bytes = prog.read(address, size)
    except drgn.FaultError as error:
        raise BadBtf(f"its page at {error.address:#x} is not readable") from error
    return data


def of_modules(prog: drgn.Program, kernel: Btf, head: int) -> tuple[dict[str, Btf], list[str]]:
    """Return the types of loaded modules by name, and a sentence for each that has none.

    :param head: address of the symbol ``btf_modules``

    Since Linux kernel commit 36e68442d1af ("bpf: Load and verify kernel module BTFs") (in v5.11),
    the kernel keeps BTF of modules in this list. Since Linux kernel commit 8646db238997
    ("libbpf,bpf: Share BTF relocate-related code with kernel") (in v6.11), modules may have a base
    of their own (``.BTF.base``); on load, the kernel rewrites the IDs and names of their BTF in
    place for its own BTF, or leaves the module out of the list.
    """
    modules: dict[str, Btf] = {}
    sentences: list[str] = []
    ref = kernel.find(TypeKind.STRUCT, "btf_module")
    if ref is None:
        return {}, ["the types of modules are unknown: the kernel's BTF lacks struct btf_module"]
    type_ = build(prog, ref)
    seen, left = {head}, _MAX_MODULES_BYTES
    try:
        offset = drgn.offsetof(type_, "list")
        # The first word of a struct list_head is its member next.
        node = prog.read_u64(head)
        while node not in seen:
            if len(seen) > _MAX_MODULES:
                sentences.append("the list btf_modules does not end; types of modules may lack")
                break
            seen.add(node)
            section = drgn.Object(prog, type_, address=node - offset).btf
            name = printable(prog.read_c_string(section.name.address_, max_size=_MAX_NAME))
            try:
                size = section.data_size.value_()
                if size > left:
                    raise BadBtf("all together are larger than those of any kernel")
                modules[name] = Btf(_read(prog, section.data.value_(), size), kernel)
                left -= size
            except BadBtf as error:
                sentences.append(f"module {name}: its types (BTF) are unusable: {error}")
            node = prog.read_u64(node)
    except drgn.FaultError as error:
        sentences.append(
            f"types of modules may lack: the list btf_modules is unreadable at {error.address:#x}"
        )
    except (LookupError, AttributeError, TypeError, ValueError, OverflowError) as error:
        reason = printable(str(error))
        sentences.append(f"the types of modules are unknown: their list is malformed ({reason})")
    return modules, sentences


def from_file(
    path: Path, base: Btf | None = None, prefix: str = "", platform: drgn.Platform | None = None
) -> Btf:
    """Return the types in a file.

    :param path: of BTF, of an ELF file with a section ``.BTF``, or of an archive (``.tar.xz``) with
        BTF: a file of /sys/kernel/btf, a vmlinux, a module, or an archive of btfhub
    :param prefix: text before the path in messages
    :param platform: of the kernel
    :raises TargetError: the file is unreadable, or its BTF is malformed
    """
    with FileReader(path, prefix) as reader:
        data = _contents(reader, path)
        try:
            return Btf(data, base, has_signed_char=_has_signed_char(platform))
        except BadBtf as error:
            raise TargetError(f"{reader.name}: has unusable types (BTF): {error}") from error


def _contents(reader: FileReader, path: Path) -> bytes:
    start = reader.read(0, 6)
    if start.startswith(elf.MAGIC):
        header = elf.read_header(reader)
        if elf.section(reader, header, b".BTF.base", 1):
            # Since Linux kernel commit 8646db238997 ("libbpf,bpf: Share BTF relocate-related code
            # with kernel") (in v6.11), such modules fit other builds of a kernel.
            raise TargetError(f"{reader.name}: has types (BTF) that only its kernel can relocate")
        data = elf.section(reader, header, b".BTF", _MAX_SECTIONS_BYTES)
        if data is None:
            raise TargetError(f"{reader.name}: has no types (no section .BTF)")
        return data
    if start == _XZ:
        return _of_archive(path, reader.name)
    if reader.size > _MAX_SECTIONS_BYTES:
        raise TargetError(f"{reader.name}: is larger than the types (BTF) of any kernel")
    return reader.read(0, reader.size)


def _of_archive(path: Path, name: str) -> bytes:
    """Return the first file of an archive that is BTF, or the BTF that is compressed as a file."""
    try:
        with lzma.open(path) as stream:
            data = stream.read(_MAX_SECTIONS_BYTES)
        if data.startswith(MAGIC):
            return data
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                # A member with holes has any size in a few bytes.
                is_read = member.isreg() and member.size <= _MAX_SECTIONS_BYTES
                opened = archive.extractfile(member) if is_read else None
                if opened is not None and (content := opened.read()).startswith(MAGIC):
                    return content
    except (lzma.LZMAError, tarfile.TarError, EOFError, OSError, ValueError) as error:
        reason = printable(str(error))
        raise TargetError(f"{name}: is not a readable archive ({reason})") from error
    raise TargetError(f"{name}: contains no types (BTF)")
