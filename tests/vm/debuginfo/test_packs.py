# SPDX-License-Identifier: LGPL-2.1-or-later
"""With a type pack and no other debug info, dumps answer as they do with DWARF."""

from __future__ import annotations

import io
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from kcensus.analyses.runner import Context
from kcensus.render.json import write_json
from kcensus.reports import examine
from kcensus.sources import Target, TargetError, open_target
from kcensus.sources.debuginfo.lookups import lookups
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
def _directory() -> tempfile.TemporaryDirectory[str]:
    # Deleted when the interpreter ends.
    return tempfile.TemporaryDirectory(prefix="kcensus-packs-")


@cache
def pack_of(vmlinux: Path) -> Path:
    """The pack of a kernel of the lab, with all modules that the lab has debug info of."""
    names = lookups()
    made = make(vmlinux, module_files(vmlinux, [vmlinux.parent], names.modules)[0], names)
    path = Path(_directory().name, made.head.file_name)
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
    write_json(examine(Context.of(replace(target, name="target", words="", types=""), jobs=1)), out)
    return out.getvalue()


def test_a_pack_answers_as_the_debug_info_does(mixed_dump: Dump) -> None:
    assert answer(with_pack(mixed_dump)) == answer(opened(mixed_dump))


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


@pytest.mark.newest
def test_the_list_of_lookups_does_not_lag(mixed_dump: Dump) -> None:
    """``python -m tests.lookups`` adds what is missing."""
    known = lookups()
    asked = record(str(mixed_dump.core), [*map(str, mixed_dump.debug)])
    asked.add(in_source())
    missing = known.missing(asked)
    assert missing == []
