# SPDX-License-Identifier: LGPL-2.1-or-later
"""VMCOREINFO is parsed, searched for in memory, and read from files."""

from __future__ import annotations

from pathlib import Path

import drgn
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcensus.sources import RequestError, TargetError, open_target
from kcensus.sources.formats.sniff import sniff
from kcensus.sources.vmcoreinfo import memory
from kcensus.sources.vmcoreinfo.given import Place, at_place, read_vmcoreinfo
from kcensus.sources.vmcoreinfo.search import search_vmcoreinfo
from kcensus.sources.vmcoreinfo.text import BadVmcoreinfo, Vmcoreinfo, version_in_memory
from tests.unit.sources.kallsyms.tables import program
from tests.unit.sources.test_sniff import PRSTATUS, elf_core, kdump, note, one_line

MIB = 1 << 20
RELEASE = "6.1.0-synthetic"
PHYS_BASE = 0x10_0000
UTS = 0x30_0000
"""Physical address of init_uts_ns."""
IMAGE = 0xFFFF_FFFF_8000_0000


def text(release: str = RELEASE, uts: int = UTS, more: str = "") -> bytes:
    return (
        f"OSRELEASE={release}\nPAGESIZE=4096\n"
        f"SYMBOL(init_uts_ns)={IMAGE + uts - PHYS_BASE:x}\n"
        f"SYMBOL(swapper_pg_dir)={IMAGE + 0x40_0000:x}\nSYMBOL(_stext)={IMAGE + 0x20_0000:x}\n"
        f"NUMBER(phys_base)={PHYS_BASE}\nNUMBER(pgtable_l5_enabled)=0\nKERNELOFFSET=1f000000\n{more}"
    ).encode()


def ram(places: dict[int, bytes], size: int = 24 * MIB) -> bytearray:
    """Memory with the names of the kernel at init_uts_ns, and more at other places."""
    data = bytearray(size)
    words = (b"Linux", b"host", RELEASE.encode())
    uts = b"\4\0\0\0" + b"".join(word.ljust(65, b"\0") for word in words)
    for place, content in {UTS: uts, **places}.items():
        data[place : place + len(content)] = content
    return data


def found(data: bytes | bytearray, hole: range = range(0)) -> bytes:
    def read(address: int, size: int) -> bytes:
        if address + size > len(data) or any(
            at in hole for at in range(address & ~4095, address + size, 4096)
        ):
            raise drgn.FaultError("no memory", address)
        return bytes(data[address : address + size])

    return search_vmcoreinfo(read, [(0, len(data))])


def test_lines_are_parsed() -> None:
    info = Vmcoreinfo(text(more="SYMBOL(mem_section)=ffff888000000000\nNUMBER(x)=0x1f\n"))
    assert info.is_complete()
    assert info.kernel_offset == 0x1F00_0000
    assert info.number("x") == 31
    assert info.number("y") is None
    assert info.word("BUILD-ID") is None
    assert "mem_section" in info.symbols
    assert "mem_section" not in info.own_symbols()
    assert info.architecture is not None
    assert info.architecture.drgn == drgn.Architecture.X86_64
    assert info.physical(info.symbols["init_uts_ns"]) == UTS
    assert Vmcoreinfo(b"BUILD-ID= 0a1b\n").build_id == "0a1b"
    assert Vmcoreinfo(b"BUILD-ID=0a1b;reboot\n").build_id is None
    arm = Vmcoreinfo(b"NUMBER(VA_BITS)=48\nNUMBER(kimage_voffset)=0xffff7fffc0000000\n")
    assert arm.architecture is not None
    assert arm.architecture.drgn == drgn.Architecture.AARCH64
    assert arm.physical(0xFFFF_8000_0800_0000) == 0x4800_0000
    assert not arm.is_complete()
    other = Vmcoreinfo(b"NUMBER(va_bits)=0x30\n")
    assert (other.architecture, other.physical(0xFFFF_FFFF_8100_0000)) == (None, None)


