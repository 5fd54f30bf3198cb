# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open corrupt and hostile capsules, and use each as analyses do.

``python -m tests.unit.fuzz_capsule CAPSULE SEED FIRST END`` runs cases FIRST to END - 1 in one
process, which ends early if a case crashes, takes too long or raises an unexpected error. The last
line of the output is the number of that case, or the tally of all cases as JSON. Case N of a seed
is always the same, so ``… SEED N N+1`` repeats it.
"""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import json
import random
import re
import resource
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import drgn
import numpy as np
from drgn import TypeKind

from kcensus.analyses import AnalysisError
from kcensus.analyses.runner import Context
from kcensus.reports import examine
from kcensus.sources import Target, TargetError, open_target
from kcensus.sources.capsule import BadCapsule, NotRecorded
from tests.catalogue import CATALOGUE
from tests.running import document
from tests.unit.capsules import HEADER, RUN, Parts, put_together, take_apart
from tests.unit.fakekernel import DIRECT_MAP, PAGE, VMEMMAP
from tests.unit.fuzzing import peak_bytes

MAX_SECONDS = 10
"""Limit for a case; most take less than 0.01 s."""
EVERY = 20
"""Every EVERYth case makes a report."""
_PAGE_TABLES = range(1, 6)
"""Page frames of a synthetic kernel that contain page tables."""

Choice = random.Random

_NUMBERS = [
    *(0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 255, 4095, 4096, 4097, 1 << 16, 1 << 20, 1 << 26, 1 << 31),
    *(1 << 32, 1 << 36, 1 << 40, 1 << 43, (1 << 52) - 1, 1 << 52, (1 << 63) - 1, 1 << 63),
    *((1 << 64) - 1, 1 << 64, 1 << 127, 10**4000, -1, -8, -(1 << 31), -(1 << 63), -(1 << 64)),
]
_VALUES: list[Any] = [
    *(None, True, False, 1.5, float("nan"), float("inf"), -0.0, 1e308, "", "a" * 100_000, "\0"),
    *("\ud800", "\x1b[2J", "two\nlines", "struct", "page", "little", "big", "00" * 8, [], {}),
    *([[]], [0], [0, 0], [0, 255], [None] * 5, {"": {}}, {"sections": 1}, [[[[[[[[]]]]]]]]),
]
_ORDERS = (None, "little", "big")


def _value(choose: Choice) -> Any:
    kind = choose.randrange(8)
    if kind < 4:
        return choose.choice(_NUMBERS) + choose.choice((0, 0, 0, 1, -1))
    if kind == 4:
        nested: Any = []
        for _ in range(choose.choice((10, 100, 900))):
            nested = [nested]
        return nested
    return copy.deepcopy(choose.choice(_VALUES))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key) in a JSON value."""
    pending = [value]
    while pending:
        container = pending.pop()
        keys = list(container) if isinstance(container, dict) else range(len(container))
        for key in keys:
            yield container, key
            if isinstance(container[key], (dict, list)):
                pending.append(container[key])


def change_json(choose: Choice, document: Any) -> None:
    """Change a JSON document at a random place."""
    places = list(_places(document))
    container, key = choose.choice(places)
    kind = choose.randrange(10)
    if kind < 5:
        container[key] = _value(choose)
    elif kind == 5:
        del container[key]
    elif kind == 6 and isinstance(container, list):
        container.insert(key, copy.deepcopy(container[choose.randrange(len(container))]))
    elif kind == 7 and isinstance(container, list):
        choose.shuffle(container)
    elif type(container[key]) is int:
        container[key] += choose.choice((1, -1, 8, -8, 4096))
    else:
        other, other_key = choose.choice(places)
        with contextlib.suppress(LookupError):
            container[key] = copy.deepcopy(other[other_key])


