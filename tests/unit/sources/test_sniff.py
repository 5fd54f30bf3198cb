# SPDX-License-Identifier: LGPL-2.1-or-later
"""Error messages for files that are not a memory dump, are truncated, or cannot be read.

All files are synthetic: headers that this file makes, without memory of a kernel.
"""

from __future__ import annotations

import gzip
import lzma
import os
import socket
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kcensus.commands.collect.archive import ROOT
from kcensus.sources import TargetError
from kcensus.sources.formats import kdump as kdump_format
from kcensus.sources.formats.coverage import coverage
from kcensus.sources.formats.sniff import Sniffed, sniff

BLOCK = 4096
VMCOREINFO = (b"VMCOREINFO", 0, b"OSRELEASE=6.1.0-synthetic\nPAGESIZE=4096\n")
PRSTATUS = (b"CORE", 1, bytes(336))


def tar(name: str) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = 1 << 20
    return member.tobuf(tarfile.USTAR_FORMAT) + os.urandom(member.size)


def note(owner: bytes, type_: int, contents: bytes, order: str = "<") -> bytes:
    padded = owner + b"\0" * (4 - len(owner) % 4)
    body = contents + b"\0" * (-len(contents) % 4)
    return struct.pack(f"{order}III", len(owner) + 1, len(contents), type_) + padded + body


def elf_core(
    notes: list[tuple[bytes, int, bytes]],
    *,
    machine: int = 62,
    type_: int = 4,
    data: int = 1,
    bits: int = 2,
    loaded: int = 8192,
    present: int | None = None,
    many: bool = False,
) -> bytes:
    """A synthetic ELF file with one note segment and one segment of ``loaded`` zeros."""
    order = "<" if data == 1 else ">"
    body = b"".join(note(*each, order) for each in notes)
    headers = 64 + 2 * 56 + (64 if many else 0)
    ident = b"\x7fELF" + bytes([bits, data, 1]) + bytes(9)
    shoff, phnum, shnum = (64 + 2 * 56, 0xFFFF, 1) if many else (0, 2, 0)
    ehdr = ident + struct.pack(
        order + "HHIQQQIHHHHHH", type_, machine, 1, 0, 64, shoff, 0, 64, 56, phnum, 64, shnum, 0
    )
    phdrs = struct.pack(order + "IIQQQQQQ", 4, 0, headers, 0, 0, len(body), len(body), 4)
    start = headers + len(body)
    phdrs += struct.pack(order + "IIQQQQQQ", 1, 7, start, 0, 0, loaded, loaded, 4096)
    # For more than 65534 program headers, sh_info of the first section has their number.
    shdr = struct.pack(f"{order}IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, 2, 0, 0) if many else b""
    return ehdr + phdrs + shdr + body + bytes(loaded if present is None else present)


def kdump(
    *,
    status: int = 2,
    level: int = 31,
    split: int = 0,
    machine: bytes = b"x86_64",
    sysname: bytes = b"Linux",
    block: int = BLOCK,
    written: int | None = None,
    order: str = "<",
) -> bytes:
    """A synthetic kdump-compressed file: headers, bitmaps, descriptors and pages full of 0xaa."""
    words = (sysname, b"synthetic", b"6.1.0", b"#1", machine, b"")
    uts = b"".join(word.ljust(65, b"\0") for word in words)
    header = b"KDUMP   " + struct.pack(f"{order}i", 6) + uts.ljust(396, b"\0") + bytes(16)
    mapnr, pages, page_bytes = 4096, 5, 100
    header += struct.pack(f"{order}IiiIIIIIIi", status, block, 1, 2, mapnr, 0, 0, 0, 0, 1)
    sub = struct.pack(f"{order}Qii", 0, level, split) + bytes(80)
    sub += struct.pack(f"{order}Q", mapnr)
    bitmap = ((1 << pages) - 1).to_bytes(block, "little")
    descs_at = 4 * block
    data_at = descs_at + 24 * pages
    descs = b"".join(
        struct.pack(f"{order}QIIQ", data_at + i * page_bytes, page_bytes, status & 0x27, 0)
        if written is None or i < written
        else bytes(24)
        for i in range(pages)
    )
    data = b"\xaa" * (page_bytes * pages)
    return header.ljust(block, b"\0") + sub.ljust(block, b"\0") + bitmap * 2 + descs + data


def flattened(content: bytes, *, end: bool = True) -> bytes:
    """``content`` as a stream of records, in makedumpfile's flattened format."""
    header = b"makedumpfile\0\0\0\0" + struct.pack(">qq", 1, 1)
    records = b"".join(
        struct.pack(">qq", at, len(content[at : at + 3000])) + content[at : at + 3000]
        for at in range(0, len(content), 3000)
    )
    return header.ljust(4096, b"\0") + records + (b"\xff" * 16 if end else b"")


@pytest.fixture
def file(tmp_path: Path) -> Callable[[bytes], Path]:
    def file(content: bytes) -> Path:
        path = tmp_path / "dump"
        path.write_bytes(content)
        return path

    return file


def one_line(text: object) -> str:
    """Check that an error message is one sentence on one printable line, and return it."""
    sentence = str(text)
    assert sentence.isprintable()
    assert not sentence.endswith(".")
    assert ". " not in sentence
    return sentence


def refusal(path: Path | str) -> str:
    with pytest.raises(TargetError) as caught:
        sniff(path)
    return one_line(caught.value).split(": ", 1)[1]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("none", "none: no such file"),
        ("sampleio", "sampleio: no such file; did you mean sample-io?"),
        ("a\0b", "a\\x00b: is not a valid path"),
        ("\x1b[31mred\nline\u202e", "\\x1b[31mred\\x0aline\\u202e: no such file"),
    ],
)
def test_no_such_file(path: str, said: str) -> None:
    with pytest.raises(TargetError) as caught:
        sniff(path)
    assert str(caught.value) == said


