# ---
# jupyter:
#   SPDX-License-Identifier: LGPL-2.1-or-later
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Capacity report
#
# The memory of one machine by use, the waste in it, and the commands that return it.
#
# Figures are of one moment, the time of the dump. Only a series shows growth.

# %% tags=["parameters"]
target = "sample"  # TARGET: a vmcore or a capsule; /proc/kcore is the running kernel
symbols: list[str] = []  # files and directories with debug info
top = 10  # rows of each table

# %%
import pandas as pd
from IPython.display import Markdown, display

import kcensus
from kcensus import Frame, plots, shown

kernel = kcensus.open_target(target, symbols)
report = kcensus.report(kernel)


def say(text: str) -> None:
    """Show a text in Markdown."""
    display(Markdown(text))


def answer(name: str) -> kcensus.Result | None:
    """Return the result of an analysis; where it has no figures, say why."""
    result = report.results.get(name)
    if result is None:
        say(f"*The analysis `{name}` failed on this kernel:*")
    elif not result.result.nothing:
        return result
    reason = result.result.nothing if result else report.failed[name]
    display({"text/plain": reason}, raw=True)
    return None


machine = report.report.head.machine
facts = [f"Linux {report.report.head.kernel}", report.report.head.target]
if machine and machine.host != "(none)":  # what a kernel is called until sethostname()
    facts.insert(0, machine.host)
if machine and machine.time:
    time = pd.to_datetime(machine.time, unit="s", errors="coerce")
    facts += [f"{time:%Y-%m-%d %H:%M} UTC"] if not pd.isna(time) else []
subject = shown(", ".join(filter(None, facts)))
display({"text/plain": subject}, raw=True, metadata={"kcensus": {"subject": subject}})
best = max((finding.returns or 0 for finding in report.findings), default=0)
if machine and machine.ram_bytes and best:
    top_finding = next(each for each in report.findings if each.returns == best)
    say(
        f"The largest amount that one command returns is **{shown(best, 'bytes')}** of"
        f" {shown(machine.ram_bytes, 'bytes')} of RAM; the finding is:"
    )
    display({"text/plain": top_finding.title}, raw=True)

# %% [markdown]
# ## Findings
#
# Problems come first, with the memory that a finding *holds*, a command that returns it, and the
# risk. Symptoms are below their cause, so no memory is counted twice.

# %%
report

# %% [markdown]
# ## RAM by use
#
# The kernel's own counters, as in `/proc/meminfo`. Other kernel memory is page tables, stacks,
# per-CPU memory, and pages that drivers and the kernel allocate for themselves.

# %%
ram = plots.ram_by_use(report)

# %% [markdown]
# The part accounted for by the analyses below. They do not look at page cache and the memory of
# processes: these, and other memory of the kernel, are not analysed.

# %%
analysed = plots.ram_analysed(report)

# %% [markdown]
# ## Slab
#
# The kernel allocates its small objects from *slabs*: pages divided into slots of one size.
# A slab returns to the system when its last object is freed, so a few objects can hold many pages.
# *Utilization* is the share of objects in slab pages.

# %%
if slab := answer("slab"):
    say(
        f"Slab pages use **{slab.text('slab_bytes')}**, {slab.text('share_of_ram')} of RAM."
        f" Objects use {slab.text('active_bytes')} of that: utilization is"
        f" **{slab.text('utilization')}**. Free slots hold {slab.text('free_slot_bytes')};"
        f" {slab.text('reclaimable_bytes')} are in caches that reclaim can shrink."
    )
    largest = plots.slab_caches(slab)

# %% [markdown]
# Each step of the next curve is a cache. Where it is steep, much memory is in caches of that
# utilization. On a kernel whose memory cgroups have slab caches of their own (up to 5.8), a band
# shows the utilization of such machines that was published with the patch `slab-objcg-controller`.

# %%
if slab:
    utilization = plots.slab_utilization(slab)

# %% [markdown]
# The first chart counts slabs, the second one bytes. Empty slabs return when their cache is shrunk.
# Almost empty slabs are fragmentation: they return only when their last objects are freed.
# Full slabs are healthy.

# %%
if slab:
    fill = plots.slab_fill(slab)
    waste = plots.slab_waste(slab)

# %%
if slab:
    columns = ["objects_active", "objects_total", "bytes", "active_bytes", "utilization"]
    caches = slab.tables["caches"].set_index("cache")[columns].head(top)
    display(caches.frame(labels=True, scale=True).rename_axis(index=None, columns="cache"))

# %% [markdown]
# ## Negative dentries
#
# A negative dentry remembers a missing name. A few save lookups; programs that look up ever new
# names leave millions. Reclaim can free unused ones, one by one.

