# ---
# jupyter:
#   SPDX-License-Identifier: LGPL-2.1-or-later
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Patch validation
#
# The effect of patches on two dumps of one workload, beside the published effect.
#
# A pair of dumps counts if memory, CPUs, uptime and workload are alike. The reduction on another
# machine is another one: compare its direction, and the prediction of the model, not its size.

# %% tags=["parameters"]
before = "sample"  # BEFORE: a vmcore or a capsule of the kernel without the patches
after = "sample-after"  # AFTER: one of the kernel with them, under the same workload
symbols: list[str] = []  # files and directories with debug info, of both kernels
patches: list[str] = ["list-lru-memory", "dm-snapshot-cow-semaphore"]  # ids of patches

# %%
import click
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import Markdown, display
from matplotlib.axes import Axes
from matplotlib.container import BarContainer

import kcensus
from kcensus import patch_ids, plots
from kcensus.plots import COLORS

if unknown := [patch for patch in patches if patch not in patch_ids()]:
    raise click.UsageError(f"patches: {unknown[0]!r} is not a patch (`kcensus patches` lists them)")
kernels = [kcensus.open_target(name, symbols) for name in (before, after)]
reports = [kcensus.report(kernel) for kernel in kernels]


def both(name: str) -> tuple[kcensus.Result, kcensus.Result] | None:
    """Return the results of an analysis on both; where one has no figures, say why."""
    reasons = [
        report.results[name].result.nothing if name in report.results else report.failed[name]
        for report in reports
    ]
    for side, reason in zip(("before", "after"), reasons, strict=True):
        if reason:
            display(Markdown(f"*`{name}` has no figures of the kernel {side}:*"))
            display({"text/plain": reason}, raw=True)
    return None if any(reasons) else (reports[0].results[name], reports[1].results[name])


# %% [markdown]
# ## Published figures
#
# The catalogue has the figures of the postings of patches. These are the runs measured without a
# patch and with it; `kcensus patches show ID` names the postings. Time is the time of the
# same work.

# %%
figures = reports[0].results["patches"].tables["figures"]
exact = figures[figures["to"].isna() & figures["moment"].isin(["before", "after"])]
moments = [exact[exact["moment"] == moment] for moment in ("before", "after")]
published = moments[0].merge(moments[1], on=["patch", "run", "base_unit"], suffixes=("", "_after"))
published["left"] = published["base_value_after"] / published["base_value"]
published = published.sort_values("left").reset_index(drop=True)