def test_a_directory_and_the_vmcore_in_it(tmp_path: Path) -> None:
    assert refusal(tmp_path) == "is a directory; pass the vmcore file inside it"
    (tmp_path / "vmcore").write_bytes(b"x")
    assert refusal(tmp_path) == f"is a directory; pass {tmp_path}/vmcore"


def test_a_trace_is_no_dump(file: Callable[[bytes], Path], tmp_path: Path) -> None:
    text = b"  8,0    0        1     0.000000000   112  Q  RM 128 + 32 [fio]\n"
    (tmp_path / "traces").mkdir()
    for start in (b"\x07tae" + bytes(60), b"eat\x07" + bytes(60), text):
        (tmp_path / "traces" / "sda.blktrace.0").write_bytes(start)
        for path in (file(start), tmp_path / "traces"):
            assert "pass it with --trace" in refusal(path)


def test_files_that_would_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert refusal(tmp_path / "fifo").startswith("is a named pipe")
    assert "character device" in refusal("/dev/null")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        assert "qmp:PATH" in refusal(tmp_path / "socket")


def test_an_unreadable_file(file: Callable[[bytes], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = file(b"x")

    def denied(*_: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    # Root may read any file, and tests often run as root.
    monkeypatch.setattr(os, "open", denied)
    assert refusal(path).startswith("permission denied")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a log of something\n" * 10, "is a text file"),
        (gzip.compress(b"dump", mtime=0), "is compressed with gzip"),
        (lzma.compress(b"dump"), "is compressed with xz"),
        (b"\x28\xb5\x2f\xfd" + b"\x80" * 9, "is compressed with zstd"),
        (zstandard.compress(b"dump" * 99), "is compressed with zstd"),
        (zstandard.compress(tar("a")), "is a tar archive compressed with zstd"),
        (zstandard.compress(tar(f"{ROOT}/README.txt")), "is an archive of `kcensus collect`"),
        (bytes(514) + b"HdrS\x0f\x02", "is a bootable kernel image"),
        (bytes(510) + b"\x55\xaa", "is the image of a disk"),
        (b"EMiL\1\0\0\0", "is in LiME's own format"),
        (bytes(5000), "starts with zeros"),
        (b"\x80\x81\x82" * 1000, "is not a memory dump"),
        (elf_core([], type_=1), "is a kernel module or object file"),
        (elf_core([], type_=2), "is an ELF program, library or vmlinux"),
        (elf_core([PRSTATUS, (b"CORE", 6, bytes(32))]), "is a core dump of a process"),
        (elf_core([PRSTATUS]), "has no VMCOREINFO"),
        (
            elf_core([PRSTATUS, (b"QEMU", 0, bytes(440))]),
            "has no VMCOREINFO; run QEMU with `-device vmcoreinfo` and load the module qemu_fw_cfg",
        ),
        (b"", "is empty; copy it again"),
        (kdump(split=1), "is one part of a split dump; join the parts with `makedumpfile --reas"),
        *((elf_core([VMCOREINFO])[:keep], "is truncated") for keep in (5, 30, 80, 150, 200)),
        *(
            (kdump()[:keep], f"is truncated: it ends inside its {inside}")
            for keep, inside in (
                (8, "kdump header"),
                (4100, "kdump header"),
                (2 * BLOCK + 1, "page bitmap"),
                (4 * BLOCK, "page descriptors"),
                (4 * BLOCK + 100, "page descriptors"),
            )
        ),
        (flattened(kdump(), end=False), "is truncated: it lacks the end"),
        (kdump(machine=b"Unknown", sysname=b""), "QEMU wrote 'Unknown' as its machine"),
        *(
            (kdump(machine=machine), "comes from a machine of architecture")
            for machine in (b"riscv64", b"ppc64", b"i686", b"\x1b[2J")
        ),
    ],
)
def test_a_file_that_is_not_a_whole_dump(
    file: Callable[[bytes], Path], content: bytes, said: str
) -> None:
    assert refusal(file(content)).startswith(said)


@pytest.mark.parametrize(
    ("machine", "data", "bits", "name"),
    [
        (22, 1, 2, "s390x"),
        (21, 2, 2, "ppc64 (big-endian)"),
        (243, 1, 2, "riscv"),
        (183, 2, 2, "aarch64 (big-endian)"),
        (62, 1, 1, "32-bit x86_64"),
        (3, 1, 1, "i386"),
        (4242, 1, 2, "ELF machine 4242"),
    ],
)
def test_another_architecture(
    file: Callable[[bytes], Path], machine: int, data: int, bits: int, name: str
) -> None:
    content = elf_core([VMCOREINFO], machine=machine, data=data, bits=bits)
    assert f"architecture '{name}'" in refusal(file(content))


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(("machine", "data"), [(62, 1), (183, 1), (21, 1), (22, 2)])
def test_an_elf_dump(file: Callable[[bytes], Path], machine: int, data: int, many: bool) -> None:
    content = elf_core([PRSTATUS, VMCOREINFO], machine=machine, data=data, many=many)
    assert sniff(file(content)) == Sniffed("ELF")


@pytest.mark.parametrize(
    ("status", "level", "said", "compressed"),
    [
        (0x0, 0, "kdump-compressed (raw pages)", False),
        (0x1, 31, "kdump-compressed (zlib, dump level 31)", True),
        (0x2, 1, "kdump-compressed (lzo, dump level 1)", True),
        (0x4, 17, "kdump-compressed (snappy, dump level 17)", True),
        (0x20, 31, "kdump-compressed (zstd, dump level 31)", True),
        (0x12, 31, "kdump-compressed (lzo, dump level 31, without unused vmemmap pages)", True),
    ],
)
def test_a_kdump(
    file: Callable[[bytes], Path], status: int, level: int, said: str, compressed: bool
) -> None:
    plain = sniff(file(kdump(status=status, level=level)))
    assert plain == Sniffed(said, compressed=compressed, needs_libkdumpfile=True)
    flat = sniff(file(flattened(kdump(status=status, level=level))))
    assert (flat.format, flat.compressed) == (f"{said}, flattened", compressed)
    assert "makedumpfile -R" in flat.if_refused


def test_other_whole_dumps(file: Callable[[bytes], Path]) -> None:
    assert not sniff(file(kdump(block=65536, machine=b"aarch64"))).truncated
    whole = kdump(machine=b"s390x", order=">")
    assert sniff(file(whole)).format == "kdump-compressed (lzo, dump level 31)"
    assert refusal(file(whole[:-1])).startswith("is truncated: 1 of ")
    assert sniff(file(flattened(elf_core([VMCOREINFO])))).format == "ELF, flattened"
    for content in (kdump(sysname=b""), flattened(kdump(sysname=b""))):
        assert "QEMU" in sniff(file(content)).if_refused


def test_an_elf_dump_without_its_end(file: Callable[[bytes], Path]) -> None:
    content = elf_core([VMCOREINFO], loaded=8192, present=5000)
    whole = len(content) + 3192
    sniffed = sniff(file(content))
    assert sniffed.truncated == f"3192 of {whole} bytes are missing"
    assert sniffed.missing_bytes == 3192
    assert sniffed.missing_end == "the dump lacks its last 3.1 KiB"
    memory = coverage(file(content))
    assert memory is not None
    assert (memory.saved_bytes, memory.memory_bytes) == (5000, 8192)
    # A kdump without its last pages.
    content = kdump()
    said = refusal(file(content[:-150]))
    assert f"150 of {len(content)} bytes are missing" in said
    assert f"truncate -s {len(content)}" in said


@pytest.mark.parametrize(
    ("content", "truncated"),
    [
        (kdump()[:-150] + bytes(150), "its last pages were never written"),
        (kdump(written=3), "its last pages were never written"),
        (kdump(status=2 | 8), kdump_format.OUT_OF_SPACE),
        (flattened(kdump(status=2 | 8)), kdump_format.OUT_OF_SPACE),
    ],
    ids=range(4),
)
def test_a_kdump_without_an_end_can_be_opened(
    file: Callable[[bytes], Path], content: bytes, truncated: str
) -> None:
    assert sniff(file(content)).truncated == truncated


@pytest.mark.parametrize("row", [0, 4])
@pytest.mark.parametrize(("offset", "size"), [(1 << 40, 100), (1 << 63, 100), (40960, 1 << 20)])
def test_a_kdump_whose_descriptors_point_outside_of_it(
    file: Callable[[bytes], Path], row: int, offset: int, size: int
) -> None:
    """An access there would kill the process (SIGBUS)."""
    content = bytearray(kdump())
    struct.pack_into("<QI", content, 4 * BLOCK + 24 * row, offset, size)
    assert refusal(file(bytes(content))).startswith("is corrupt: page descriptors")


@pytest.mark.parametrize(("at", "part"), [(48, "notes"), (64, "eraseinfo")])
@pytest.mark.parametrize(("offset", "size"), [(1 << 40, 100), (1 << 63, 100), (4096, 1 << 50)])
def test_a_kdump_whose_sub_header_points_outside_of_it(
    file: Callable[[bytes], Path], at: int, part: str, offset: int, size: int
) -> None:
    content = bytearray(kdump())
    struct.pack_into("<QQ", content, BLOCK + at, offset, size)
    assert refusal(file(bytes(content))).startswith(f"is corrupt: its {part}")
    struct.pack_into("<QQ", content, BLOCK + at, offset, 0)
    sniff(file(bytes(content)))
    # An older version of the header does not have the part.
    struct.pack_into("<QQ", content, BLOCK + at, offset, size)
    struct.pack_into("<i", content, 8, 2)
    sniff(file(bytes(content)))


@pytest.mark.parametrize(
    ("content", "format_"),
    [
        (elf_core([VMCOREINFO])[:-100], "ELF"),
        (elf_core([PRSTATUS])[:-100], "ELF"),
        (kdump()[:-150], "kdump-compressed"),
        (flattened(kdump(), end=False), "flattened"),
    ],
)
def test_a_truncated_dump_that_another_program_opened(
    file: Callable[[bytes], Path], content: bytes, format_: str
) -> None:
    sniffed = sniff(file(content), is_open=True)
    assert sniffed.format.startswith(format_)
    assert sniffed.missing_end


WHOLE = [
    elf_core([PRSTATUS, VMCOREINFO]),
    elf_core([VMCOREINFO], many=True),
    kdump(),
    kdump(block=65536, machine=b"aarch64"),
    flattened(kdump()),
    flattened(elf_core([VMCOREINFO])),
]


def sniff_bytes(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for is_open in (False, True):
        try:
            said = sniff(path, is_open=is_open).truncated
        except TargetError as error:
            said = str(error)
        assert said.isprintable()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "dump"


MAGICS = st.sampled_from(
    [b"", b"\x7fELF\x02\x01", b"KDUMP   ", b"makedumpfile\0\0\0\0", b"\x1f\x8b"]
)


@given(magic=MAGICS, content=st.binary(max_size=2000))
def test_random_bytes_are_refused(scratch: Path, magic: bytes, content: bytes) -> None:
    sniff_bytes(scratch, magic + content)


@pytest.mark.slow
@given(data=st.data())
def test_corrupt_headers_are_refused(scratch: Path, data: st.DataObject) -> None:
    content = bytearray(WHOLE[data.draw(st.integers(0, len(WHOLE) - 1))])
    for _ in range(data.draw(st.integers(1, 4))):
        # Mostly in the headers, so that most changes have an effect.
        end = data.draw(st.sampled_from([600, 5000, len(content) - 8]))
        at = data.draw(st.integers(0, min(end, len(content) - 8)))
        value = data.draw(st.integers(0, 255) | st.sampled_from([2**63, 2**64 - 1, 2**32 - 1, 0]))
        size = 1 if value < 256 else 8
        content[at : at + size] = value.to_bytes(size, "little")
    cut = data.draw(st.none() | st.integers(0, len(content)))
    sniff_bytes(scratch, bytes(content[:cut]))
