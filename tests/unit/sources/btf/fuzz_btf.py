# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open mutated BTF, and use each section that opens as drgn and analyses do.

``python -m tests.unit.sources.btf.fuzz_btf SEED FIRST END [KERNEL MODULE …]`` runs cases FIRST to
END - 1 in one process, which ends early if a case crashes, takes too long or raises an unexpected
error. The last line of the output is the number of that case, or the tally of all cases as JSON.
Sections are made by hand, or those of the files: of a kernel, which is not mutated, and its
modules.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import random
import struct
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import drgn
from drgn import TypeKind

from kcensus.sources.debuginfo.btf.finders import Types, register
from kcensus.sources.debuginfo.btf.format import HEADER, BadBtf, Kind
from kcensus.sources.debuginfo.btf.types import Btf
from kcensus.sources.types.nodes import build
from tests.unit.fuzzing import peak_bytes
from tests.unit.sources.btf.making import Section, every_kind

MAX_SECONDS = 60
"""Limit for a case, on a machine that may be busy; most take less than 0.02 s."""
_MAX_USED = 300
"""Types that a case uses, and levels of structs below each."""
_MAX_VALUE_BYTES = 1 << 16
_PLATFORM = drgn.Platform(drgn.Architecture.X86_64)
_NUMBERS = [0, 1, 2, 3, 4, 7, 8, 9, 63, 64, 65, 255, 4096, 65535, 1 << 16, 1 << 24, 1 << 31]
_NUMBERS += [(1 << 32) - 1, *(kind << 24 | count for kind in range(21) for count in (0, 1, 40))]
_KINDS = (TypeKind.STRUCT, TypeKind.UNION, TypeKind.ENUM, TypeKind.TYPEDEF, TypeKind.INT)


def _flip(data: bytearray, choose: random.Random) -> None:
    for _ in range(choose.choice((1, 1, 2, 8))):
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)