def digits(value: float) -> str:
    """Return a number with three digits, or all digits before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def compared(run: "pd.Series[float]") -> str:
    """Return both figures of a run, in the unit of the first."""
    after = run["base_value_after"] * run["value"] / run["base_value"]
    return f"{digits(run['value'])} → {digits(after)} {run['unit']}"


def label(ax: Axes, bars: BarContainer, texts: list[str]) -> None:
    """Write a text to the right of each bar, and of the line at 100 %."""
    for bar, text in zip(bars, texts, strict=True):
        end = max(100, bar.get_width()), bar.get_y() + bar.get_height() / 2
        ax.annotate(text, end, (4, 0), textcoords="offset points", va="center", fontsize="small")


_, ax = plt.subplots(figsize=(8, 0.36 * len(published) + 1), layout="constrained")
names = published["patch"] + ", " + published["run"]
bars = ax.barh(names, published["left"] * 100, height=0.68, color=COLORS[0])
ax.spines[["top", "right"]].set_visible(False)
label(ax, bars, [compared(run) for _, run in published.iterrows()])
ax.axvline(100, color="gray", linewidth=0.8)
# A longer bar is a worse figure with the patch.
ax.set(
    title="Published: left with the patch",
    xlim=(0, 40 + max(100, 100 * published["left"].max())),
    xlabel="left with the patch [% of before]",
)
ax.invert_yaxis()

# %% [markdown]
# Other figures were published as ranges:

# %%
ranges = figures[figures["to"].notna()]
spans = [f"{row.value:,.10g} to {row.to:,.10g} {row.unit}" for row in ranges.itertuples()]
with pd.option_context("display.max_colwidth", None):
    display(pd.DataFrame({"what": [*ranges["what"]], "published": spans}, [*ranges["patch"]]))

# %% [markdown]
# The `list_lru` series was measured stage by stage: memory in use after creating the same cgroups
# and mounts. Linux 5.18 and later have the last stage.

# %%
stages = figures[figures["run"] == "mounts"].sort_values("base_value", ascending=False)
stages = stages[~((stages["patch"] == "list-lru-memory") & (stages["moment"] == "after"))]
stages["stage"] = stages["patch"].where(stages["moment"] == "after", "without the series")
steps = " → ".join(f"{value:,.0f}" for value in stages["value"])
display(Markdown(f"**{steps} {stages['unit'].iloc[0]}**"))
stages["memory in use"] = [f"{row.value:,.0f} {row.unit}" for row in stages.itertuples()]
pd.DataFrame(stages.set_index("stage")[["memory in use"]]).rename_axis(None)

# %% [markdown]
# ## Results of this pair
#
# For each patch: its state on both kernels, the prediction of the model from the kernel without it,
# and the verdict. An unlike pair is refused; the sentence has the reason.

# %%
verdicts = {}
for patch in patches:
    try:
        verdicts[patch] = kcensus.validate(patch, *kernels)
    except (LookupError, ValueError, kcensus.AnalysisError) as error:
        display(Markdown("*This pair cannot judge a patch:*"))
        display({"text/plain": f"{patch}: {error}"}, raw=True)

columns = {
    "verdict": "verdict",
    "before": "before",
    "after": "after",
    "predicted": "predicted after",
}
columns |= {"change": "reduction", "claimed_change": "published reduction"}
texts = {patch: map(verdict.text, columns) for patch, verdict in verdicts.items()}
if verdicts:
    display(pd.DataFrame.from_dict(texts, orient="index", columns=list(columns.values())))

# %%
if verdicts:
    summaries = pd.DataFrame({patch: verdict.summary for patch, verdict in verdicts.items()})
    numbers = summaries.drop("verdict").T.apply(pd.to_numeric)
    left = pd.DataFrame(
        {
            "published, on another machine": 1 - numbers["claimed_change"],
            "predicted from the kernel before": numbers["predicted"] / numbers["before"],
            "measured on the kernel after": 1 - numbers["change"],
        }
    )
    _, ax = plt.subplots(figsize=(8, len(left) + 1), layout="constrained")
    (left * 100).plot.barh(ax=ax, width=0.7, edgecolor="white", color=list(COLORS[:3]))
    ax.spines[["top", "right"]].set_visible(False)
    for container, hatch in zip(ax.containers, ("", "////", "----"), strict=True):
        assert isinstance(container, BarContainer)
        for patch in container:
            patch.set_hatch(hatch)
        widths = [bar.get_width() for bar in container]
        label(ax, container, [f"{width:.0f} %" if width >= 0 else "" for width in widths])
    ax.axvline(100, color="gray", linewidth=0.8)
    longest = np.nanmax(left.to_numpy(float))
    ax.set(
        title="Published, predicted and measured: left with the patch",
        xlim=(0, 15 + max(100, 100 * longest)),
        xlabel="left with the patch [% of before]",
    )
    ax.invert_yaxis()
    ax.legend(fontsize="small")

# %% [markdown]
# The conditions of this pair:

# %%
if verdicts:
    tables = {patch: verdict.tables["conditions"] for patch, verdict in verdicts.items()}
    conditions = pd.concat(tables).droplevel(1).drop(columns="pair").fillna("")
    display(conditions.frame(labels=True, scale=True))

# %% [markdown]
# ## Slab utilization
#
# With the patch `slab-objcg-controller`, cgroups share slabs. On a kernel without it, whose memory
# cgroups have slab caches of their own, a band shows the published utilization of such machines.

# %%
if slabs := both("slab"):
    for side, slab in zip(("before", "after"), slabs, strict=True):
        total = slab.text("slab_bytes")
        display(Markdown(f"**{side}**: {slab.text('utilization')} of {total} are in use."))
        utilization = plots.slab_utilization(slab)
        plt.show()

# %% [markdown]
# ## kcopyd jobs
#
# `snapshot_cow_threshold` limits the copies in flight of each snapshot, and so the jobs that wait
# for the COW device.

# %%
if kcopyds := both("kcopyd"):
    jobs = plots.before_after(*kcopyds, figures=("job_bytes", "page_bytes", "bio_bytes"))

# %% [markdown]
# ## `list_lru`
#
# The first bar is the measured kernel before. The others are projected from it: the cost on this
# machine at each stage of the series.

# %%
if list_lrus := both("list-lru"):
    old, new = (side.text("structural_bytes") for side in list_lrus)
    maps = list_lrus[1].text("shrinker_map_bytes")
    display(
        Markdown(
            f"All structures use {old} before and {new} after; {maps} of the latter are shrinker"
            " maps, which the series does not touch, and which are in no bar."
        )
    )
    projection = plots.list_lru_projection(list_lrus[0])

# %% [markdown]
# ## Other differences
#
# Two kernels of different versions differ in more than these patches. The largest growth comes
# first.

# %%
kcensus.diff(*reports)
