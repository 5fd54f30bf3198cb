# SPDX-License-Identifier: LGPL-2.1-or-later
"""Time and memory until the first type is known: from BTF in the dump, and from DWARF."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import drgn
import pytest

from tests.bench.timing import report
from tests.lab import Dump

_SCRIPT = """
import json, sys, time
from pathlib import Path
import drgn
from kcensus.sources.debuginfo.btf import finders, places

def status(key):
    text = Path("/proc/self/status").read_text()
    return int(text.split(key + ":")[1].split()[0]) * 1024

vmcore, vmlinux, start, stop, modules = sys.argv[1:]
prog = drgn.Program()
prog.set_core_dump(vmcore)
before, began, cpu = status("VmRSS"), time.perf_counter(), time.process_time()
if vmlinux:
    prog.load_debug_info([vmlinux], main=True)
else:
    kernel = places.from_memory(prog, int(start), int(stop))
    types = finders.Types(kernel)
    listed = places.of_modules(prog, kernel, int(modules))[0] if modules else {}
    for name, module in listed.items():
        types.add(name, module)
    finders.register(prog, types)
size = prog.type("struct kmem_cache").size
seconds = time.process_time() - cpu, time.perf_counter() - began
print(json.dumps([seconds[0], status("VmHWM") - before, size, seconds[1]]))
"""


def _costs(dump: Dump, vmlinux: str, *addresses: int | str) -> list[Any]:
    words = [sys.executable, "-c", _SCRIPT, str(dump.core), vmlinux, *map(str, addresses)]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    costs: list[Any] = json.loads(done.stdout)
    return costs


@pytest.mark.usually("7.3")
def test_opening(mixed_dump: Dump, slack: float, bench_smoke: bool) -> None:
    """BTF of all loaded modules is opened, too, while DWARF of modules waits until it is needed.

    Compares seconds of CPU: drgn reads DWARF with all CPUs, which a busy host shares.
    """
    prog = drgn.Program()
    prog.set_core_dump(str(mixed_dump.core))
    vmlinux = str(mixed_dump.debug[0])
    prog.load_debug_info([vmlinux], main=True)
    names = ("__start_BTF", "__stop_BTF", "btf_modules")
    # 5.10 has no BTF of modules.
    found = [prog.symbols(name) for name in names]
    addresses = [symbols[0].address if symbols else "" for symbols in found]
    runs = 1 if bench_smoke else 3
    dwarf, btf = (
        min(_costs(mixed_dump, path, *addresses) for _ in range(runs)) for path in (vmlinux, "")
    )
    assert dwarf[2] == btf[2]
    report(
        f"opening from BTF, {mixed_dump.kernel}",
        times_faster=dwarf[0] / btf[0],
        share_of_memory=btf[1] / dwarf[1],
        cpu_seconds=btf[0],
        seconds=btf[3],
        MiB=btf[1] / 2**20,
        dwarf_cpu_seconds=dwarf[0],
        dwarf_seconds=dwarf[3],
        dwarf_MiB=dwarf[1] / 2**20,
    )
    assert dwarf[0] * slack >= 3 * btf[0]
    assert btf[1] * 3 <= dwarf[1] * slack
