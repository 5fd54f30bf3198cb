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
host = ""  # name of a host; the one that is full first where empty
since = ""  # time of the first record to use, such as 2026-01-31
top = 8  # rows of each table
charts = 4  # forecasts that are drawn

# %%
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
every = kcensus.trend(store, since=since or None).tables["growths"]
urgent = every[every["expected"].str.match(r"\d|now")] if len(every) else every
host = host or (urgent if len(urgent) else records.reset_index())["host"].iloc[0]
history = everything[everything["host"] == host]
history.attrs = everything.attrs
trend = kcensus.trend(store, host=host, since=since or None)
growing = trend.tables["growing"]
# Neither what the latest record lacks nor what repeats another series.
growing = growing[growing["is_current"].astype(bool) & (growing["same_as"].fillna("") == "")]
last = history["time"].max()
subject = f"{shown(host)}, records until {last:%Y-%m-%d %H:%M} UTC"
display({"text/plain": subject}, raw=True, metadata={"kcensus": {"subject": subject}})
if provenance := history.attrs.get("provenance"):
    display(Markdown(f"**These records are {shown(provenance)}.**"))

if len(records) > 1:
    first = urgent.drop_duplicates("host").set_index("host")
    dates = {
        each: f"{row['expected']}, earliest {row['earliest']}" for each, row in first.iterrows()
    }
    others = [
        f"{shown(each)} ({dates[each]})" if each in dates else shown(each)
        for each in [*dates, *records.index.difference([*dates])]
        if each != host
    ]
    text = f"Other hosts, with the expected day on which one is full: {', '.join(others)}"
    display({"text/plain": text}, raw=True)

# %% [markdown]
# ## What grows, and until when
#
# A rate counts since the last boot, and since the rate last changed. "No
# trend" is an answer: the interval of the rate then includes 0, or so many series were tried that
# one looks like this by chance.

# %%
CONFIDENCE = 0.95  # of the intervals of trends
ENDS = ["earliest", "expected", "latest"]
display(
    Markdown(
        f"Records: {trend.text('records')}. Boots: {trend.text('boots')}. Longest series:"
        f" {trend.text('span_seconds')}. Of the series, **{trend.text('growing')}** grow,"
        f" {trend.text('shrinking')} shrink, and {trend.text('no_trend')} have no trend."
        f" Intervals hold the true slope in {CONFIDENCE:.0%} of cases, with the noise and the"
        " autocorrelation of the points accounted for."
    )
)
days = trend.tables["growths"].set_index("growth")[["rate", "used", *ENDS, "parts", "part_of"]]
if len(days):
    display(days.frame(labels=True).rename_axis(index=None, columns="growth"))
    text = "Rows share bytes: do not add them. Kernel memory together counts each byte once"
    display(Markdown(f"*{text}. Act before the earliest day.*"))
if growing.empty and trend.text("too_few_points") != "0":
    text = "Record at least 8 times in one boot: `kcensus record --every 5m` does on a live host"
    display(Markdown(f"*{text}.*"))
trend

# %%
uses = trend.tables["memory"].set_index("use")[["bytes", "change", "rate", "interval", "state"]]
display(Markdown("## What RAM holds"))
if len(uses):
    display(uses.frame(labels=True, scale=True).rename_axis(index=None, columns="use"))
    text = "By the kernel's counters. Memory in use is RAM without free memory, page cache and"
    display(Markdown(f"*{text} reclaimable slabs, which the kernel can give to others.*"))
else:
    text = "These records lack RAM by use: forecasts are of the analysed kernel memory alone, as if"
    display(Markdown(f"*{text} nothing else used RAM.*"))

# %% [markdown]
# ## Forecasts
#
# Points are records; no line crosses a reboot. The trend goes on as a dashed line to the limit. The
# band holds 95 % of new records if nothing changes, and reaches the limit at the earliest and the
# latest time. Before a week of records, it is wider: a cycle of a week looks like growth. Without
# an honest forecast, the chart says why.

# %%
titles = plots.forecasts(trend)
for number in range(min(charts, len(titles))):
    plots.forecast(trend, number)

# %%
PARTS = {
    "slab.caches.bytes": "Slab caches",
    "slab.memcgs.bytes": "Memory cgroups",
    "dentries.directories.negative_bytes": "Directories",
}
rising = pd.concat([trend.tables["growing"], trend.tables["steady"]])
rising = rising[rising["is_current"].astype(bool)]
rising = rising[rising["rate_per_day"].fillna(0).astype(float) > 0]
rising = rising.sort_values("rate_per_day", ascending=False)
if len(growing):
    display(
        Markdown(
            "## Which cache, which cgroup, which directory\n\nTotals say that memory grows; the"
            " rows of tables say where. These are the parts with the highest rates. Where the"
            " interval of a rate includes 0, it has no trend."
        )
    )
    for metric, title in PARTS.items():
        rows = rising[rising["metric"] == metric]
        if len(rows):
            count = (rows["state"] == "growing").sum()
            display(Markdown(f"**{title}** whose memory grows: {count:,}"))
            columns = ["rate", "interval", "state", "before", "after", "limit_in"]
            fastest = rows.set_index("subject")[columns].head(top)
            shown_rows = fastest.frame(labels=True, scale=True)
            display(shown_rows.rename_axis(index=None, columns="subject"))

# %% [markdown]
# ## Boots
#
# Trends do not cross a reboot: counters start again there.

# %%
trend.tables["boots"].frame(labels=True, scale=True)
