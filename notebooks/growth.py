# ---
# jupyter:
#   SPDX-License-Identifier: LGPL-2.1-or-later
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Growth
#
# What grows on a host, how fast, and when it fills memory, with the uncertainty of that.
#
# `kcensus record TARGET --store STORE` appends a few kilobytes per record: of dumps, of saved
# reports, or every few minutes of a running kernel. The sample is a guest that was idle in one
# boot, and looked up names that do not exist in the next.

# %% tags=["parameters"]
store = "sample-series"  # STORE: a directory that `kcensus record` wrote
host = ""  # name of a host; the one with most records where empty
since = ""  # time of the first record to use, such as 2026-01-31
top = 8  # rows of each table
charts = 4  # series that are drawn

# %%
from typing import Any

import pandas as pd
from IPython.display import Markdown, display

import kcensus
from kcensus import plots

everything = kcensus.history(store, since=since or None)
host = host or everything["host"].value_counts().index[0]
history = everything[everything["host"] == host]
trend = kcensus.trend(history)

# %% [markdown]
# ## What grows, and until when
#
# A rate is the slope of the latest regime: since the last boot, and since the series last bent. Its
# interval holds the true slope in 95 % of cases, with the noise and the autocorrelation of the
# points accounted for. "No trend" is an answer: the interval then includes 0, or so many series
# were tried that one looks like this by chance.

# %%
display(
    Markdown(
        f"Records: {trend.text('records')}. Boots: {trend.text('boots')}. Longest series:"
        f" {trend.text('span_seconds')}. Of the series, **{trend.text('growing')}** grow,"
        f" {trend.text('shrinking')} shrink, and {trend.text('no_trend')} have no trend."
    )
)
trend

# %% [markdown]
# ## The series
#
# Points are records, the line is the trend, and the band is its interval. Where points leave the
# band, the rate changed.

# %%
growing = trend.tables["growing"]
summary = growing[growing["subject"].isna() | (growing["subject"] == "")]


def points(row: Any) -> pd.DataFrame:
    """Return the records of a series in the regime of its trend."""
    analysis, *part, metric = row.metric.split(".")
    values = (analysis, part[0] if part else "summary", metric, row.subject or "")
    # The times of a trend are exact within a boot, by uptime; those of records are in seconds.
    ends = pd.Timestamp(row.since).floor("s"), pd.Timestamp(row.until).ceil("s")
    series: pd.DataFrame = history[history["time"].between(*ends)]
    for column, value in zip(("analysis", "part", "metric", "subject"), values, strict=True):
        series = series[series[column] == value]
    return series


for row in summary.head(charts).itertuples():
    series = points(row)
    days = (series["time"] - pd.Timestamp(row.since)).dt.total_seconds() / 86400
    last = (pd.Timestamp(row.until) - pd.Timestamp(row.since)).total_seconds() / 86400
    line = row.after_value + row.rate_per_day * (days - last)
    # Lines of the least and the largest rate meet in the middle of the regime; where the series
    # bends, the rate is that of its end.
    away = days - (last if row.bends else days.median())
    low, high = (
        line + (rate - row.rate_per_day) * away
        for rate in (row.rate_per_day_low, row.rate_per_day_high)
    )
    name = f"{row.metric} {row.subject or ''}".strip()
    limit = None if pd.isna(row.limit_value) else row.limit_value
    chart = plots.growth(
        series["time"], series["value"], line, low, high, unit=row.unit, label=name, limit=limit
    )

# %% [markdown]
# ## Which cache, which cgroup, which directory
#
# Totals say that memory grows; the rows of tables say where. These are the parts whose memory grows
# fastest.

# %%
parts = {
    "slab.caches.": "Slab caches",
    "slab.memcgs.": "Memory cgroups",
    "dentries.directories.": "Directories",
}
for prefix, title in parts.items():
    rows = growing[growing["metric"].str.startswith(prefix)]
    display(Markdown(f"**{title}** whose series grow: {rows['subject'].nunique():,}"))
    if len(rows):
        memory = rows[rows["unit"] == "bytes"].sort_values("rate_per_day", ascending=False)
        fastest = memory.set_index("subject")[["metric", "rate", "interval"]].head(top)
        shown = fastest.frame(labels=True, scale=True)
        display(shown.rename_axis(index=None, columns="subject"))

# %% [markdown]
# ## Time to exhaustion
#
# The limit is reached at this rate *if nothing changes*; other users of memory make it sooner. Read
# the interval rather than the expected time.

# %%
limits = growing[growing["limit_seconds"].notna()]
display(Markdown(f"Series that run into a limit: {len(limits):,}"))
shown = limits.set_index("metric")[["subject", "after", "rate", "limit_in", "limit_interval"]]
shown.head(top).frame(labels=True, scale=True).rename_axis(index=None, columns="metric")

# %% [markdown]
# ## Boots
#
# Trends do not cross a reboot: counters start again there.

# %%
trend.tables["boots"].frame(labels=True, scale=True)
