# SPDX-License-Identifier: LGPL-2.1-or-later
"""RAM, CPUs and nodes of synthetic kernels in which a count is damaged, and panics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import drgn
import pytest

from kcensus.analyses.runner import Context
from kcensus.arch import KNOWN, name_of
from kcensus.engine import memory
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.log import Log
from kcensus.kernel.machine import _taken_by, faulting, machine
from kcensus.kernel.size import machine_size
from kcensus.results import Answer
from kcensus.sources import open_target
from kcensus.sources.faults import ZEROED
from tests.running import analysis_of
from tests.unit.capsules import target_of
from tests.unit.fakekernel import PAGE, FakeKernel

RAM = 3072 * PAGE


def test_what_agrees_is_not_mentioned() -> None:
    size = machine_size(FakeKernel().prog)
    assert (size.ram_bytes, size.cpus, size.contradictions) == (RAM, 2, [])


@pytest.mark.parametrize("pages", [0, 1, 3000, 1 << 40, -1, None])
def test_totalram_pages_is_held_against_the_zones(pages: int | None) -> None:
    k = FakeKernel()
    if pages is None:  # the zones are damaged
        k.set(k.symbols["node_data"][0].node_zones[0].managed_pages.counter, 1 << 60)
    else:
        k.set(k.symbols["_totalram_pages"].counter, pages)
    size = machine_size(k.prog)
    assert (size.ram_bytes, [each.what for each in size.contradictions]) == (RAM, ["RAM"])


def test_counters_of_a_node_on_a_page_of_zeros() -> None:
    k = FakeKernel()
    at = k.physical(k.symbols["node_data"][0].vm_stat.address_) & -PAGE
    k.ram[at : at + PAGE] = bytes(PAGE)
    assert ZEROED in {each.reason for each in machine_size(k.prog).contradictions}


def test_possible_nodes_are_held_against_their_number() -> None:
    k = FakeKernel()
    possible = k.symbols["node_states"][k.symbols["N_POSSIBLE"]]
    k.set(possible.bits[0], 1)
    assert [each.what for each in machine_size(k.prog).contradictions] == ["NUMA nodes"]


def test_possible_cpus_are_held_against_their_areas() -> None:
    k = FakeKernel()
    k.set(k.symbols["__cpu_possible_mask"].bits[0], 1)
    assert [each.what for each in machine_size(k.prog).contradictions] == ["CPUs"]
    k = FakeKernel()
    k.set(k.symbols["__cpu_online_mask"].bits[0], 0)
    size = machine_size(k.prog)
    assert (size.cpus, [each.what for each in size.contradictions]) == (None, ["CPUs"])


def test_a_contradiction_is_a_gap_of_every_result() -> None:
    k = FakeKernel()
    k.set(k.symbols["_totalram_pages"].counter, 1)
    analysis = analysis_of("calm", lambda kernel: Answer())
    (gap,) = Context.of(target_of(k)).run(analysis).gaps
    assert gap.what == "RAM"


@pytest.mark.parametrize(
    ("cpu", "tainted", "message", "ends"),
    [
        (1, 1 << 7, b"kernel BUG at bio.c:1!", "kernel BUG at bio.c:1!"),
        (1, 1 << 7, None, "dumped while the kernel ran"),  # the log is not readable
        (-1, 1 << 7, b"kernel BUG at bio.c:1!", "ran, after an oops: kernel BUG at bio.c:1!"),
        (-1, 1 << 7, None, "kernel ran, after an oops"),  # as in a redacted capsule
        (-1, 1 << 9, None, "kernel ran"),
        (None, None, b"kernel BUG at bio.c:1!", "kernel BUG at bio.c:1!"),
    ],
)
def test_a_kernel_may_run_on_after_an_oops(
    cpu: int | None, tainted: int | None, message: bytes | None, ends: str
) -> None:
    prog: Any = {} if cpu is None else {"panic_cpu": SimpleNamespace(counter=cpu)}
    prog |= {} if tainted is None else {"tainted_mask": tainted}
    with (
        mock.patch("kcensus.kernel.machine.panic_message", return_value=message),
        mock.patch("kcensus.kernel.machine.is_sound", return_value=True),
        mock.patch("kcensus.kernel.machine.panic_task", side_effect=LookupError),
    ):
        kernel: Any = SimpleNamespace(prog=prog)
        assert _taken_by(kernel).endswith(ends)


_NULL = "BUG: kernel NULL pointer dereference, address: 0000000000000008"


@pytest.mark.parametrize(
    ("lines", "function"),
    [
        ([_NULL, "Oops: 0002 [#1] SMP", "RIP: 0010:bio_endio+0x5e/0x70 [dm_mod]", "RIP: 0033:0x7f"],
         "bio_endio [dm_mod]"),
        ([_NULL, "pc : bio_endio+0x5e/0x70", "lr : submit_bio+0x1/0x2"], "bio_endio"),
        ([_NULL, "RIP: 0010:first+0x1/0x2", _NULL, "RIP: 0010:second+0x1/0x2", "RIP: 0010:x+0x1/2"],
         "first"),
        ([_NULL, *["Code:"] * 16, "RIP: 0010:later+0x1/0x2"], ""),
        (["watchdog: BUG: soft lockup - CPU#0 stuck for 22s!", "RIP: 0010:spin+0x1/0x2"], ""),
        ([_NULL], ""),
    ],
)  # fmt: skip
def test_the_function_of_the_first_oops(lines: list[str], function: str) -> None:
    assert faulting((0.0, line) for line in lines) == function


@pytest.mark.parametrize(
    ("message", "is_of_oops"),
    [
        ("BUG: kernel NULL pointer dereference, address: 0000000000000008", True),
        ("Kernel panic - not syncing: Fatal exception in interrupt", True),
        ("Kernel panic - not syncing: hung_task: blocked tasks", False),
    ],
)
def test_only_the_panic_of_an_oops_has_its_function(message: str, is_of_oops: bool) -> None:
    log = Log([(0.0, _NULL), (0.0, "RIP: 0010:bio_endio+0x5e/0x70")])
    kernel: Any = SimpleNamespace(prog={})
    with (
        mock.patch("kcensus.kernel.machine.panic_message", return_value=message.encode()),
        mock.patch("kcensus.kernel.machine.is_sound", return_value=True),
        mock.patch("kcensus.kernel.machine.read_log", return_value=log),
        mock.patch("kcensus.kernel.machine.panic_task", side_effect=LookupError),
    ):
        assert _taken_by(kernel).endswith(" in bio_endio") == is_of_oops


@pytest.mark.parametrize(
    ("taken_by", "is_panic"),
    [
        ("kernel BUG at block/bio.c:1829! (task kworker/0:1)", True),
        ("sysrq: Trigger a crash (task bash)", False),
        ("no panic: dumped while the kernel ran", False),
        ("no panic: dumped while the kernel ran, after an oops: kernel BUG at bio.c:1!", False),
        ("", False),
    ],
)
def test_a_panic_that_a_user_asked_for_has_no_cause_to_look_for(
    taken_by: str, is_panic: bool
) -> None:
    with mock.patch("kcensus.kernel.machine._taken_by", return_value=taken_by):
        assert machine(Kernel(open_target("sample").prog)).is_panic is is_panic


@pytest.mark.parametrize(
    ("name", "architecture"), [("sample", "x86_64"), ("sample-arm64", "aarch64")]
)
def test_the_architecture_and_the_page_size(name: str, architecture: str) -> None:
    found = machine(Kernel(open_target(name).prog))
    assert (found.architecture, found.page_size_bytes) == (architecture, 4096)


def test_the_name_of_an_architecture() -> None:
    power = drgn.Platform(drgn.Architecture.PPC64, drgn.PlatformFlags.IS_64_BIT)  # big-endian
    assert (name_of(None), name_of(power)) == ("unknown", "ppc64")
    assert [name_of(each.platform) for each in KNOWN] == [each.name for each in KNOWN]


def test_a_direct_map_that_drgn_does_not_find(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(prog: drgn.Program, pfn: int) -> drgn.Object:
        raise Exception("could not find variable in direct mapping")  # as drgn does

    monkeypatch.setattr(memory, "pfn_to_virt", lost)
    assert machine_size(FakeKernel().prog).cpus == 2
    with pytest.raises(LookupError):
        memory.direct_map_start(FakeKernel().prog)


def test_a_direct_map_that_begins_nowhere() -> None:
    with mock.patch("kcensus.kernel.size.direct_map_start", return_value=0):
        found = machine_size(FakeKernel().prog).contradictions
    assert [each.what for each in found] == ["direct map"]
