# SPDX-License-Identifier: LGPL-2.1-or-later
"""BTF in memory and in files."""

from __future__ import annotations

import io
import lzma
import struct
import tarfile
from pathlib import Path

import drgn
import pytest
from drgn import TypeKind

from kcensus.sources.debuginfo.btf import places
from kcensus.sources.debuginfo.btf.format import BadBtf
from kcensus.sources.debuginfo.btf.types import Btf
from kcensus.sources.model import TargetError
from tests.unit.sources.btf.making import Section, every_kind
from tests.unit.sources.btf.test_types import PLATFORM

START, BTF, HEAD, NODES = 0x1000, 0x10000, 0x20000, 0x30000


class Memory:
    """A program with memory from ``START`` on."""

    def __init__(self, size: int = 0x40000) -> None:
        self.data = bytearray(size)
        self.prog = drgn.Program(PLATFORM)
        self.prog.add_memory_segment(
            START, size, lambda address, count, offset, physical: self._read(offset, count)
        )

    def _read(self, offset: int, count: int) -> bytes:
        return bytes(self.data[offset : offset + count])

    def put(self, address: int, data: bytes) -> None:
        self.data[address - START : address - START + len(data)] = data


def kernel_of_modules() -> Section:
    """Return a section with ``struct btf_module``, laid out by ourselves."""
    made = every_kind()
    char, int_ = 3, 1
    heads = made.first + len(made.records)
    made.struct("list_head", 16, ("next", heads + 1, 0), ("prev", heads + 1, 64))
    made.pointer(heads)
    name, void = made.array(char, 56), made.pointer(0)
    btf = made.struct("btf", 80, ("data", void, 0), ("data_size", int_, 64), ("name", name, 128))
    made.struct("btf_module", 32, ("list", heads, 0), ("btf", made.pointer(btf), 192))
    return made


def listed(memory: Memory, modules: dict[str, bytes]) -> None:
    """Put a list of modules into memory."""
    nodes = [NODES + 0x100 * nth for nth in range(len(modules))]
    following = [*nodes[1:], HEAD]
    memory.put(HEAD, struct.pack("<Q", (nodes or [HEAD])[0]))
    place = BTF
    for node, after, (name, data) in zip(nodes, following, modules.items(), strict=True):
        memory.put(node, struct.pack("<4Q", after, 0, 0, node + 0x40))
        memory.put(node + 0x40, struct.pack("<QII", place, len(data), 0) + name.encode())
        memory.put(place, data)
        place += len(data) + 13


def test_a_section_in_memory() -> None:
    memory, data = Memory(), every_kind().data()
    memory.put(BTF, data)
    assert len(places.from_memory(memory.prog, BTF, BTF + len(data)))


@pytest.mark.parametrize("size", [0, -1, 10, 1 << 20, 1 << 40])
def test_a_section_that_is_not_in_memory(size: int) -> None:
    with pytest.raises(BadBtf):
        places.from_memory(Memory().prog, BTF, BTF + size)


def test_modules_in_memory() -> None:
    memory, kernel = Memory(), kernel_of_modules()
    own = Section(kernel)
    own.struct("own", 24, ("next", 10, 0))
    broken = own.data(version=9)
    listed(memory, {"good": own.data(), "bad": broken, "last": Section(kernel).data()})
    modules, sentences = places.of_modules(memory.prog, Btf(kernel.data()), HEAD)
    assert [*modules] == ["good", "last"]
    assert modules["good"].find(TypeKind.STRUCT, "own") is not None
    assert len(sentences) == 1
    assert "bad" in sentences[0]


def test_a_list_of_modules_that_ends_in_unmapped_memory() -> None:
    memory, kernel = Memory(), kernel_of_modules()
    listed(memory, {"good": Section(kernel).data()})
    memory.put(NODES, struct.pack("<Q", 1 << 40))
    modules, sentences = places.of_modules(memory.prog, Btf(kernel.data()), HEAD)
    assert ([*modules], len(sentences)) == (["good"], 1)


