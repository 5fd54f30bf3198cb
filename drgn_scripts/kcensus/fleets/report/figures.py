# SPDX-License-Identifier: LGPL-2.1-or-later
"""Hosts far from their peers, growth, missing fixes, and reasons of failures."""

from __future__ import annotations

import numpy as np
import pandas as pd

from kcensus.catalogue import load
from kcensus.fleets.causes import general
from kcensus.fleets.report.data import Fleet
from kcensus.results import Unit
from kcensus.store.ceilings import noun_of
from kcensus.text import bounded

_MIN_PEERS = 5
"""Hosts of one kernel from which on one of them can be an outlier."""
_FAR = 6.0
"""Robust standard deviations from the median of the peers."""
_SD_OF_MAD = 1.4826
"""Standard deviation of normal values with a median absolute deviation of 1."""
_LEAST_SD = 0.05
"""Least standard deviation, as a share of the median."""
_MIN_TIMES = 2.0
_MIN_SHARE = 0.005
"""Least share of RAM of an excess or of growth."""
_PER_HOST = 2
"""Most figures of a host: several count the same memory."""
_DAY = 86400.0
_MAX_ERROR = 300
_TYPES = "types"
"""Step in which the debug info of a kernel was missing."""
_TARGET = "TARGET"
_START = f"{_TARGET}: "
_FIGURE = ["analysis", "metric"]


def outliers(fleet: Fleet) -> pd.DataFrame:
    """Return figures of hosts far above those of hosts with the same kernel, as shares of RAM.

    Of each host, the latest dump counts.
    """
    latest = fleet.latest.drop_duplicates("record").set_index("record")
    rows = fleet.amounts(latest.index.tolist())
    rows = rows[rows["ram_bytes"] > 0]
    rows = rows.assign(
        release=rows["record"].map(latest["release"]), share=rows["value"] / rows["ram_bytes"]
    )
    peers = rows.groupby([*_FIGURE, "release"], observed=True)["share"]
    median = peers.transform("median")
    excess = rows["share"] - median
    keys = [rows[key] for key in (*_FIGURE, "release")]
    spread = excess.abs().groupby(keys, observed=True).transform("median")
    is_out = (
        (peers.transform("size") >= _MIN_PEERS)
        & (excess > _FAR * np.maximum(_SD_OF_MAD * spread, _LEAST_SD * median))
        & (rows["share"] >= _MIN_TIMES * median)
        & (excess >= _MIN_SHARE)
    )
    found = rows.assign(peers=median, excess_bytes=excess * rows["ram_bytes"])[is_out]
    return _named(found, fleet, "excess_bytes")