def change_types(choose: Choice, lookups: Any) -> None:
    """Change types into other plausible types."""
    rows = lookups["types"]
    row = choose.choice(rows)
    kind = row[0]
    use = choose.randrange(len(rows))
    number = choose.choice(_NUMBERS[:24])
    if kind in ("struct", "union", "class") and type(row[2]) is int and choose.randrange(2):
        number = choose.randrange(row[2] + 1) * 8  # inside the struct
    if kind in ("struct", "union", "class") and len(row) > 3:
        what = choose.randrange(7)
        member = choose.choice(row[3]) if row[3] else None
        if what == 0:
            row[2] = number
        elif what == 1 or member is None:
            row[3].append([choose.choice((None, "flags")), number, use])
        elif what == 2:
            member[1] = number
        elif what == 3:
            member[2:] = [use]
        elif what == 4:
            member[2:] = [member[2] if len(member) > 2 else use, number % 70]
        elif what == 5:
            member[0] = None
        else:  # a struct that contains itself
            member[2:] = [rows.index(row)]
            member[0] = choose.choice((None, member[0]))
    elif kind == "array":
        row[2] = choose.choice((number, None))
    elif kind in ("int", "bool", "float", "pointer"):
        row[2] = choose.choice((1, 2, 4, 8, 16, 3, 0, number))
        row[3] = choose.choice(_ORDERS)
        row[0] = choose.choice(("int", "bool", "float", "pointer"))
    elif kind == "enum" and len(row) > 3:
        row[3] = [["e", choose.choice(_NUMBERS)] for _ in range(choose.randrange(4))]
        row[2] = choose.choice((row[2], use))
    else:
        row[1:2] = [choose.choice((use, [use, choose.randrange(64)]))]


def grow_types(choose: Choice, lookups: Any) -> None:
    """Types within types, so that what they come to doubles with each."""
    rows = lookups["types"]
    inner = choose.randrange(len(rows))
    name = choose.choice((None, "inside"))
    for _ in range(choose.choice((3, 16, 30, 62))):
        what = choose.randrange(3)
        if what == 0:
            rows.append(["array", inner, choose.choice((2, 1 << 20, 1 << 40))])
        elif what == 1:
            rows.append(["typedef", inner, "t"])
        else:
            size = choose.choice((8, 1 << 20, 1 << 40))
            rows.append(["struct", None, size, [[name, 0, inner], [name, 0, inner]]])
        inner = len(rows) - 1
    for lookup in lookups["type_lookups"]:
        if lookup[0] == "struct" and lookup[3] is not None:
            row = rows[lookup[3]]
            if len(row) > 3:
                row[3].append([name, 0, inner])


def change_lookups(choose: Choice, lookups: Any) -> None:
    """Other answers, of the right form, to what is looked up."""
    types = len(lookups["types"])
    kind = choose.choice(("type_lookups", "object_lookups", "symbol_lookups"))
    if not lookups[kind]:
        return
    row = choose.choice(lookups[kind])
    if kind == "type_lookups":
        row[3] = choose.choice((None, choose.randrange(types), [choose.randrange(types), 3]))
    elif kind == "object_lookups":
        use = row[3][0] if row[3] and choose.randrange(2) else choose.randrange(types)
        address = choose.choice((*_NUMBERS[:24], DIRECT_MAP, DIRECT_MAP + PAGE, VMEMMAP))
        value = choose.choice((1, 8, 8, 16, 200)) * choose.choice(("00", "ff", "01", "80"))
        row[3] = choose.choice(([use, address, None], [use, None, value], [use, None, None]))
    else:
        address = choose.choice(_NUMBERS[:25])
        row[3] = [["x", address, choose.choice(_NUMBERS[:25]), "GLOBAL", "FUNC"]]


def change_values(choose: Choice, lookups: Any) -> None:
    """Change values to others of the right length."""
    rows = [row for row in lookups["object_lookups"] if row[3] and row[3][2]]
    for row in choose.sample(rows, min(len(rows), choose.choice((1, 1, 3)))):
        size = len(row[3][2]) // 2
        number = choose.choice(_NUMBERS) % (1 << 8 * size)
        row[3][2] = number.to_bytes(size, "little").hex()