@given(st.binary(max_size=300))
def test_any_bytes_are_parsed(junk: bytes) -> None:
    info = Vmcoreinfo(junk)
    assert not info.is_complete()
    assert (info.symbols, info.kernel_offset, info.word("OSRELEASE")) is not None


@pytest.mark.parametrize("place", [0x1018, 0, 4095, 4 * MIB - 5, 8 * MIB - 4096 + 24, 23 * MIB])
def test_the_text_is_found_anywhere(place: int) -> None:
    assert found(ram({place: text()})) == text()


def test_texts_of_other_kernels_are_left_out() -> None:
    decoys = {
        0x1000: b"OSRELEASE=%s\n\0PAGESIZE=%ld\n",
        0x2000: text("5.10.0-other"),
        0x4000: text(uts=UTS + 8192),
        0x6000: text()[:80],
        0x8000: text().replace(b"PAGESIZE=4096", b"PAGESIZE=4097"),
    }
    assert found(ram({**decoys, 9 * MIB: text()})) == text()
    with pytest.raises(BadVmcoreinfo):
        found(ram(decoys))
    with pytest.raises(BadVmcoreinfo):
        found(bytes(MIB))


def test_memory_may_have_holes() -> None:
    hole = range(5 * MIB, 6 * MIB)
    assert found(ram({9 * MIB: text()}), hole) == text()
    # Then nothing contradicts the only text.
    lost = range(UTS, UTS + 4096)
    assert found(ram({9 * MIB: text()}), lost) == text()
    with pytest.raises(BadVmcoreinfo):
        found(ram({9 * MIB: text(), 10 * MIB: text("5.10.0-other")}), lost)


