# SPDX-License-Identifier: LGPL-2.1-or-later
"""The charts of results: those that analyses declare, and the bars of RAM."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import cycle

from kcensus.analyses import analyses
from kcensus.charts import COLORS, FREE, REST, Bar, Chart, ChartSpec, chart, compares
from kcensus.human import human
from kcensus.results import MEMORY_USES, Machine, Result, Unit


def specs(result: Result) -> Sequence[ChartSpec]:
    """Return the declared charts of the analysis of a result."""
    known = analyses().get(result.analysis)
    return known.chart_specs() if known else ()


def charts(result: Result) -> list[Chart]:
    """Return the charts of a result that compare enough bytes."""
    return [each for spec in specs(result) if compares(each := chart(result, spec))]


def memory_use(machine: Machine) -> Chart:
    """Return one bar: RAM by use, by the kernel's own counters."""
    memory = dict(machine.memory)
    free = memory.pop("free", 0)
    slabs = memory.pop("slab_reclaimable", 0) + memory.pop("slab_unreclaimable", 0)
    lengths = {"slabs": slabs}
    for name in ("anonymous", "page_cache", "shmem"):
        lengths[MEMORY_USES[name]] = memory.pop(name, 0)
    lengths["other kernel memory"] = sum(memory.values())
    lengths["free"] = free
    return _ram_bar("RAM by use", lengths, sum(lengths.values()), (*COLORS, REST))


def ram_use(
    found: Mapping[str, Result], ram_bytes: int, failed: Collection[str] = (), free: int = 0
) -> Chart:
    """Return one bar: the RAM accounted for by analyses, with the rest and free memory at the end.

    Parts of the slab pages are subtracted from these, so no byte is counted twice. The uses of an
    analysis have the same color on every machine.
    """
    users = {name: ram for name, analysis in analyses().items() if (ram := analysis.ram)}
    color_of = dict(zip(users, cycle(COLORS), strict=False))
    declared = {name: [*ram(found[name])] for name, ram in users.items() if name in found}
    uses = [use for each in declared.values() for use in each]
    whole = sum(use.bytes for use in uses if use.is_total)
    parts = [use for use in uses if use.in_slabs and not use.is_total]
    excess = sum(use.bytes for use in parts) - whole
    others = max(-excess, 0)
    notes = [f"failed analyses count as not analysed: {', '.join(failed)}"] if failed else []
    if whole and excess > 0:
        notes.append(f"parts exceed the slab pages by {human(excess, Unit.BYTES)}")
    if any(result.gaps for result in found.values()):
        notes.append("unreadable memory counts as not analysed")
    sizes: defaultdict[tuple[str, str], int] = defaultdict(int)
    for user, each in declared.items():
        for use in each:
            name = ("other slabs" if parts else "slabs") if use.is_total else use.name
            sizes[color_of[user], name] += others if use.is_total else use.bytes
    shown = sorted((pair for pair in sizes.items() if pair[1] > 0), key=lambda pair: -pair[1])
    lengths = {name: size for (_, name), size in shown}
    colors = [color for (color, _), _ in shown]
    rest = max(ram_bytes - sum(lengths.values()), 0)
    free = min(free, rest)
    lengths["not analysed"] = rest - free
    if free:
        lengths["free"] = free
    ends = (REST, FREE) if free else (REST,)
    note = "; ".join(notes)
    return _ram_bar("RAM that is analysed", lengths, ram_bytes, (*colors, *ends), note)


def _ram_bar(
    title: str, lengths: Mapping[str, int], whole: int, colors: Sequence[str], note: str = ""
) -> Chart:
    parts = [(*use, color) for use, color in zip(lengths.items(), colors, strict=False) if use[1]]
    legend = tuple(f"{name}: {human(size, Unit.BYTES)}" for name, size, _ in parts)
    bar = Bar("RAM", tuple(size for _, size, _ in parts), human(whole, Unit.BYTES))
    return Chart(title, legend, (bar,), Unit.BYTES, tuple(each[2] for each in parts), note=note)
