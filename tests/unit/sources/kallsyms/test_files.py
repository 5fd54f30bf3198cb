# SPDX-License-Identifier: LGPL-2.1-or-later
"""Symbols from System.map and /proc/kallsyms."""

from __future__ import annotations

from pathlib import Path

import drgn
import pytest

from kcensus.sources import TargetError
from kcensus.sources.debuginfo.kallsyms import BadKallsyms
from kcensus.sources.debuginfo.kallsyms.files import from_file, is_symbols
from tests.unit.sources.kallsyms.tables import BASE, many, program
from tests.unit.sources.kallsyms.test_kallsyms import columns

OFFSET = 0x1240_0000
KNOWN = ("_stext", "swapper_pg_dir", "init_uts_ns", "prb", "clear_seq")
_FIXED = ("A", "VDSO64_PRELINK", 0xFFFF_FFFF_FF70_0000)
Row = tuple[str, str, int]


def linked() -> list[Row]:
    *code, uts, _, last = many(1200, percpu=True)
    start = last[2]
    names = ("swapper_pg_dir", "prb", "clear_seq", "linux_banner")
    data = [("D", name, start + 64 * row) for row, name in enumerate(names, 1)]
    return [*code, uts, last, *data, _FIXED]


def moved(rows: list[Row]) -> list[Row]:
    return [(t, n, a + OFFSET if BASE <= a < _FIXED[2] else a) for t, n, a in rows]


def lines(rows: list[Row]) -> str:
    return "".join(f"{address:016x} {type_} {name}\n" for type_, name, address in rows)


def kernel(rows: list[Row], banner: bytes = b"Linux version 0.0.0") -> drgn.Program:
    known = [(name, address) for _, name, address in rows if name in KNOWN]
    text = [f"SYMBOL({name})={address:x}" for name, address in known]
    start = [f"KERNELOFFSET={OFFSET:x}", "OSRELEASE=0.0.0", "PAGESIZE=4096"]
    end = ["NUMBER(pgtable_l5_enabled)=0", "NUMBER(phys_base)=0", ""]
    place = next(address for _, name, address in rows if name == "linux_banner")
    return program("\n".join([*start, *text, *end]).encode(), banner, start=place)


def test_a_system_map_is_moved_by_kaslr(tmp_path: Path) -> None:
    path = tmp_path / "System.map"
    path.write_text(lines(linked()))
    assert is_symbols(path.read_bytes()[:1024])
    assert columns(from_file(path, kernel(moved(linked())))) == moved(linked())


def test_labels_of_the_assembler_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "System.map"
    path.write_text(lines(linked()) + "ffffffff81000000 d __kvm_nvhe_.L14472\x021\n")
    assert columns(from_file(path, kernel(moved(linked())))) == moved(linked())


def test_undefined_weak_symbols_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "System.map"
    path.write_text(f"{'':16} w mach_get_cmos_time\n{'':16} w __crc_x\n" + lines(linked()))
    assert is_symbols(path.read_bytes()[:1024])
    assert columns(from_file(path, kernel(moved(linked())))) == moved(linked())


def test_proc_kallsyms_is_of_one_boot(tmp_path: Path) -> None:
    path = tmp_path / "kallsyms"
    module = "ffffffffc0000000 t xfs_init\t[xfs]\nffffffffc0000010 t bpf_prog_1\t[bpf]\n"
    path.write_text(lines(moved(linked())) + module)
    assert is_symbols(path.read_bytes()[:1024])
    assert columns(from_file(path, kernel(moved(linked())))) == moved(linked())


def test_that_of_the_running_kernel_is_read() -> None:
    with pytest.raises((BadKallsyms, TargetError)):
        from_file("/proc/kallsyms", kernel(moved(linked())))


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "System.map"
    rows, prog = linked(), kernel(moved(linked()))
    other = [(t, n, a + 8 if n == "prb" else a) for t, n, a in rows]
    few = [row for row in rows if row[1] not in KNOWN[2:]]
    hidden = "".join(f"{0:016x} {type_} {name}\n" for type_, name, _ in rows)
    for text, why in [
        (lines(other), "another kernel: prb"),
        (lines(few), "too few symbols"),
        (hidden, "kptr_restrict"),
        (lines(rows[:100]), "enough lines"),
        (lines(rows) + "\n", "line 120"),
        (lines(rows).replace("0 t ", "0 \x1b[31mt "), "is not an address"),
    ]:
        path.write_text(text)
        with pytest.raises(BadKallsyms, match=why):
            from_file(path, prog)
    path.write_text(lines(rows))
    with pytest.raises(BadKallsyms, match="linux_banner"):
        from_file(path, kernel(moved(rows), b"other bytes at this place"))
    assert not is_symbols(b"\x7fELF")
