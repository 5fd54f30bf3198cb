# SPDX-License-Identifier: LGPL-2.1-or-later
"""Inspect a file before drgn opens it, to explain why it is unusable."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, replace
from pathlib import Path

import drgn
import zstandard

from kcensus.human import human_bytes
from kcensus.sources.formats import elf, kdump
from kcensus.sources.model import (
    DamagedError,
    Target,
    TargetError,
    kernel_release,
    unsupported_machine,
)
from kcensus.sources.reader import FileReader

_UNPACK = "is compressed with {0}; decompress it first ({1})"
_UNPACK_TAR = "is a tar archive compressed with zstd; unpack it first (tar --zstd -xf)"
_ZSTD = b"\x28\xb5\x2f\xfd"
_ZSTD_BYTES = (1 << 17) + 64
"""Bytes that hold the first block of zstd."""
_CASE, _TAR_BYTES = b"kcensus-case/", 512
"""Beginning of the first name in an archive of ``kcensus collect``; bytes of a header of tar."""
_COLLECTED = (
    "is an archive of `kcensus collect`: unpack it (tar --zstd -xf), read kcensus-case/README.txt "
    "and kcensus-case/1/report.txt, and open kcensus-case/1/case.capsule"
)
_SAVED_QEMU = "is a saved QEMU state, not a memory dump; use QEMU's dump-guest-memory"
_SAVED_LIBVIRT = "is a state saved by libvirt, not a memory dump; use `virsh dump --memory-only`"
_PROCESS = "is a core dump of a process, not of a kernel"
_TRACE = "is a trace of blktrace; pass it with --trace (or --traces to kcensus validate)"
_ZEROS = "starts with zeros: it is not a memory dump, or was never written; dump it again"
_UNKNOWN = "is not a memory dump that drgn can read; pass an ELF or kdump-compressed vmcore"
# A raw image has all pages of a machine.
_MIN_IMAGE_BYTES, _PAGE_BYTES = 16 << 20, 4096
_DOCUMENT = re.compile(rb'\s*\{\s*"(schema|kcensus)"')
_SAVED = (
    "is a JSON document of kcensus, not a memory dump; `kcensus record` and `kcensus diff` take it"
)
_BLKPARSE = re.compile(rb" *\d+,\d+ +\d+ +\d+ +\d+\.\d{9} +\d+ ")
"""The first line of blkparse's output."""
# (offset, magic, kind of file and next step).
_KNOWN: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x1f\x8b", _UNPACK.format("gzip", "gunzip")),
    (0, b"\xfd7zXZ\0", _UNPACK.format("xz", "unxz")),
    (0, b"BZh", _UNPACK.format("bzip2", "bunzip2")),
    (0, b"\x04\x22\x4d\x18", _UNPACK.format("lz4", "unlz4")),
    (0, b"PK\x03\x04", "is a zip archive; unpack it first (unzip)"),
    (0, b"7z\xbc\xaf\x27\x1c", "is a 7-Zip archive; unpack it first"),
    (257, b"ustar", "is a tar archive; unpack it first (tar -xf)"),
    (514, b"HdrS", "is a bootable kernel image (vmlinuz), not a memory dump"),
    (0, b"DISKDUMP", "is in the diskdump format of kernels before kdump, which drgn cannot read"),
    (0, b"\xed\x23\x8f\x61\x73\x01\x19\xa8", "is in the LKCD format, which drgn cannot read"),
    (0, b"PAGEDU64", "is a memory dump of Windows"),
    (0, b"PAGEDUMP", "is a memory dump of Windows"),
    (0, b"QEVM", _SAVED_QEMU),
    (0, b"LibvirtQemudSave", _SAVED_LIBVIRT),
    (1, b"tae", _TRACE),
    (0, b"eat\x07", _TRACE),
    (0, b"eat\x08", _TRACE),
    (0, b"\xd2\xbe\xd2\xbe", "is a VMware state; convert it with vmss2core"),
    (0, b"EMiL", "is in LiME's own format; record memory with its format=padded"),
    (0, b"QFI\xfb", "is the image of a disk (qcow2), not a memory dump"),
    (510, b"\x55\xaa", "is the image of a disk, not a memory dump"),
)


