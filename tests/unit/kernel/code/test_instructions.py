# SPDX-License-Identifier: LGPL-2.1-or-later
"""Instructions, against what an assembler makes of them."""

from __future__ import annotations

import pytest

from kcensus.kernel.arch.instructions import Kind, UndecodableError
from kcensus.kernel.arch.x86_64.instructions import decode

_AT = 0xFFFFFFFF81000000


@pytest.mark.parametrize(
    "code",
    [
        "90",  # nop
        "55",  # push %rbp
        "f3 0f 1e fa",  # endbr64
        "48 89 e5",  # mov %rsp, %rbp
        "48 8b 44 24 08",  # mov 8(%rsp), %rax
        "8b 04 25 00 00 00 00",  # mov 0, %eax
        "48 8b 05 10 00 00 00",  # mov 16(%rip), %rax
        "48 b8 00 00 00 00 00 00 00 80",  # movabs $number, %rax
        "66 b8 01 00",  # mov $1, %ax
        "66 81 7b 10 00 01",  # cmpw $0x100, 0x10(%rbx)
        "c7 44 24 04 01 00 00 00",  # movl $1, 4(%rsp)
        "f6 43 10 02",  # testb $2, 16(%rbx)
        "f6 d8",  # neg %al
        "f7 43 10 00 00 01 00",  # testl $0x10000, 16(%rbx)
        "f0 48 0f ba 2b 05",  # lock btsq $5, (%rbx)
        "f0 48 0f b1 13",  # lock cmpxchg %rdx, (%rbx)
        "65 48 8b 04 25 00 0d 02 00",  # mov %gs:0x20d00, %rax
        "0f 1f 84 00 00 00 00 00",  # nopl 0(%rax,%rax,1)
        "0f a4 c2 05",  # shld $5, %eax, %edx
        "f2 48 0f 38 f1 c1",  # crc32q %rcx, %rax
        "66 0f 3a 0f c1 08",  # palignr $8, %xmm1, %xmm0
        "c4 c2 71 f7 c1",  # shlx %ecx, %r9d, %eax
        "48 69 c0 e8 03 00 00",  # imul $1000, %rax, %rax
        "6b c0 0a",  # imul $10, %eax, %eax
        "0f 0b",  # ud2
        "f3 48 ab",  # rep stos %rax, (%rdi)
        "a8 01",  # test $1, %al
        "48 0f c8",  # bswap %rax
    ],
)
def test_lengths(code: str) -> None:
    found = decode(bytes.fromhex(code) + b"\x90" * 8, 0, _AT)
    assert found.end - _AT == len(bytes.fromhex(code))
    assert found.kind is Kind.NEXT


@pytest.mark.parametrize(
    ("code", "kind", "distance"),
    [
        ("e8 10 00 00 00", Kind.CALL, 0x15),
        ("e9 f0 ff ff ff", Kind.JUMP, -0xB),
        ("eb fe", Kind.JUMP, 0),
        ("75 02", Kind.BRANCH, 4),
        ("0f 84 00 01 00 00", Kind.BRANCH, 0x106),
        ("f3 c3", Kind.END, None),
        ("cc", Kind.END, None),
        ("ff e0", Kind.END, None),
        ("ff 24 c5 00 00 00 82", Kind.TABLE, None),
        ("ff 50 18", Kind.CALL, None),
        ("41 ff d4", Kind.CALL, None),
    ],
)
def test_ways_on(code: str, kind: Kind, distance: int | None) -> None:
    found = decode(bytes.fromhex(code), 0, _AT)
    assert found.kind is kind
    assert found.end - _AT == len(bytes.fromhex(code))
    assert found.target == (0 if distance is None else _AT + distance)


