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
# reports, or every few minutes of a running kernel.

# %% tags=["parameters"]
store = "sample-series"  # STORE: a directory that `kcensus record` wrote
host = ""  # name of a host; the one with most records where empty
since = ""  # time of the first record to use, such as 2026-01-31
top = 8  # rows of each table
charts = 4  # series that are drawn

# %%
from typing import Any

import numpy as np
import pandas as pd
from IPython.display import Markdown, display

import kcensus
from kcensus import StoreError, plots, shown

try:
    pd.Timestamp(since or 0)
except ValueError:
    raise StoreError(f"since: {since!r} is not a time, such as 2026-01-31") from None
everything = kcensus.history(store, since=since or None)
records = everything.groupby("host")["record"].nunique().sort_values(ascending=False)
if records.empty:
    raise StoreError(f"{store!r} has no records since {since}" if since else f"{store!r} is empty")
if host and host not in records:
    known = ", ".join(map(shown, records.index))
    raise StoreError(f"host: {host!r} is not in {store!r} (it has {known})")
host = host or records.index[0]
history = everything[everything["host"] == host]
trend = kcensus.trend(history)
growing = trend.tables["growing"]
# Neither what the latest record lacks nor what repeats another series.
growing = growing[growing["is_current"].astype(bool) & (growing["same_as"].fillna("") == "")]
is_summary = growing["subject"].fillna("") == ""
last = history["time"].max()
subject = f"{shown(host)}, records until {last:%Y-%m-%d %H:%M} UTC"
display({"text/plain": subject}, raw=True, metadata={"kcensus": {"subject": subject}})
if store == "sample-series":
    text = "a guest, idle in one boot, with lookups of missing names in the next"
    display(Markdown(f"The sample is {text}."))

# %% [markdown]
# ## What grows, and until when
#
# A rate is the slope of the latest regime: since the last boot, and since the series last bent. "No
# trend" is an answer: the interval of the rate then includes 0, or so many series were tried that
# one looks like this by chance.

# %%
CONFIDENCE = 0.95  # of the intervals of trends
limits = growing[is_summary & growing["limit_seconds"].notna()].sort_values("limit_seconds")
limits = limits.drop_duplicates("limit")
display(
    Markdown(
        f"Records: {trend.text('records')}. Boots: {trend.text('boots')}. Longest series:"
        f" {trend.text('span_seconds')}. Of the series, **{trend.text('growing')}** grow,"
        f" {trend.text('shrinking')} shrink, and {trend.text('no_trend')} have no trend."
        f" Intervals hold the true slope in {CONFIDENCE:.0%} of cases, with the noise and the"
        " autocorrelation of the points accounted for."
    )
)
for row in limits.itertuples():
    when = pd.Timestamp(row.until) + pd.Timedelta(seconds=row.limit_seconds)
    display(
        Markdown(
            f"Limit **{row.limit}**: reached at **{when:%Y-%m-%d %H:%M} UTC** at this rate"
            f" ({row.metric}: {row.rate}; {row.limit_interval} after the last record), *if nothing"
            " changes*; other users of memory make it sooner."
        )
    )
if growing.empty and trend.text("too_few_points") != "0":
    text = "Record at least 8 times in one boot: `kcensus record --every 5m` does on a live host"
    display(Markdown(f"*{text}.*"))
trend

# %%
if len(growing):
    display(
        Markdown(
            "## The series\n\nThe largest series of each analysis. Points are the records of the"
            f" boot, the line is the trend, and the band holds {CONFIDENCE:.0%} of the points of"
            " its regime. Points before it were left out because the rate was another one."
        )
    )
starts, ends = (pd.to_datetime(trend.tables["boots"][key], utc=True) for key in ("first", "last"))


def points(row: Any) -> pd.DataFrame:
    """Return the records of a series in the boot of its trend."""
    analysis, *part, metric = row.metric.split(".")
    values = (analysis, part[0] if part else "summary", metric, row.subject or "")
    boot = starts[starts <= pd.Timestamp(row.until)].idxmax()
    series: pd.DataFrame = history[history["time"].between(starts[boot], ends[boot])]
    for column, value in zip(("analysis", "part", "metric", "subject"), values, strict=True):
        series = series[series[column] == value]
    return series


analyses = growing["metric"].map(lambda name: name.partition(".")[0]).astype(object)
drawn = growing[is_summary & ~analyses.where(is_summary).duplicated()]
for row in drawn.head(charts).itertuples():
    series = points(row)
    days = (series["time"] - pd.Timestamp(row.since)).dt.total_seconds() / 86400
    # The times of a trend are exact within a boot, by uptime; those of records are in seconds.
    until = pd.Timestamp(row.until).ceil("s")
    is_fitted = series["time"].between(pd.Timestamp(row.since).floor("s"), until)
    days = days.where(is_fitted)
    last = (pd.Timestamp(row.until) - pd.Timestamp(row.since)).total_seconds() / 86400
    line = row.after_value + row.rate_per_day * (days - last)
    # Lines of the least and the largest rate meet in the middle of the regime.
    away = days - days.median()
    slopes = [
        (rate - row.rate_per_day) * away for rate in (row.rate_per_day_low, row.rate_per_day_high)
    ]
    noise = (series["value"] - line).abs().quantile(CONFIDENCE)
    low, high = line + np.minimum(*slopes) - noise, line + np.maximum(*slopes) + noise
    chart = plots.growth(
        series["time"], series["value"], line, low, high, unit=row.unit,
        label=f"{row.metric}: {row.rate}",
        limit=None if pd.isna(row.limit_value) else row.limit_value,
        band=f"{CONFIDENCE:.0%} of points",
    )  # fmt: skip

# %%
if len(growing):
    display(
        Markdown(
            "## Which cache, which cgroup, which directory\n\nTotals say that memory grows; the"
            " rows of tables say where. These are the parts whose memory grows fastest."
        )
    )
parts = {
    "slab.caches.bytes": "Slab caches",
    "slab.memcgs.bytes": "Memory cgroups",
    "dentries.directories.negative_bytes": "Directories",
}
for metric, title in parts.items():
    rows = growing[growing["metric"] == metric].sort_values("rate_per_day", ascending=False)
    if len(rows):
        display(Markdown(f"**{title}** whose memory grows: {len(rows):,}"))
        fastest = rows.set_index("subject")[["rate", "interval", "limit_in"]].head(top)
        shown = fastest.frame(labels=True, scale=True)
        display(shown.rename_axis(index=None, columns="subject"))

# %% [markdown]
# ## Boots
#
# Trends do not cross a reboot: counters start again there.

# %%
trend.tables["boots"].frame(labels=True, scale=True)
