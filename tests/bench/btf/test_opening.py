# SPDX-License-Identifier: LGPL-2.1-or-later
"""Time and memory until the first type and symbol are known: without debug info, and from DWARF."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.bench.timing import report
from tests.lab import Dump

_SCRIPT = """
import json, sys, time
from pathlib import Path
import drgn
from kcensus.sources.debuginfo import kallsyms
from kcensus.sources.debuginfo.btf import finders, places

def status(key):
    text = Path("/proc/self/status").read_text()
    return int(text.split(key + ":")[1].split()[0]) * 1024

vmcore, vmlinux, has_modules = sys.argv[1:]
prog = drgn.Program()
prog.set_core_dump(vmcore)
before, began, cpu = status("VmRSS"), time.perf_counter(), time.process_time()
if vmlinux:
    prog.load_debug_info([vmlinux], main=True)
else:
    symbols = kallsyms.load(prog)
    kernel = places.from_memory(prog, *map(symbols.address, ("__start_BTF", "__stop_BTF")))
    types = finders.Types(kernel)
    head = symbols.address("btf_modules") if has_modules else None
    # 5.10 has no BTF of modules.
    for name, module in places.of_modules(prog, kernel, head)[0].items() if head else ():
        types.add(name, module)
    symbols.register(prog)
    finders.register(prog, types)
found = prog.type("struct kmem_cache").size, prog.symbol("init_task").address
seconds = time.process_time() - cpu, time.perf_counter() - began
print(json.dumps([seconds[0], status("VmHWM") - before, found, seconds[1]]))
"""


def _costs(dump: Dump, vmlinux: str = "", has_modules: str = "") -> list[Any]:
    words = [sys.executable, "-c", _SCRIPT, str(dump.core), vmlinux, has_modules]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    costs: list[Any] = json.loads(done.stdout)
    return costs


@pytest.mark.usually("7.3")
def test_opening(mixed_dump: Dump, slack: float, bench_smoke: bool) -> None:
    """Modules wait until they are needed, with and without debug info.

    Compares seconds of CPU: drgn reads DWARF with all CPUs, which a busy host shares.
    """
    vmlinux = str(mixed_dump.debug[0])
    # In turns, so that all have the same share of a busy host.
    runs = [
        (_costs(mixed_dump, vmlinux), _costs(mixed_dump), _costs(mixed_dump, "", "modules"))
        for _ in range(1 if bench_smoke else 5)
    ]
    dwarf, bare, modules = map(min, zip(*runs, strict=True))
    assert dwarf[2] == bare[2] == modules[2]
    report(
        f"opening from BTF and kallsyms, {mixed_dump.kernel}",
        times_faster=dwarf[0] / bare[0],
        times_faster_with_types_of_modules=dwarf[0] / modules[0],
        share_of_memory=bare[1] / dwarf[1],
        cpu_seconds=bare[0],
        seconds=bare[3],
        MiB=bare[1] / 2**20,
        dwarf_cpu_seconds=dwarf[0],
        dwarf_seconds=dwarf[3],
        dwarf_MiB=dwarf[1] / 2**20,
    )
    assert dwarf[0] * slack >= 3 * bare[0]
    assert bare[1] * 3 <= dwarf[1] * slack
