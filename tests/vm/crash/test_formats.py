# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcensus works on dumps that crash opens and drgn does not, and gives the same figures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kcensus import cli
from kcensus.sources import TargetError, open_target
from tests.lab import Dump, build, live
from tests.vm.crash import formats
from tests.vm.crash.session import Session
from tests.vm.elf_edit import copy, truncated

_MAKERS: dict[str, Callable[[Path, Path], None]] = {
    "elf-without-vmcoreinfo": formats.elf_without_vmcoreinfo,
    "netdump": formats.netdump,
    "raw": formats.raw,
    "guest.vmss": formats.vmss,
    "sadump": formats.sadump,
}
_WITHOUT_REGISTERS = {"netdump", "raw"}
"""Formats that lack what crash finds a kernel at a random place with; its options say where."""


def _report(path: Path, debug: list[Path], out: Path) -> Any:
    symbols = [word for each in debug for word in ("-s", str(each))]
    assert cli.main(["report", str(path), *symbols, "--json", str(out)]) == 0
    return _document(out)


def _report_inside(
    session: Session, debug: list[Path], directory: Path, name: Path | None = None
) -> Any:
    """Return the same document from a session of crash, where the target has this name."""
    modules = ":".join(map(str, debug[1:]))
    session.script(
        ["kcensus report --json > report.json"], directory, environment={"KCENSUS_SYMBOLS": modules}
    )
    return _document(directory / "report.json", name)


def _document(path: Path, name: Path | None = None) -> Any:
    text = path.read_text()
    assert name is None or json.loads(text)["target"] == str(name)
    return json.loads(text.replace(json.loads(text)["target"], "TARGET"))


@pytest.fixture(scope="module")
def expected(dump: Dump, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("direct") / "report.json"
    return _report(dump.formats["elf"], dump.debug, out)


def _place(dump: Dump) -> tuple[str, ...]:
    """Return the options with which a user tells crash where the kernel is."""
    text = open_target(str(dump.formats["elf"]), dump.debug).prog["VMCOREINFO"].string_().decode()
    offset = re.search(r"^KERNELOFFSET=(\w+)$", text, re.MULTILINE)
    base = re.search(r"^NUMBER\(phys_base\)=(-?\d+)$", text, re.MULTILINE)
    assert offset
    assert base
    return f"--kaslr=0x{offset[1]}", "-m", f"phys_base={int(base[1]) % (1 << 64):#x}"


@pytest.mark.usually
@pytest.mark.parametrize("format_", _MAKERS)
def test_formats(format_: str, dump: Dump, expected: Any, tmp_path: Path) -> None:
    path = tmp_path / format_
    _MAKERS[format_](dump.formats["elf"], path)
    with pytest.raises(TargetError):
        open_target(str(path), dump.debug)
    session = Session(
        dump.vmlinux,
        (f"{path}@0" if format_ == "raw" else path,),
        _place(dump) if format_ in _WITHOUT_REGISTERS else (),
    )
    assert _report_inside(session, dump.debug, tmp_path, path) == expected


@pytest.mark.usually
def test_split_dump(dump: Dump, expected: Any, tmp_path: Path) -> None:
    parts = (tmp_path / "vmcore-1", tmp_path / "vmcore-2")
    formats.split(dump.formats["elf"], parts)
    assert min(part.stat().st_size for part in parts) > 1 << 20
    for part in parts:
        with pytest.raises(TargetError):
            open_target(str(part), dump.debug)
    session = Session(dump.vmlinux, parts)
    assert _report_inside(session, dump.debug, tmp_path) == expected
    # Naming a part is naming the dump.
    names = {"": "doctor.json", parts[0]: "named.json"}
    session.script(
        [f"kcensus doctor {target} --json > {name}" for target, name in names.items()], tmp_path
    )
    for name in names.values():
        document = json.loads((tmp_path / name).read_text())
        assert document["target"] == ", ".join(map(str, parts))
        size = sum(part.stat().st_size for part in parts)
        assert document["summary"]["file_bytes"] == size


@pytest.mark.usually("elf")
@pytest.mark.parametrize("format_", ["elf", "kdump"])
def test_truncated_dump(format_: str, tmp_path: Path) -> None:
    """What is missing is counted as missing, also where crash reads it as zeros."""
    dump = build("5.10", "mixed")
    whole, path = tmp_path / "whole", tmp_path / "vmcore"
    if format_ == "kdump":
        formats.kdump(dump.formats["elf"], whole)
    else:
        copy(dump.formats["elf"], whole)
    truncated(whole, path, whole.stat().st_size * 995 // 1000)
    documents = []
    for options in ((), ("--zero_excluded",)):
        # Modules can be in what is missing; without them crash would not start.
        Session(dump.vmlinux, (path,), ("--no_modules", *options)).script(
            ["kcensus slab --json > slab.json", "kcensus doctor --json > doctor.json"], tmp_path
        )
        documents.append(_document(tmp_path / "slab.json"))
        facts = json.loads((tmp_path / "doctor.json").read_text())["summary"]
        assert facts["missing_bytes"] > 0
        assert facts["format"].startswith(("ELF", "kdump-compressed"))
    first, with_zeros = documents
    assert with_zeros == first
    assert "end of the dump" in [gap["what"] for gap in first["gaps"]]
    if format_ == "elf":
        out = tmp_path / "direct.json"
        words = ["slab", str(path), "-s", str(dump.vmlinux), "--allow-truncated"]
        assert cli.main([*words, "--json", str(out)]) == 0
        direct = _document(out)
        for document in (direct, first):
            # What drgn says of a read that fails, and how crash loads modules, which may be in
            # what is missing.
            document["gaps"] = [
                gap
                for gap in document["gaps"]
                if "(drgn:" not in gap["reason"] and "of module" not in gap["what"]
            ]
        # crash needs no page tables to find the kernel's variables, which can be what is missing.
        unknown = {each["name"] for each in direct["checks"] if each["status"] == "absent"}
        for document in (direct, first):
            document["checks"] = [c for c in document["checks"] if c["name"] not in unknown]
            if unknown:
                del document["machine"]["memory"]
        assert direct == first


@pytest.mark.usually  # it boots a guest
def test_kdump_of_qemu(tmp_path: Path) -> None:
    """QEMU leaves headers out of its kdump-compressed format that libkdumpfile needs."""
    elf, kdump = tmp_path / "vmcore.elf", tmp_path / "vmcore.kdump"
    with live("5.10", "churn") as guest:
        guest.stop()
        guest.machine.dump(elf)
        guest.machine.command(
            "dump-guest-memory", paging=False, protocol=f"file:{kdump}", format="kdump-zlib"
        )
        guest.resume()
    with pytest.raises(TargetError):
        open_target(str(kdump), guest.debug)
    expected = _report(elf, guest.debug, tmp_path / "direct.json")
    session = Session(guest.vmlinux, (kdump,))
    assert _report_inside(session, guest.debug, tmp_path) == expected
