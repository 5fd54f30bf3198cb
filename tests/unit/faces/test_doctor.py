# SPDX-License-Identifier: LGPL-2.1-or-later
"""What ``kcensus doctor`` says of architectures and of old kernels."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import drgn
import pytest

from kcensus.analyses import analyses
from kcensus.cli import main
from kcensus.commands.doctor import _absent, _left_out, _unknown_arguments, _unread_code
from kcensus.sources import Target

S390 = drgn.Platform(drgn.Architecture.S390X)
X86 = drgn.Platform(drgn.Architecture.X86_64)


def target(prog: drgn.Program) -> Target:
    return Target(prog, "x", "vmcore", "synthetic", live=False, kernel="x")


def test_machine_code_of_another_architecture_is_not_read() -> None:
    on_s390, on_x86 = (target(drgn.Program(each)) for each in (S390, X86))
    unread = {name for name, each in analyses().items() if _unread_code(on_s390, each)}
    assert unread == {"iosched", "waits"}
    assert "s390x" in _unread_code(on_s390, analyses()["waits"])[0]
    assert not any(_unread_code(on_x86, each) for each in analyses().values())


@pytest.mark.parametrize(
    ("types", "names"), [("BTF", {"waits"}), ("type pack", {"waits"}), ("DWARF", set())]
)
def test_arguments_of_functions_are_known_by_dwarf_only(types: str, names: set[str]) -> None:
    opened = target(drgn.Program(X86))
    opened.types = types
    lacking = {name for name, each in analyses().items() if _unknown_arguments(opened, each)}
    assert lacking == names


def test_a_kernel_without_what_an_analysis_needs() -> None:
    prog = drgn.Program(X86)
    number = prog.int_type("unsigned int", 4, False)
    member = drgn.TypeMember
    known = {
        name: prog.struct_type(name, 4, (member(type_, of),))
        for name, of, type_ in (("list_lru", "key", number),)
    }
    prog.register_type_finder(
        "synthetic", lambda prog, kinds, name, file: known.get(name), enable_index=0
    )
    absent = {name: _absent(target(prog), each) for name, each in analyses().items()}
    assert {name: member for name, member in absent.items() if member} == {
        "list-lru": "struct list_lru.node",
        "memcgs": "struct mem_cgroup.css",
    }


def test_a_sample_has_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "sample", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["summary"]["architecture"] == "x86_64"
    recorded = [
        row for row in document["tables"]["analyses"] if "not recorded" not in row["missing"]
    ]
    assert {row["works"] for row in recorded} == {"yes"}


@pytest.mark.parametrize(
    ("is_filtered", "line", "gaps"),
    [(True, b"compound_info", 1), (False, b"compound_info", 0), (True, b"compound_head", 0)],
)
def test_makedumpfiles_that_misread_a_kernel(is_filtered: bool, line: bytes, gaps: int) -> None:
    vmcoreinfo = SimpleNamespace(string_=lambda: b"OFFSET(page.%s)=8\n" % line)
    dump: Any = SimpleNamespace(prog={"VMCOREINFO": vmcoreinfo})
    assert len(_left_out(dump, is_filtered)) == gaps
