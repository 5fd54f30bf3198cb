# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is true for one architecture only is in arch/ and kernel/arch/, and nowhere else."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcensus.arch import KNOWN
from kcensus.kernel.arch import readers
from tests.unit.project.test_layers import PACKAGE

ROOMS = ("arch", "kernel/arch")
NAMES = (
    r"x86|X86_64|AARCH64|amd64|aarch64|arm64|ppc64|s390|riscv|__ia32_|__x64_|asm_(?:sysvec|exc|common)|_interrupt\b"
    r"|physical_base|phys_base|kimage|page_offset_base|vmemmap_base|memstart_addr|vsyscall"
    # Registers, and members of pt_regs and thread_struct.
    r"|\b[re](?:ip|sp|bp|flags|[a-d]x|[sd]i)\b|\bcs\b|\b[fg]s_?base\b|\bcr[0-4]\b|cpu_context"
    r"|\bthread\.(?:fpu|uw|sp|keys)|__USER_CS|__KERNEL_CS|TIF_|\bpstate\b|\belr_|\bregs\["
)
NUMBERS = {
    # Kernels, direct maps, fixed mappings, the lower end of all, and code segments of programs.
    *((1 << 64) - (1 << bit) for bit in range(24, 64)),
    *(0xFFFF_8880_0000_0000, 0xFF << 56, 0x23, 0x33),
}
_PARTS = r"1 << 63|1 << 52|0xFF << 56|\(1 << 64\) - \(1 << \d+\)"
EXCEPTIONS = {
    # The names of packages, files, samples, ELF machines and type packs are those of architectures.
    "commands/types.py": {"amd64"},
    "samples/__init__.py": {"arm64"},
    "sources/debuginfo/packages.py": (
        {"x86", "amd64", "aarch64", "arm64", "ppc64", "s390", "riscv"}
    ),
    "sources/formats/elf.py": {"x86", "aarch64", "ppc64", "riscv", "s390"},
    # What QEMU makes of a guest of POWER.
    "sources/formats/sniff.py": {"ppc64"},
    # What VMCOREINFO of a raw image says about the start of RAM.
    "sources/vmcoreinfo/opening.py": {"arm64", "1 << 52"},
    # Where BTF has no vmemmap.
    "sources/debuginfo/in_memory.py": {"vmemmap_base"},
    # Numbers of 63 and 64 bits.
    "catalogue/schema.py": {"1 << 63"},
    "commands/shared/options.py": {"1 << 63"},
    "kernel/clock.py": {"1 << 63"},
    "render/parquet.py": {"1 << 63"},
    "saved.py": {"1 << 63"},
    "store/records.py": {"1 << 63"},
}


def texts(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield a line, the kind ("code" or "comment"), and the text of each statement and comment.

    Comments and docstrings that cite a commit are left out: they say since when a kernel is so.
    """
    comments: list[tuple[int, str]] = []
    statement: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if comments and token.start[0] > comments[-1][0] + 1:
                yield from _prose(comments)
                comments = []
            comments.append((token.start[0], token.string.lstrip("# ")))
        elif token.type in {tokenize.NEWLINE, tokenize.ENDMARKER}:
            if all(each.type == tokenize.STRING for each in statement):
                yield from _prose([(each.start[0], each.string) for each in statement])
            elif statement:
                yield statement[0].start[0], "code", " ".join(each.string for each in statement)
            statement = []
        elif token.type not in {tokenize.NL, tokenize.INDENT, tokenize.DEDENT}:
            statement.append(token)
    yield from _prose(comments)


def _prose(lines: list[tuple[int, str]]) -> Iterator[tuple[int, str, str]]:
    text = " ".join(line for _, line in lines)
    if text and not re.search(r"\bcommit\b|\bin v\d", text):
        yield lines[0][0], "comment", text


def of_one_architecture(source: str) -> Iterator[tuple[int, str]]:
    """Yield the lines and words of a source file that are true for one architecture only."""
    for line, kind, text in texts(source):
        yield from ((line, match[0]) for match in re.finditer(NAMES, text))
        if kind == "code":
            bare = text.replace("( ", "(").replace(" )", ")")
            yield from ((line, match[0]) for match in re.finditer(_PARTS, bare))
            for number in re.findall(r"\b0x[0-9A-Fa-f_]+\b", text):
                if int(number, 16) in NUMBERS:
                    yield line, number


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_an_architecture_is_in_its_room(path: Path) -> None:
    place = path.relative_to(PACKAGE).as_posix()
    if not place.startswith(tuple(f"{room}/" for room in ROOMS)):
        known = EXCEPTIONS.get(place, set())
        found = {(line, word) for line, word in of_one_architecture(path.read_text())}
        assert sorted((line, word) for line, word in found if word not in known) == []
        assert known <= {word for _, word in found}, "an exception that is no longer needed"


def test_the_search_finds_them() -> None:
    source = """
a = 1  # As x86 has it.

# Since Linux kernel commit 9d7de2aa8b41 ("x86/percpu/64: Use relative percpu offsets").
b = layout("struct pt_regs", ["ip", "cs"])
c = 0xFFFF_FFFF_8000_0000, (1 << 64) - (1 << 31)
"""
    words = {word for _, word in of_one_architecture(source)}
    assert words == {"cs", "(1 << 64) - (1 << 31)", "0xFFFF_FFFF_8000_0000", "x86"}


def test_architectures_differ() -> None:
    assert len({each.name for each in KNOWN}) == len({each.drgn for each in KNOWN}) == len(KNOWN)


def test_readers_are_of_known_architectures() -> None:
    assert set(readers._READERS) == {each.drgn for each in KNOWN}