# %%
if dentries := answer("dentries"):
    say(
        f"**{dentries.text('negative')}** of {dentries.text('dentries')} dentries are negative;"
        f" with external names they use **{dentries.text('negative_bytes')}**."
        f" {dentries.text('freeable_bytes')} of slab pages hold only unused negative ones."
        " The command of a finding can return more: it drops unused dentries of all kinds, with"
        " pages shared by both kinds, and external names."
    )
    if has_negative := bool(dentries.result.amount("negative")):
        directories = plots.directories(dentries)

# %% [markdown]
# The pattern of names is a hint at the program: the differing parts, such as digits, are replaced.

# %%
if dentries and has_negative:
    patterns = plots.name_patterns(dentries)

# %% [markdown]
# ## Per-memcg lists of `list_lru`
#
# Each mount has lists of dentries and inodes to reclaim, and one pair per memory cgroup. Before
# 5.18 they are allocated for all cgroup ids at once, and never shrink: mounts × cgroups × NUMA
# nodes.
# The chart projects the cost on this machine at each stage of the patch series.

# %%
if list_lru := answer("list-lru"):
    say(
        f"All structures use **{list_lru.text('structural_bytes')}**,"
        f" {list_lru.text('share_of_ram')} of RAM. Of these,"
        f" {list_lru.text('shrinker_map_bytes')} are shrinker maps, which the series does not"
        f" touch. The others need {list_lru.text('projected_arrays_bytes')} before the series, and"
        f" {list_lru.text('projected_xarray_bytes')} with all of it."
    )
    projection = plots.list_lru_projection(list_lru)

# %% [markdown]
# ## kcopyd
#
# Device-mapper snapshots copy a chunk before it is overwritten. Each copy in flight holds a job,
# pages and bios. Without a limit, a fast origin and a slow COW device queue copies until memory is
# exhausted.

# %%
if kcopyd := answer("kcopyd"):
    say(
        f"**{kcopyd.text('jobs')}** jobs of {kcopyd.text('clients')} clients hold"
        f" **{kcopyd.text('total_bytes')}**: {kcopyd.text('job_bytes')} are kcopyd_job slabs,"
        f" {kcopyd.text('page_bytes')} pages to copy, {kcopyd.text('bio_bytes')} bios."
    )
    if kcopyd.result.amount("jobs"):
        jobs = plots.kcopyd_jobs(kcopyd)

# %% [markdown]
# ## Dying memory cgroups
#
# A removed memory cgroup stays, *offline*, until the last charged page or object is gone. Most
# often files pin it: page cache, or files on tmpfs.

# %%
if memcgs := answer("memcgs"):
    say(
        f"**{memcgs.text('memcgs_offline')}** memory cgroups are offline, beside"
        f" {memcgs.text('memcgs_online')} online ones, and hold"
        f" **{memcgs.text('offline_bytes')}**."
    )
    if memcgs.result.amount("memcgs_offline"):
        pins = plots.dying_memcgs(memcgs)

# %% [markdown]
# ## Patches
#
# Missing fixes and features of this kernel, and their costs here. A cost is a figure of the
# analyses above; where it is missing, no analysis measures it.

# %%
if patches := answer("patches"):
    states = patches.tables["patches"]
    absent = states[states["state"].isin(["absent", "partially applied"])]
    costly = absent[absent["kind"] == "fix"].sort_values("cost_bytes", ascending=False)
    shown = costly.set_index("patch")[["history", "cost_bytes", "title"]].head(top)
    with pd.option_context("display.max_colwidth", None):
        display(shown.frame(labels=True, scale=True).rename_axis(index=None, columns="patch"))

# %% [markdown]
# ## Trust
#
# Each figure with a counter of the kernel is compared with it. A *gap* is unreadable data; the
# affected figures are lower bounds.

# %%
checks = [check for result in report.results.values() for check in result.checks]
gaps = [gap for result in report.results.values() for gap in result.gaps]
agreeing = sum(check.status.value == "agree" for check in checks)
differing = [check for check in checks if check.status.value == "differ"]
say(f"Checks: {agreeing} of {len(checks)} agree, {len(differing)} differ. Gaps: {len(gaps)}.")
if differing:
    fields = ["name", "ours", "counter", "source", "note"]
    rows = [[getattr(check, name) for name in fields] for check in differing]
    display(Frame(rows, columns=["check", "kcensus", "kernel", "counter", "note"]))
if gaps:
    fields = ["what", "reason", "count", "effect"]
    rows = [[getattr(gap, name) for name in fields] for gap in gaps]
    display(Frame(rows, columns=["what is missing", "why", "count", "effect"]))