def test_many_texts_take_little_time() -> None:
    line, reads = b"OSRELEASE=6.1.0\n", 0
    data = ram({9 * MIB: line * (8192 // len(line)) + text()})
    assert found(data) == text()
    lines = line * (MIB // len(line))

    def read(address: int, size: int) -> bytes:
        nonlocal reads
        reads += size
        return lines[address : address + size]

    with pytest.raises(BadVmcoreinfo, match="among 16,384 similar texts"):
        search_vmcoreinfo(read, [(0, MIB)])
    # A page each.
    assert reads < 4 * MIB + (1 << 14) * 4096


def test_files_with_vmcoreinfo(tmp_path: Path) -> None:
    path = tmp_path / "vmcoreinfo"
    for content in (
        text(),
        text() + bytes(3000),
        note(b"VMCOREINFO", 0, text()) + bytes(1000),
        elf_core([PRSTATUS, (b"VMCOREINFO", 0, text())]),
    ):
        path.write_bytes(content)
        assert read_vmcoreinfo(path) == text()
    path.write_text("0x000000000113c000 1024\n")
    place = read_vmcoreinfo(path)
    assert place == Place(0x113C000, 0x1024)
    memory_of_note = note(b"VMCOREINFO", 0, text()).ljust(4096, b"\0")
    assert at_place(Place(0, 4096), lambda address, size: memory_of_note[:size]) == text()
    with pytest.raises(BadVmcoreinfo):
        at_place(Place(0, 4096), lambda address, size: bytes(size))


@pytest.mark.parametrize(
    "content", [b"hello\n", b"\x7fELF" + bytes(100), elf_core([PRSTATUS]), kdump(), text()[:100]]
)
def test_files_without_vmcoreinfo(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "vmcoreinfo"
    path.write_bytes(content)
    with pytest.raises((BadVmcoreinfo, TargetError)):
        read_vmcoreinfo(path)


def test_exhausted_memory_is_not_the_fault_of_a_dump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_dump(*_: object) -> None:
        raise MemoryError

    path = tmp_path / "vmcore"
    path.write_bytes(kdump())
    monkeypatch.setattr("kcensus.sources.vmcoreinfo.given.drgn.Program", open_dump)
    with pytest.raises(MemoryError):
        read_vmcoreinfo(path)


def test_memory_of_files(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(bytes(range(256)) * 16)
    image = memory.of_raw(path).moved(0x1000)
    assert image.ranges == [(0x1000, 4096)]
    assert image.read(0x1FFE, 2) == b"\xfe\xff"
    for outside in ((0xFFF, 2), (0x1FFF, 2), (0x3000, 1)):
        with pytest.raises(drgn.FaultError):
            image.read(*outside)
    twice = [memory._Part(0, 100, 7), memory._Part(10, 5, 9), memory._Part(50, 100, 0)]
    assert list(memory._disjoint(twice)) == [(0, 100, 7), (100, 50, 50)]
    path.write_bytes(elf_core([PRSTATUS], loaded=8192, present=5000))
    assert memory.of_elf(path).ranges == [(0, 5000)]


def refusal(spec: Path, vmcoreinfo: Path | None = None) -> str:
    with pytest.raises(TargetError) as caught:
        open_target(spec, vmcoreinfo=vmcoreinfo)
    return one_line(caught.value)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    path = tmp_path / "memory.raw"
    path.write_bytes(ram({9 * MIB: text()}))
    return path


def test_a_raw_image_is_opened(raw: Path, tmp_path: Path) -> None:
    assert sniff(raw, searched=True).is_raw
    # All but the debug info is there.
    assert f"debug info of kernel {RELEASE}" in refusal(raw)
    other = tmp_path / "other"
    other.write_bytes(text("5.10.0-other"))
    assert refusal(raw, vmcoreinfo=other).startswith(f"--vmcoreinfo {other}: it is not")
    other.write_bytes(b"nothing")
    assert "has no VMCOREINFO" in refusal(raw, vmcoreinfo=other)
    raw.write_bytes(ram({}))
    assert "--vmcoreinfo" in refusal(raw)
    other.write_bytes(text())
    assert f"debug info of kernel {RELEASE}" in refusal(raw, vmcoreinfo=other)
    # A small file is no machine's memory.
    raw.write_bytes(ram({9 * MIB: text()})[: 10 * MIB])
    assert "not a memory dump" in refusal(raw)


def test_a_dump_without_the_note(tmp_path: Path) -> None:
    path, own = tmp_path / "vmcore", tmp_path / "vmcoreinfo"
    path.write_bytes(elf_core([PRSTATUS]))
    assert "its memory has no VMCOREINFO either" in refusal(path)
    own.write_bytes(text())
    assert f"has no kernel {RELEASE}" in refusal(path, vmcoreinfo=own)


def test_it_is_for_vmcores_only(tmp_path: Path) -> None:
    own = tmp_path / "vmcoreinfo"
    own.write_bytes(text())
    with pytest.raises(RequestError, match="vmcore"):
        open_target("sample", vmcoreinfo=own)
    with pytest.raises(RequestError, match="no such file"):
        open_target("sample", vmcoreinfo=tmp_path / "none")


def test_the_version_of_a_kernel_is_read_without_types() -> None:
    at = IMAGE + UTS - PHYS_BASE
    version = b"#1 SMP Debian 6.1.1-1\x1b (2026-01-01)"
    words = (b"Linux", b"host", RELEASE.encode(), version)
    uts = b"".join(word.ljust(65, b"\0") for word in words)
    # In older kernels, such as 4.18, a reference count comes first.
    for start in (b"", b"\4\0\0\0"):
        data = (start + uts).ljust(4096, b"\0")
        known = version_in_memory(program(text(), data, start=at))
        assert known == "#1 SMP Debian 6.1.1-1\\x1b (2026-01-01)"
    for wrong in (uts.replace(b"6.1.0", b"6.2.0"), bytes(4096), b"Linux\0"):
        data = wrong.ljust(4096, b"\0")
        assert version_in_memory(program(text(), data, start=at)) == ""
    assert version_in_memory(program(text(), data, start=at + 8192)) == ""