def growth(fleet: Fleet) -> pd.DataFrame:
    """Return figures that grew between the first and the last dump of a host's latest boot.

    The dump in the middle has to be between them, so that what comes and goes is left out.
    """
    dumps = fleet.reports[fleet.reports["boot"] != ""].drop_duplicates("record")
    dumps = dumps.sort_values("time", kind="stable")
    dumps = dumps[dumps["boot"] == dumps.groupby("machine")["boot"].transform("last")]
    order = dumps.groupby("machine").cumcount()
    number = dumps.groupby("machine")["time"].transform("size")
    some = dumps[number > 1]
    picks = {"first": order == 0, "middle": order == number // 2, "last": order == number - 1}
    chosen = {name: some[is_it[number > 1]] for name, is_it in picks.items()}
    known = fleet.amounts(pd.concat(chosen.values())["record"].unique().tolist())
    host = dumps.set_index("record")["machine"]
    own = {
        name: known[known["record"].isin(each["record"])]
        .assign(host=lambda rows: rows["record"].map(host))
        .set_index(["host", *_FIGURE])
        for name, each in chosen.items()
    }
    found = own["last"].join(
        [own[name]["value"].rename(name) for name in ("first", "middle")], how="inner"
    ).reset_index()  # fmt: skip
    spans = some.groupby("machine")["time"].agg(["min", "max", "size"])
    seconds = (spans["max"] - spans["min"]).dt.total_seconds()
    found = found.assign(
        span_seconds=found["host"].map(seconds).astype(float),
        dumps=found["host"].map(spans["size"]),
        bytes=found["value"] - found["first"],
    )
    is_steady = found["middle"].between(found["first"], found["value"])
    is_large = found["bytes"] >= _MIN_SHARE * found["ram_bytes"]
    found = found[is_steady & is_large & (found["span_seconds"] > 0)]
    per_second = found["bytes"] / found["span_seconds"]
    left = (found["ram_bytes"] - found["value"]).clip(lower=0)
    found = found.assign(per_day=per_second * _DAY, full_seconds=left / per_second)
    return _named(found.drop(columns="host"), fleet, "per_day")


def _named(rows: pd.DataFrame, fleet: Fleet, size: str) -> pd.DataFrame:
    """Return the largest rows of each host, with its name and dump."""
    known = fleet.reports.drop_duplicates("record").set_index("record")
    rows = rows.assign(
        host=rows["record"].map(known["machine"]).astype(str),
        target=rows["record"].map(known["target"]).astype(str),
        command=rows["record"].map(known["command"]).astype(str),
        figure=rows["analysis"].astype(str) + "." + rows["metric"].astype(str),
    )
    names = {each: _words(*each.split(".", 1)) for each in rows["figure"].unique()}
    rows["words"] = rows["figure"].map(names).astype(str)
    rows = rows.sort_values([size, "host", "figure"], ascending=[False, True, True])
    return rows[rows.groupby("host").cumcount() < _PER_HOST].reset_index(drop=True)


def _words(analysis: str, metric: str) -> str:
    """Return the name of an amount of memory: ``reclaimable memory of slab``."""
    noun = noun_of(analysis, metric, Unit.BYTES.value)
    return noun if analysis in noun else f"{noun} of {analysis}"


def missing_patches(fleet: Fleet) -> pd.DataFrame:
    """Return the fixes that kernels lack, by patch and kernel, with their costs over the hosts.

    Of each host, the latest dump counts.
    """
    latest = fleet.latest.set_index("attempt")["machine"]
    rows = fleet.patches(latest.index.tolist())
    stalled = fleet.stalled().drop_duplicates(["attempt", "patch"])
    rows = rows.merge(stalled, "left", ["attempt", "patch"]).fillna({"tasks": 0})
    # A host where the patch takes memory takes nothing off the cost for others.
    rows["cost_bytes"] = rows["cost_bytes"].clip(lower=0)
    costs = rows[["cost_bytes", "cost_seconds", "tasks"]].fillna(0.0) > 0
    found = (
        rows.assign(concerned=costs.any(axis=1))
        .groupby(["patch", "release"])
        .agg(
            hosts=("attempt", "nunique"), concerned=("concerned", "sum"),
            cost_bytes=("cost_bytes", "sum"), stalled=("tasks", "sum"),
            cost_seconds=("cost_seconds", "max"),
        )
        .reset_index()
    )  # fmt: skip
    titles = {name: patch.title for name, patch in load().patches.items()}
    found = found.astype({"concerned": int, "stalled": int})
    found["title"] = found["patch"].map(titles).fillna("")
    keys = ["cost_bytes", "stalled", "cost_seconds", "hosts"]
    return found.sort_values(
        [*keys, "patch", "release"], ascending=[False] * len(keys) + [True] * 2, ignore_index=True
    )


def reasons(failed: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of :func:`unread_targets` by step and reason, with an example.

    The most frequent is first. Types that are missing are one reason per kernel: each needs debug
    info of its own.
    """
    errors = failed["error"]
    # Offsets and sizes in a reason are those of one target.
    failed = failed.assign(reason=errors, general=[*map(general, errors)])
    kernel = failed["build_id"].where(failed["build_id"] != "", failed["release"])
    failed["kernel"] = kernel.where(failed["step"] == _TYPES, "")
    grouped = failed.groupby(["step", "general", "kernel"], sort=True)
    found = grouped.agg(
        targets=("target", "size"), error=("reason", "first"), example=("target", "first")
    )
    return found.sort_values("targets", ascending=False, kind="stable").reset_index()


def unread_targets(failed: pd.DataFrame) -> pd.DataFrame:
    """Return targets by step and path; their errors do not name them."""
    errors = [
        bounded(
            (error.replace(target, _TARGET) if target else error).removeprefix(_START), _MAX_ERROR
        )
        for error, target in zip(failed["error"], failed["target"], strict=True)
    ]
    return failed.assign(error=errors).sort_values(["step", "target"], ignore_index=True)