@pytest.mark.parametrize(
    ("code", "name", "expected"),
    [
        ("48 c7 c7 00 01 00 82", "argument", 0xFFFFFFFF82000100),  # mov $address, %rdi
        ("48 8d 3d f9 00 00 00", "argument", _AT + 0x100),  # lea 0xf9(%rip), %rdi
        ("48 89 df", "argument", 0),  # mov %rbx, %rdi
        ("48 8d 7b 10", "argument", 0),  # lea 16(%rbx), %rdi
        ("31 ff", "argument", 0),  # xor %edi, %edi
        ("5f", "argument", 0),  # pop %rdi
        ("48 83 c7 08", "argument", 0),  # add $8, %rdi
        ("e8 10 00 00 00", "argument", 0),  # a call
        ("41 5f", "argument", None),  # pop %r15
        ("48 83 f8 07", "argument", None),  # cmp $7, %rax
        ("48 83 38 07", "argument", None),  # cmpq $7, (%rax)
        ("31 f6", "argument", None),  # xor %esi, %esi
        ("4c 89 ff", "argument", 0),  # mov %r15, %rdi
        ("49 89 ff", "argument", 0),  # mov %rdi, %r15: taken for a change
        ("65 ff 00", "counted", 1),  # incl %gs:(%rax)
        ("65 ff 08", "counted", -1),  # decl %gs:(%rax)
        ("65 41 ff 04 24", "counted", 1),  # incl %gs:(%r12)
        ("65 41 ff 4d 00", "counted", -1),  # decl %gs:0(%r13)
        ("65 83 00 01", "counted", 1),  # addl $1, %gs:(%rax)
        ("65 83 28 01", "counted", -1),  # subl $1, %gs:(%rax)
        ("65 83 00 ff", "counted", -1),  # addl $-1, %gs:(%rax)
        ("65 48 ff 00", "counted", 0),  # incq %gs:(%rax): a percpu_ref
        ("65 ff 40 04", "counted", 0),  # incl %gs:4(%rax): of a structure
        ("65 ff 05 00 00 00 00", "counted", 0),  # incl %gs:0(%rip): preempt_count
        ("65 ff 0c 25 00 00 00 00", "counted", 0),  # decl %gs:0: preempt_count
        ("ff 00", "counted", 0),  # incl (%rax)
    ],
)
def test_first_arguments_and_counts(code: str, name: str, expected: int | None) -> None:
    found = decode(bytes.fromhex(code), 0, _AT)
    assert found.end - _AT == len(bytes.fromhex(code))
    assert getattr(found, name) == expected


@pytest.mark.parametrize("code", ["", "e8 00 00", "48", "06", "62 f1 7c 48 28 c1", "0f 84 00"])
def test_what_is_no_instruction(code: str) -> None:
    with pytest.raises(UndecodableError):
        decode(bytes.fromhex(code), 0, _AT)


@pytest.mark.parametrize(
    ("code", "inside"),
    [
        ("48 89 df", 0),  # mov %rbx, %rdi
        ("4c 89 e7", 0),  # mov %r12, %rdi
        ("48 8d 7b 40", 0x40),  # lea 0x40(%rbx), %rdi
        ("48 8d bb a0 00 00 00", 0xA0),  # lea 0xa0(%rbx), %rdi
        ("49 8d bc 24 a0 00 00 00", 0xA0),  # lea 0xa0(%r12), %rdi
        ("49 8d 7d f8", -8),  # lea -8(%r13), %rdi
        ("48 8d 7c 24 08", None),  # lea 8(%rsp), %rdi
        ("49 8d 7c 04 08", None),  # lea 8(%r12,%rax,1), %rdi
        ("48 8d 3d f9 00 00 00", None),  # lea 0xf9(%rip), %rdi
        ("48 8d 73 40", None),  # lea 0x40(%rbx), %rsi
        ("48 89 fb", None),  # mov %rdi, %rbx
        ("48 8b 7b 40", None),  # mov 0x40(%rbx), %rdi
        ("90", None),
    ],
)
def test_distance_of_an_argument_from_an_object(code: str, inside: int | None) -> None:
    assert decode(bytes.fromhex(code), 0, _AT).inside == inside