def change_vmcoreinfo(choose: Choice, text: bytes) -> bytes:
    """Return a changed VMCOREINFO."""
    lines = text.split(b"\n")
    values = (
        *(b"", b"0", b"-1", b"1", b"4095", b"4097", b"8192", b"65536", b"2097152", b"1e9", b"\xff"),
        *(b"ffffffffffffffff", b"9" * 40, b"0x", b"12x", b"18446744073709551615", b"a" * 5000),
    )
    for _ in range(choose.choice((1, 1, 2, 5))):
        at = choose.randrange(len(lines))
        what = choose.randrange(5)
        if what == 0:
            del lines[at]
        elif what == 1:
            lines.insert(at, choose.choice(lines))
        elif what == 2:
            keys = ("pgtable_l5_enabled", "VA_BITS", "TCR_EL1_T1SZ", "kimage_voffset", "phys_base")
            name = choose.choice((*(f"NUMBER({key})" for key in keys), "PAGESIZE", "KERNELOFFSET"))
            lines.insert(at, name.encode() + b"=" + choose.choice(values))
        elif what == 3:
            lines[at] = bytes(choose.randrange(256) for _ in range(choose.randrange(40)))
        else:
            lines[at] = lines[at].partition(b"=")[0] + b"=" + choose.choice(values)
        if not lines:
            break
    return b"\n".join(lines)


def change_runs(choose: Choice, parts: Parts) -> bytes | None:
    """Change runs, or return an invalid index."""
    what = choose.randrange(4)
    if what < 2 and len(parts.runs):
        at = choose.randrange(len(parts.runs))
        name = choose.choice(RUN.names or ())
        most = 1 << (64 if name == "first" else 32)
        parts.runs[name][at] = choose.choice(
            (choose.choice(_NUMBERS) % most, int(parts.runs[name][at]) ^ 1, choose.randrange(9))
        )
        return None
    if what == 2:
        numbers = (0, 1, 2, 1 << 20, 1 << 32, 1 << 60, (1 << 64) - 1)
        head = struct.pack("<QQ", choose.choice(numbers), choose.choice(numbers))
        return head + choose.randbytes(choose.choice((0, 1, 16, 20, 36)))
    runs, blocks = choose.choice((0, 1, 1 << 20)), choose.choice((0, 1, 1 << 20))
    return struct.pack("<QQ", runs, blocks) + bytes(RUN.itemsize * runs + 4 * blocks)