def _overwrite(data: bytearray, choose: random.Random) -> None:
    for _ in range(choose.choice((1, 1, 2, 5))):
        place = choose.randrange(len(data) // 4) * 4
        number = choose.choice(_NUMBERS) if choose.random() < 0.7 else choose.randrange(60)
        data[place : place + 4] = struct.pack("<I", number)


def _truncate(data: bytearray, choose: random.Random) -> None:
    del data[choose.randrange(len(data)) :]


def _splice(data: bytearray, choose: random.Random) -> None:
    """Copy words to another place, over what is there or before it."""
    first, place = (choose.randrange(len(data) // 4) * 4 for _ in range(2))
    length = 4 * choose.randrange(1, 40)
    data[place : place + choose.choice((0, length))] = data[first : first + length]


_MUTATIONS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip, _overwrite, _overwrite, _truncate, _splice,
)  # fmt: skip


def _mutated(data: bytes, choose: random.Random) -> bytes:
    """Return a changed section; most have a header that fits, so that the types are looked at."""
    fields = [*HEADER.unpack_from(data)]
    if choose.random() < 0.1:
        changed = bytearray(data)
        choose.choice(_MUTATIONS)(changed, choose)
        return bytes(changed)
    start = fields[3] + fields[4]
    types = bytearray(data[start : start + fields[5]])
    strings = bytearray(data[fields[3] + fields[6] :])
    if choose.random() < 0.9 and len(types) >= 4:
        choose.choice(_MUTATIONS)(types, choose)
    elif strings:
        choose.choice(_MUTATIONS)(strings, choose)
    fields[3:] = HEADER.size, 0, len(types), len(types), len(strings)
    return HEADER.pack(*fields) + types + strings


def _random_section(choose: random.Random, base: Section | None) -> Section:
    """Return types that refer to each other at random, so that few sections are valid."""
    made = Section(base)
    made.integer("int")
    for nth in range(choose.randrange(1, 20)):
        last = made.first + len(made.records)
        # Mostly a type before it.
        target = choose.randrange(last) if choose.random() < 0.95 else choose.randrange(last + 5)
        name = f"name{choose.randrange(12)}"
        match choose.randrange(6):
            case 0:
                made.pointer(target)
            case 1:
                made.array(target, choose.choice((0, 1, 2, 100, 1 << 20)))
            case 2:
                made.add(choose.choice((Kind.TYPEDEF, Kind.CONST, Kind.TYPE_TAG)), name, target)
            case 3:
                made.function(name, target, ("x", choose.randrange(last)))
            case 4:
                made.enum(name, [(f"VALUE{nth}", choose.randrange(9))], choose.choice((1, 4, 8)))
            case _:
                kind = choose.choice((Kind.STRUCT, Kind.UNION))
                members = [
                    (choose.choice(("", "a", "b")), choose.randrange(last), 8 * choose.randrange(9))
                    for _ in range(choose.randrange(4))
                ]
                made.struct(name, choose.choice((0, 8, 64, 4096)), *members, kind=kind)
    return made


def _use(btf: Btf, base: Btf | None) -> int:
    """Make types and values; returns how many types there were."""
    types = Types(base or btf)
    if base:
        types.add("module", btf)
    prog = drgn.Program(_PLATFORM)
    register(prog, types, lambda name: 0x1000)
    names = {btf._text(int(offset)) for offset in btf._columns.name[:_MAX_USED].tolist()}
    found = []
    for name in sorted(names):
        found += [ref for kind in _KINDS if (ref := btf.find(kind, name))]
        with contextlib.suppress(LookupError):
            prog.object(name)
    found += btf.variables().values()
    first = btf._first
    kinds = btf._columns.kind[:_MAX_USED].tolist()
    found += [btf._ref(first + row) for row, kind in enumerate(kinds) if kind != Kind.DATASEC]
    pending = [build(prog, ref) for ref in found]
    for used in range(4 * _MAX_USED):
        if used == len(pending):
            break
        _use_type(prog, pending[used], pending)
    return len(pending)


def _use_type(prog: drgn.Program, type_: drgn.Type, pending: list[drgn.Type]) -> None:
    str(type_), repr(type_)
    if type_.kind in (TypeKind.STRUCT, TypeKind.UNION):
        for member in type_.members or ():
            pending.append(member.type)
            assert type_.size is not None
            if member.name:
                assert type_.has_member(member.name)
    elif type_.kind == TypeKind.ENUM:
        for enumerator in type_.enumerators or ():
            prog.constant(enumerator.name)
    elif type_.kind == TypeKind.FUNCTION:
        pending += [parameter.type for parameter in type_.parameters]
    elif type_.kind in (TypeKind.POINTER, TypeKind.TYPEDEF, TypeKind.ARRAY):
        pending.append(type_.type)
    try:
        size = drgn.sizeof(type_)
    except TypeError:
        return
    if size <= _MAX_VALUE_BYTES:
        # drgn cannot show an array of structs that end in an array without a length.
        with contextlib.suppress(TypeError):
            str(drgn.Object.from_bytes_(prog, type_, bytes(size)))


def main() -> None:
    seed, first, end = map(int, sys.argv[1:4])
    files = [Path(name).read_bytes() for name in sys.argv[4:]]
    kernel = Btf(files[0]) if files else None
    tally: Counter[str] = Counter()
    for case in range(first, end):
        print(case, flush=True)
        faulthandler.dump_traceback_later(MAX_SECONDS, exit=True)
        choose = random.Random(f"{seed} {case}")
        base = kernel
        if files:
            data = _mutated(choose.choice(files[1:]), choose)
        else:
            whole = every_kind()
            base = Btf(whole.data()) if choose.random() < 0.3 else None
            made = _random_section(choose, whole if base else None)
            origin = made if base or choose.random() < 0.5 else whole
            data = origin.data() if origin is made else _mutated(origin.data(), choose)
        try:
            btf = Btf(data, base)
        except BadBtf:
            tally["refused"] += 1
            continue
        tally["opened"] += 1
        tally["types"] += _use(btf, base)
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps(tally | {"peak_bytes": peak_bytes()}))


if __name__ == "__main__":
    main()
