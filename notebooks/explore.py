# ---
# jupyter:
#   SPDX-License-Identifier: LGPL-2.1-or-later
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kcensus: {show_code: true}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Explore kernel objects
#
# Questions beyond the analyses: kernel objects as DataFrames to group, join and plot, and the way
# from a row to the object in the kernel.
#
# The question here is about dentries. Any other type works in the same way: `kcensus.objects`
# finds the slab cache, reads the named members from all of its pages in bulk, and leaves free
# objects out. A capsule, such as the sample, has only the memory for the analyses; a vmcore has all
# types.

# %% tags=["parameters"]
target = "sample"  # TARGET: a vmcore or a capsule
symbols: list[str] = []  # files and directories with debug info
top = 10  # rows of each table and chart

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from drgn.helpers.linux.fs import dentry_path
from IPython.display import Markdown, display

import kcensus
from kcensus import plots

kernel = kcensus.open_target(target, symbols)

# %% [markdown]
# ## Read
#
# One row per object, indexed by its address. Members are paths, as in C; `memcg=True` adds the
# memory cgroup charged for the object.

# %%
members = ["d_parent", "d_inode", "d_lockref.count"]
dentries = kcensus.objects(kernel, "struct dentry", members, memcg=True)
dentries.head(top)

# %% [markdown]
# `where=` filters while objects are read, so that a cache that is larger than the memory of this
# machine can be searched: dropped rows are never kept. A dentry without an inode is
# *negative*: it remembers a missing name.

# %%
negative = kcensus.objects(kernel, "struct dentry", "d_inode", where="d_inode == 0")
share = len(negative) / max(len(dentries), 1)
display(Markdown(f"{len(negative):,} of {len(dentries):,} dentries are negative ({share:.1%})."))

# %% [markdown]
# ## Group
#
# Pointers are numbers, so counting by directory is counting by `d_parent`. Paths are looked up for
# the few relevant ones, after grouping.

# %%
by_directory = dentries.groupby("d_parent").agg(
    dentries=("d_inode", "size"), negative=("d_inode", lambda inode: int((inode == 0).sum()))
)
largest = by_directory.nlargest(top, "negative")
largest.set_axis(pd.Index(kcensus.paths(kernel, largest.index), name="directory"))

# %% [markdown]
# ## Join
#
# A pointer in one kind of object, the address of another kind, joins the two. Here a dentry meets
# the dentry of its directory, to see other users of the directory: its refcount includes one
# reference by each child.

# %%
directories = by_directory.join(dentries[["d_lockref.count"]], how="inner")
directories["held"] = directories["d_lockref.count"] - directories["dentries"]
unused = directories[directories["held"] <= 0]
display(
    Markdown(
        f"{len(unused):,} of {len(directories):,} directories are held by nothing but their"
        f" children; {unused['negative'].sum():,} negative dentries are in them."
    )
)

# %% [markdown]
# The tables of analyses are DataFrames, too. Here is the state of each memory cgroup, beside the
# dentries charged to it; dentries of no cgroup are left out.

# %%
states = kcensus.slab(kernel).tables["memcgs"].set_index("memcg")[["state"]]
charged = dentries[dentries["memcg"] != ""]
by_memcg = charged.groupby("memcg").agg(
    dentries=("d_inode", "size"), negative=("d_inode", lambda inode: int((inode == 0).sum()))
)
by_memcg.join(states).nlargest(top, "dentries")

# %% [markdown]
# ## Plot
#
# Any column can be plotted. Most directories have few negative dentries, and a few hold most of the
# memory: both axes are logarithmic.

# %%
sizes = by_directory["negative"][by_directory["negative"] > 0].sort_values(ascending=False)
_, sizes_ax = plt.subplots(figsize=(8, 3.5), layout="constrained")
sizes_ax.loglog(np.arange(1, len(sizes) + 1), sizes, marker=".")
sizes_ax.set(title="Negative dentries by directory")
sizes_ax.set(xlabel="directories, the largest first", ylabel="negative dentries")
sizes_ax.grid(alpha=0.3)

# %% [markdown]
# `kcensus.plots` draws what the results of analyses show.

# %%
largest_ax = plots.directories(kcensus.dentries(kernel))

# %% [markdown]
# ## From a row to the object
#
# A row has the address, so `drgn` can take over: every member, every pointer to follow, and all of
# drgn's helpers. This is the first negative dentry, or the first dentry where none is negative.

# %%
row = (negative if len(negative) else dentries).iloc[0]
dentry = kcensus.as_object(kernel, row, "struct dentry")
dentry.d_lockref

# %% [markdown]
# Its name, the path of its directory in the file system, and the references to the directory:

# %%
parent = dentry.d_parent
dentry.d_name.name.string_(), dentry_path(parent), parent.d_lockref.count.value_()