def change_memory(choose: Choice, parts: Parts) -> None:
    """Change page tables and pointers, or add noise."""
    if not parts.blocks or not parts.blocks[0]:
        return
    memory = bytearray(parts.blocks[0])
    stored = parts.runs[(parts.runs["status"] == 0) & (parts.runs["pages"] < 1 << 16)]
    frames = np.concatenate(
        [np.arange(run["first"], run["first"] + run["pages"]) for run in stored]
    )
    tables = np.flatnonzero(np.isin(frames[: len(memory) // PAGE], np.array(_PAGE_TABLES)))
    words = np.frombuffer(memory, "<u8")
    used = np.flatnonzero(words)
    for _ in range(choose.choice((1, 1, 4, 40))):
        what = choose.randrange(3)
        if what == 0 and len(tables):
            table = int(choose.choice(tables.tolist()))
            entries = words[table * 512 : table * 512 + 512]
            at = choose.choice(np.flatnonzero(entries).tolist() or [0])
            to = choose.choice((*_PAGE_TABLES, 0, 1 << 40, 80, 600))
            entries[at] = to * PAGE | choose.choice((3, 0x83, 0, 1, 0xFFF, 1 << 63 | 3))
        elif what == 1 and len(used):
            words[choose.choice(used.tolist())] = words[choose.choice(used.tolist())]
        elif len(used):
            words[choose.choice(used.tolist())] = choose.choice(_NUMBERS) % (1 << 64)
    parts.blocks[0] = bytes(memory)


def change_bytes(choose: Choice, data: bytes) -> bytes:
    """Change bytes at random."""
    changed = bytearray(data)
    for _ in range(choose.choice((1, 1, 1, 2, 8))):
        if not changed:
            break
        at, to = sorted(choose.randrange(len(changed) + 1) for _ in range(2))
        what = choose.randrange(6)
        if what == 0:
            changed[min(at, len(changed) - 1)] ^= 1 << choose.randrange(8)
        elif what == 1:
            del changed[at:]
        elif what == 2:
            changed[at:to] = bytes(to - at)
        elif what == 3:
            changed[at:at] = choose.randbytes(choose.choice((1, 8, 100)))
        elif what == 4:
            changed[at : at + 8] = (choose.choice(_NUMBERS) % (1 << 64)).to_bytes(8, "little")
        else:
            middle = (at + to) // 2
            changed[at:to] = changed[middle:to] + changed[at:middle]
    return bytes(changed)


def case(choose: Choice, good: bytes) -> bytes:
    """Return one corrupt or hostile capsule."""
    if choose.randrange(6) == 0:
        return change_bytes(choose, good)
    parts, index = take_apart(good), None
    lookups = parts.lookups
    changes: dict[str, Callable[[], Any]] = {
        "lookups": lambda: change_json(choose, lookups),
        "types": lambda: change_types(choose, lookups),
        "growth": lambda: grow_types(choose, lookups),
        "answers": lambda: change_lookups(choose, lookups),
        "values": lambda: change_values(choose, lookups),
        "manifest": lambda: change_json(choose, parts.manifest),
        "machine": lambda: change_json(choose, parts.manifest["machine"]),
        "memory": lambda: change_memory(choose, parts),
    }
    weights = {"types": 6, "answers": 6, "values": 6, "memory": 6, "lookups": 2}
    names = [
        name
        for name in (*changes, "index", "vmcoreinfo", "places", "raw", "arch")
        for _ in range(weights.get(name, 1))
    ]
    for name in choose.sample(names, choose.choice((1, 1, 1, 2, 4))):
        with contextlib.suppress(LookupError, TypeError, ValueError, AttributeError):
            # An earlier change may have removed what this one needs.
            if name in changes:
                changes[name]()
            elif name == "index":
                index = change_runs(choose, parts)
            elif name == "vmcoreinfo":
                text = parts.sections["vmcoreinfo"]
                parts.sections["vmcoreinfo"] = change_vmcoreinfo(choose, text)
            elif name == "arch":
                parts.manifest["machine"]["arch"] = "AARCH64"
            elif name == "places":
                place = {"offset": 0, "size": 0, "raw_size": 0, "sha256": "0" * 64}
                change_json(choose, place)
                where = choose.choice(("pages", "index", "lookups", "vmcoreinfo", "other"))
                parts.changed[where] = place
            else:
                where = choose.choice(sorted(parts.sections))
                parts.sections[where] = change_bytes(choose, parts.sections[where])
                if where == "lookups":
                    return put_together(parts, index)
    parts.lookups = lookups
    return put_together(parts, index)


def one_sentence(error: Exception) -> None:
    """Fail unless the message is printable text."""
    text = str(error)
    assert text, "an error without a message"
    assert text.isprintable(), ascii(error)


def explore(target: Target, names: dict[str, list[Any]], tally: Counter[str]) -> None:
    """Use all types, objects, symbols and pages of the valid capsule."""
    prog = target.prog
    for fact in target.facts():
        assert "".join(fact).isprintable()
    for kind, name in names["types"]:
        with _expected(tally):
            _use_type(prog.type(f"{kind} {name}".removeprefix("typedef ").removeprefix("int ")))
    for name in names["objects"]:
        with _expected(tally):
            _use_object(prog.object(name))
    for name, address in names["symbols"]:
        with _expected(tally):
            prog.symbol(name if address is None else address)
    for address in (0, PAGE - 8, 80 * PAGE, DIRECT_MAP + 80 * PAGE, VMEMMAP + 64, 1 << 20, 1 << 51):
        for size in (8, PAGE, 70 * PAGE):
            with _expected(tally):
                prog.read(address, size, physical=address < 1 << 52)


def _use_type(type_: drgn.Type) -> None:
    type_.type_name()
    while type_.kind in (TypeKind.TYPEDEF, TypeKind.ARRAY, TypeKind.POINTER):
        type_ = type_.type
    if type_.kind in (TypeKind.STRUCT, TypeKind.UNION, TypeKind.CLASS) and type_.is_complete():
        type_.has_member("no such member")
        for member in type_.members:
            with contextlib.suppress(NotRecorded):
                member.bit_field_size  # noqa: B018, resolves the type
                drgn.sizeof(member.type)
    drgn.sizeof(type_)
    with contextlib.suppress(AttributeError):  # newer than the oldest drgn that will do
        drgn.alignof(type_)


def _use_object(found: drgn.Object) -> None:
    if found.absent_ or drgn.sizeof(found) > 1 << 20:
        return
    value = found.read_()
    value.value_()
    if value.type_.kind == TypeKind.POINTER:
        found[0].read_()
    for member in getattr(found.type_, "members", None) or ():
        if member.name:
            found.member_(member.name)


@contextlib.contextmanager
def _expected(tally: Counter[str]) -> Iterator[None]:
    """Suppress and count the errors that using a capsule may raise."""
    try:
        yield
    except (NotRecorded, BadCapsule, AnalysisError) as error:
        tally[type(error).__name__] += 1
        one_sentence(error)
    # No size, no such value: drgn's own sentences.
    except (drgn.FaultError, LookupError, TypeError, ValueError, NotImplementedError) as error:
        tally[type(error).__name__] += 1


def _report(target: Target, tally: Counter[str]) -> None:
    """Run all analyses and detect all patches, and write the report as JSON."""
    with _expected(tally):
        report = examine(Context.of(target, jobs=1), CATALOGUE)
        for error in report.errors.values():
            # An impossible kernel in a valid capsule; the report says so in a sentence.
            one_sentence(AnalysisError(error))
            tally["failed analyses"] += 1
            assert not re.search("(Memory|Recursion|System|Assertion)Error", error), error
        json.loads(document(report).encode())


def names_in(good: bytes) -> dict[str, list[Any]]:
    """Return the keys of all lookups."""
    lookups = take_apart(good).lookups
    return {
        "types": [row[:2] for row in lookups["type_lookups"]],
        "objects": [row[0] for row in lookups["object_lookups"]],
        "symbols": [row[:2] for row in lookups["symbol_lookups"]],
    }


def do(good: bytes, seed: int, first: int, end: int) -> Counter[str]:
    """Run cases ``first`` to ``end - 1``; return the number of each outcome."""
    tally: Counter[str] = Counter()
    names = names_in(good)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "case.capsule"
        for number in range(first, end):
            print(number, flush=True)
            choose = random.Random(f"{seed} {number}")
            path.write_bytes(case(choose, good))
            faulthandler.dump_traceback_later(MAX_SECONDS, exit=True)
            try:
                target = open_target(str(path))
            except TargetError as error:
                tally["refused"] += 1
                one_sentence(error)
                continue
            tally["opened"] += 1
            explore(target, names, tally)
            if number % EVERY == 0:
                tally["analysed"] += 1
                _report(target, tally)
    faulthandler.cancel_dump_traceback_later()
    return tally


def _main() -> None:
    capsule, seed, first, end = sys.argv[1:]
    faulthandler.enable()
    good = Path(capsule).read_bytes()
    with tempfile.TemporaryDirectory() as directory:  # imports everything before the limit is set
        path = Path(directory) / "good.capsule"
        path.write_bytes(put_together(take_apart(good)))
        target = open_target(str(path))
        _report(target, Counter())
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (1 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    tally = do(good, int(seed), int(first), int(end))
    print(json.dumps(tally | {"peak_bytes": peak_bytes()}))


assert HEADER.size == 68
if __name__ == "__main__":
    _main()
