# SPDX-License-Identifier: LGPL-2.1-or-later
"""With a type pack and no other debug info, dumps answer as they do with DWARF."""

from __future__ import annotations

import io
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import drgn
import pytest
from drgn.helpers.linux.cgroup import cgroup_path
from drgn.helpers.linux.fs import path_lookup
from drgn.helpers.linux.mm import decode_page_flags, pfn_to_page
from drgn.helpers.linux.panic import tainted
from drgn.helpers.linux.pid import find_task
from drgn.helpers.linux.sched import loadavg, task_state_to_char

from kcensus.analyses.runner import Context
from kcensus.render.json import write_json
from kcensus.reports import examine
from kcensus.sources import Target, TargetError, open_target
from kcensus.sources.debuginfo.in_memory import InMemory
from kcensus.sources.debuginfo.lookups import lookups, of_helpers
from kcensus.sources.debuginfo.packs.loaded import PackDebugInfo
from kcensus.sources.debuginfo.packs.maker import make
from kcensus.sources.debuginfo.packs.modules import module_files
from tests.lab import Dump, build, kernels_of
from tests.lookups import in_source, record
from tests.vm.cases import opened

_SCENARIOS = (
    *("kcopyd-unlimited", "kcopyd-waiting", "list-lru", "waits-freeze", "waits-convoy"),
    *("waits-stacked", "waits-servers", "waits-scsi", "waits-memory", "waits-writeback"),
    *("iosched-starved", "waits-stopped"),
)


@cache
def _directory(of: str = "") -> tempfile.TemporaryDirectory[str]:
    # Deleted when the interpreter ends.
    return tempfile.TemporaryDirectory(prefix=f"kcensus-packs{of}-")


@cache
def pack_of(vmlinux: Path) -> Path:
    """The pack of a kernel of the lab, with all modules that the lab has debug info of."""
    names = lookups()
    made = make(vmlinux, module_files(vmlinux, [vmlinux.parent], names.modules)[0], names)
    path = Path(_directory().name, made.head.file_name)
    path.write_bytes(made.data)
    return path


@cache
def pack_of_kernel(vmlinux: Path) -> Path:
    """The pack of a kernel, without modules."""
    made = make(vmlinux, [], lookups())
    path = Path(_directory("-alone").name, made.head.file_name)
    path.write_bytes(made.data)
    return path


def with_pack(dump: Dump) -> Target:
    """Open a dump with a directory of packs, and nothing else; the lab's debug info is hidden."""
    pack = pack_of(dump.vmlinux)
    target = open_target(str(dump.core), [pack.parent])
    assert target.modules is not None
    assert ("vmlinux", f"{pack} (type pack)") in target.modules.places()
    return target


def answer(target: Target) -> str:
    """The report of a target as JSON, without its name, its types and the words that open it."""
    out = io.StringIO()
    write_json(
        examine(
            Context.of(replace(target, name="target", words="", types="", completed=bool), jobs=1)
        ),
        out,
    )
    return out.getvalue()


def test_a_pack_answers_as_the_debug_info_does(mixed_dump: Dump) -> None:
    target = with_pack(mixed_dump)
    assert answer(target) == answer(opened(mixed_dump))
    assert target.type_sources == "type pack"
    assert InMemory.of(target.prog) is None


@pytest.mark.parametrize("case", ["6.1-kcopyd-unlimited", "7.3-mixed", "6.12-waits-stacked"])
@pytest.mark.usually("6.1-kcopyd-unlimited")
def test_modules_that_a_pack_lacks_come_from_btf(case: str) -> None:
    kernel, _, scenario = case.partition("-")
    dump = build(kernel, scenario)
    target = open_target(str(dump.core), [pack_of_kernel(dump.vmlinux)])
    assert (target.type_sources, InMemory.of(target.prog)) == ("type pack", None)
    made = examine(Context.of(target, jobs=1))
    assert made.head.machine is not None
    assert made.head.machine.types == "type pack, BTF"
    assert answer(target) == answer(opened(dump))
    assert target.type_sources == "type pack, BTF"
    assert target.modules is not None
    sources = {place for _, place in target.modules.places()}
    assert "types (BTF) and symbols in memory" in sources
    # At a prompt, so does every other name.
    with_debug_info = opened(dump).prog
    for name in ("struct inet_sock", "struct signal_struct"):
        own, known = (prog.type(name) for prog in (target.prog, with_debug_info))
        assert own.size == known.size
        assert [(each.name, each.bit_offset, each.type.type_name()) for each in own.members] == [
            (each.name, each.bit_offset, each.type.type_name()) for each in known.members
        ]
    assert int(target.prog.constant("TCP_LISTEN")) == int(with_debug_info.constant("TCP_LISTEN"))


def test_modules_without_btf_are_a_gap() -> None:
    dump = build("5.10", "mixed")
    target = open_target(str(dump.core), [pack_of_kernel(dump.vmlinux)])
    (sentence,) = target.need_modules("dm-mod")
    assert "has no such module; pass the files of modules to `kcensus types save`" in sentence
    assert target.type_sources == "type pack"
    assert target.prog.type("struct inet_sock").size
    assert target.type_sources == "type pack, BTF"


@pytest.mark.usually  # a minute and more for each kernel
@pytest.mark.parametrize("scenario", _SCENARIOS)
def test_a_pack_answers_in_every_scenario(kernel: str, scenario: str) -> None:
    if kernel in kernels_of(scenario):
        dump = build(kernel, scenario)
        assert answer(with_pack(dump)) == answer(opened(dump))


@pytest.mark.kernels("7.3")
def test_what_needs_dwarf_is_a_gap(kernel: str) -> None:
    dump = build(kernel, "waits-cpu")
    context = Context.of(with_pack(dump), jobs=1)
    sections = {each.name: each.result for each in examine(context).sections}
    (gap,) = (
        each
        for result in sections.values()
        if result is not None
        for each in result.gaps
        if each.what == "spinlocks"
    )
    assert gap.count > 0


def test_a_pack_of_another_kernel_is_refused(kernel: str) -> None:
    other = {"7.3": "6.1"}.get(kernel, "7.3")
    pack = pack_of(build(other, "mixed").vmlinux)
    with pytest.raises(TargetError, match="is a type pack of another kernel than this one"):
        open_target(str(build(kernel, "mixed").core), [pack])


def test_drgns_helpers_answer_without_btf(mixed_dump: Dump, tmp_path: Path) -> None:
    names = lookups()
    names.add(of_helpers())
    made = make(mixed_dump.vmlinux, [], names)
    path = tmp_path / made.head.file_name
    path.write_bytes(made.data)

    def answers(prog: drgn.Program) -> list[object]:
        init = find_task(prog, 1)
        return [
            path_lookup(prog, "/").dentry.value_(),
            *map(cgroup_path, (init.cgroups.dfl_cgrp, prog["cgrp_dfl_root"].cgrp.address_of_())),
            *(task_state_to_char(init), loadavg(prog), tainted(prog)),
            decode_page_flags(pfn_to_page(prog, 4096)),
        ]

    target = open_target(str(mixed_dump.core), [path])
    pack = PackDebugInfo.of(target.prog)
    assert pack is not None
    pack.rest = lambda: "it has none"
    assert answers(target.prog) == answers(opened(mixed_dump).prog)


@pytest.mark.newest
def test_the_list_of_lookups_does_not_lag(mixed_dump: Dump) -> None:
    """``python -m tests.lookups`` adds what is missing."""
    known = lookups()
    asked = record(str(mixed_dump.core), [*map(str, mixed_dump.debug)])
    asked.add(in_source())
    missing = known.missing(asked)
    assert missing == []