@dataclass(frozen=True)
class Sniffed:
    """Facts from the headers of a dump."""

    format: str
    compressed: bool = False
    needs_libkdumpfile: bool = False
    truncated: str = ""
    """Reason for missing pages; empty if none are."""
    missing_bytes: int = 0
    """Bytes missing at the end of the file; 0 if unknown."""
    if_refused: str = ""
    """Advice if drgn cannot open the dump."""
    no_vmcoreinfo: str = ""
    """Reason to search the memory for VMCOREINFO; empty if the dump has it."""
    is_raw: bool = False
    """Whether the file is memory without any header."""

    @property
    def missing_end(self) -> str:
        """Sentence about the missing end of the dump; empty if it is complete."""
        if self.missing_bytes:
            return f"the dump lacks its last {human_bytes(self.missing_bytes)}"
        return f"the dump lacks its end: {self.truncated}" if self.truncated else ""

    def target(self, prog: drgn.Program, name: str, live: bool, shareable: bool) -> Target:
        """Return the target that ``prog`` reads from the dump."""
        return Target(
            prog,
            name,
            kind="vmcore",
            format=self.format + (", truncated" if self.truncated else ""),
            live=live,
            kernel=kernel_release(prog),
            shareable=shareable,
            compressed=self.compressed,
            missing_end=self.missing_end,
        )


def sniff(path: str | Path, *, is_open: bool = False, searched: bool = False) -> Sniffed:
    """Return the facts from the headers of a memory dump.

    :param is_open: whether crash has opened it, which needs no VMCOREINFO, joins the parts of a
        split dump, and copes with damage
    :param searched: whether the caller searches for VMCOREINFO in a dump that lacks it; then, a
        large file of unknown contents is a raw image
    :raises TargetError: the file is not a memory dump, or cannot be read
    """
    with FileReader(path) as reader:
        start = reader.read(0, 1024)
        if start.startswith(elf.MAGIC):
            return _elf(reader, is_open, searched)
        if start.startswith(kdump.MAGIC):
            return _kdump(reader, is_open)
        if start.startswith(kdump.FLAT_MAGIC):
            try:
                return _flattened(reader)
            except DamagedError as error:
                if not is_open:
                    raise
                return Sniffed("flattened", truncated=error.why)
        is_zstd = start.startswith(_ZSTD)
        why = _of_zstd(reader.read(0, _ZSTD_BYTES)) if is_zstd else _why_not_a_dump(start)
        is_image = reader.size >= _MIN_IMAGE_BYTES and reader.size % _PAGE_BYTES == 0
        if searched and is_image and why in (_UNKNOWN, _ZEROS):
            return Sniffed("raw image", no_vmcoreinfo=why, is_raw=True)
        raise TargetError(f"{reader.name}: {why}")


def _why_not_a_dump(start: bytes) -> str:
    for offset, magic, message in _KNOWN:
        if start[offset:].startswith(magic):
            return message
    if not start.strip(b"\0"):
        return _ZEROS
    if _BLKPARSE.match(start):
        return _TRACE
    if _DOCUMENT.match(start):
        return _SAVED
    if _is_text(start):
        return "is a text file, not a memory dump; pass a vmcore"
    return _UNKNOWN


def _of_zstd(start: bytes) -> str:
    """Return what a file compressed with zstd is, and the next step."""
    try:
        with zstandard.ZstdDecompressor(max_window_size=8 << 20).stream_reader(start) as packed:
            header = packed.read(_TAR_BYTES)
    except zstandard.ZstdError:
        header = b""
    if header.startswith(_CASE):
        return _COLLECTED
    if header[257:].startswith(b"ustar"):
        return _UNPACK_TAR
    return _UNPACK.format("zstd", "unzstd")


def _is_text(start: bytes) -> bool:
    try:
        # Incremental, because the last character may be cut.
        text = codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return all(char >= " " or char in "\t\n\r\x1b" for char in text)