def test_a_list_of_modules_that_leads_back_into_itself() -> None:
    memory, kernel = Memory(), kernel_of_modules()
    listed(memory, {"one": Section(kernel).data(), "two": Section(kernel).data()})
    memory.put(NODES + 0x100, struct.pack("<Q", NODES))
    modules, _ = places.of_modules(memory.prog, Btf(kernel.data()), HEAD)
    assert [*modules] == ["one", "two"]


def test_a_module_whose_pages_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, kernel = Memory(), kernel_of_modules()
    listed(memory, {"lost": Section(kernel).data(), "good": Section(kernel).data()})
    memory.put(NODES + 0x40, struct.pack("<Q", 1 << 40))
    modules, sentences = places.of_modules(memory.prog, Btf(kernel.data()), HEAD)
    assert ([*modules], len(sentences)) == (["good"], 1)
    monkeypatch.setattr(places, "_MAX_MODULES_BYTES", 10)
    modules, sentences = places.of_modules(memory.prog, Btf(kernel.data()), HEAD)
    assert ([*modules], len(sentences)) == ([], 2)


def test_a_list_of_modules_of_another_layout() -> None:
    memory, kernel = Memory(), every_kind()
    kernel.struct("btf_module", 32, ("list", 1, 0), ("btf", 1, 64))
    listed(memory, {"one": b""})
    modules, sentences = places.of_modules(memory.prog, Btf(kernel.data()), HEAD)
    assert ([*modules], len(sentences)) == ([], 1)


def test_no_modules_without_their_types() -> None:
    modules, sentences = places.of_modules(Memory().prog, Btf(every_kind().data()), HEAD)
    assert (modules, len(sentences)) == ({}, 1)


def elf(sections: dict[str, bytes]) -> bytes:
    """Return an ELF file with these sections."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in [*sections, ".shstrtab"])
    body, headers = b"", bytes(64)
    for name, data in [*sections.items(), (".shstrtab", names)]:
        place = names.index(b"\0" + name.encode() + b"\0") + 1
        headers += struct.pack("<IIQQQQIIQQ", place, 1, 0, 0, 64 + len(body), len(data), 0, 0, 1, 0)
        body += data
    count = len(sections) + 2
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    fields = (1, 62, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, count, count - 1)
    return ident + struct.pack("<HHIQQQIHHHHHH", *fields) + body + headers


def archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


DATA = every_kind().data()


@pytest.mark.parametrize(
    "contents",
    [
        *(DATA, lzma.compress(DATA), elf({".text": b"x", ".BTF.ext": b"y", ".BTF": DATA})),
        archive({"README": b"text", "5.4.0-1.btf": DATA}),
    ],
)
def test_files(tmp_path: Path, contents: bytes) -> None:
    path = tmp_path / "types"
    path.write_bytes(contents)
    assert places.from_file(path).find(TypeKind.STRUCT, "all") is not None


@pytest.mark.parametrize(
    "contents",
    [
        *(b"text", DATA[:100], lzma.compress(b"text"), lzma.compress(DATA)[:-40]),
        *(archive({"README": b"text"}), elf({".text": b"x"}), elf({".BTF": DATA[:50]})),
        elf({".BTF": DATA, ".BTF.base": DATA}),
    ],
)
def test_unusable_files(tmp_path: Path, contents: bytes) -> None:
    path = tmp_path / "types"
    path.write_bytes(contents)
    with pytest.raises(TargetError) as caught:
        places.from_file(path, prefix="-s ")
    assert str(caught.value).startswith(f"-s {path}: ")


def test_an_archive_may_have_large_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_MAX_SECTIONS_BYTES", 1 << 20)
    member, size = tarfile.TarInfo("5.4.0-1.btf"), (1 << 20) + 512
    # In the pax form, the data begin with their map: BTF, then a hole.
    content = (b"1\n0\n%d\n" % len(DATA)).ljust(512, b"\0") + DATA
    member.size = len(content)
    member.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.realsize": str(size),
        "GNU.sparse.name": member.name,
    }
    path = tmp_path / "types.btf.tar.xz"
    with tarfile.open(path, "w:xz", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member, io.BytesIO(content))
    with pytest.raises(TargetError, match="contains no types"):
        places.from_file(path)