def _core_header(reader: FileReader) -> elf.Header:
    header = elf.read_header(reader)
    if header.type == elf.ET_REL:
        raise TargetError(f"{reader.name}: is a kernel module or object file; pass it with -s")
    if header.type != elf.ET_CORE:
        raise TargetError(
            f"{reader.name}: is an ELF program, library or vmlinux, not a memory dump; pass the "
            "vmcore, and a vmlinux with -s"
        )
    if not header.supported:
        error = unsupported_machine(reader.name, header.machine)
        # QEMU 7.2 takes the byte order of a hypervisor, which its guest does not have.
        is_qemu = header.machine == "ppc64 (big-endian)"
        raise TargetError(f"{error}; {_POWER}") if is_qemu else error
    return header


_POWER = "QEMU writes dumps of ppc64le guests in this order, too: use kdump in the guest instead"


def _elf(reader: FileReader, is_open: bool, searched: bool) -> Sniffed:
    header = _core_header(reader)
    segments = elf.segments(reader, header)
    lacks = ""
    if not is_open:
        notes = elf.core_notes(reader, header, segments)
        if not any(owner == b"VMCOREINFO" for owner, _, _ in notes):
            lacks = _no_vmcoreinfo(notes)
            if not searched or lacks == _PROCESS:
                raise TargetError(f"{reader.name}: {lacks}")
    end = max((segment.offset + segment.filesz for segment in segments), default=0)
    missing = max(end - reader.size, 0)
    truncated = f"{missing} of {end} bytes are missing" if missing else ""
    return Sniffed("ELF", truncated=truncated, missing_bytes=missing, no_vmcoreinfo=lacks)


def _no_vmcoreinfo(notes: list[tuple[bytes, int, bytes]]) -> str:
    if any(owner == b"CORE" and type_ == elf.NT_AUXV for owner, type_, _ in notes):
        return _PROCESS
    if any(owner == b"QEMU" for owner, _, _ in notes):
        return (
            "has no VMCOREINFO; run QEMU with `-device vmcoreinfo` and load the module "
            "qemu_fw_cfg in the guest before dumping it"
        )
    return "has no VMCOREINFO: it is not a dump of a Linux kernel, or was made without kdump"


def _kdump(reader: FileReader, is_open: bool) -> Sniffed:
    header = kdump.read_header(reader)
    if is_open and header.split:
        # The bitmaps cover all parts.
        return Sniffed(f"{header.format}, split")
    try:
        truncated, missing = kdump.check_length(reader, header), 0
    except DamagedError as error:
        if not is_open:
            raise
        truncated, missing = error.why, error.missing_bytes
    return replace(_sniffed(reader.name, header, header.format, truncated), missing_bytes=missing)


def _flattened(reader: FileReader) -> Sniffed:
    start = kdump.flattened_start(reader)
    advice = "reassemble it with `makedumpfile -R NEW <OLD`"
    if not start.startswith(kdump.MAGIC):
        inner = "ELF" if start.startswith(elf.MAGIC) else "unknown"
        return Sniffed(f"{inner}, flattened", needs_libkdumpfile=True, if_refused=advice)
    header = kdump.parse_header(start, reader.name)
    truncated = kdump.OUT_OF_SPACE if header.incomplete else ""
    return _sniffed(reader.name, header, f"{header.format}, flattened", truncated, advice)


def _sniffed(
    name: str, header: kdump.KdumpHeader, format: str, truncated: str, advice: str = ""
) -> Sniffed:
    if header.split:
        raise TargetError(
            f"{name}: is one part of a split dump; join the parts with "
            "`makedumpfile --reassemble PART… NEW`"
        )
    if header.from_qemu:
        advice = (
            "QEMU writes this format without headers that libkdumpfile needs; dump the guest as "
            "ELF, the default of dump-guest-memory and `virsh dump --memory-only`"
        )
    return Sniffed(format, bool(header.compression), True, truncated, if_refused=advice)
