# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reports on many targets, on an existing Dask cluster or this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from kcensus.api.frames import Frame
from kcensus.fleets import FleetError, require_fleet
from kcensus.progress import Progress, SilentProgress

if TYPE_CHECKING:
    import distributed

    from kcensus.fleets.executors import Executor


def fleet(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    store: str | os.PathLike[str],
    client: distributed.Client | None = None,
    workers: int | None = None,
    symbols: Sequence[str | os.PathLike[str]] = (),
    analyses: Sequence[str] = (),
    debuginfod: bool = False,
    timeout: float = 600.0,
    max_memory: int = 4 << 30,
    retries: int = 2,
    progress: Progress | None = None,
) -> Frame:
    """Report on many targets, and keep the results in a store, as ``kcensus fleet run`` does.

    What this version of kcensus has read into the store is not read again. Targets that cannot be
    read have rows that say why.

    >>> import kcensus
    >>> kcensus.fleet([], store="fleet")
    Traceback (most recent call last):
    kcensus.fleets.FleetError: no target is named: pass paths of vmcores, capsules or directories

    :param paths: files, directories, patterns, names of bundled capsules
    :param store: a directory, made if it does not exist, or a URL such as ``s3://bucket/fleet``
    :param client: of a Dask cluster, whose workers have the same paths; None for this machine
    :param workers: processes on this machine, by default one per CPU
    :param symbols: files and directories with debug info, for all targets
    :param analyses: names of analyses; all if empty
    :param debuginfod: whether debug info may be downloaded
    :param timeout: most seconds for a target
    :param max_memory: most bytes of private memory for a target
    :param retries: attempts at a target after its worker died
    :param progress: shows how many targets are done
    :return: the present row of the table ``targets`` for each of these targets, in their order;
        ``attrs`` has ``store``, and by column ``help``
    :raises FleetError: no target is named; workers are missing, or have another kcensus; or another
        process writes to the store
    :raises TargetError: one of ``symbols`` cannot be read, or has no debug info of any kernel
    :raises OutputError: the store cannot be written; a later run goes on
    :raises ValueError: there is no such analysis
    """
    require_fleet()
    from kcensus.analyses import analyses as known
    from kcensus.fleets import run, tables, targets
    from kcensus.fleets import store as stored

    if unknown := [name for name in analyses if name not in known()]:
        raise ValueError(f"unknown analysis {unknown[0]!r} (one of {', '.join(known())})")
    several = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    found = targets.find(os.fspath(path) for path in several)
    named = [*found.targets, *found.unreadable]
    if not named:
        raise FleetError("no target is named: pass paths of vmcores, capsules or directories")
    places = targets.check_symbols(symbols, is_remote=client is not None)
    width = min(workers or len(os.sched_getaffinity(0)), len(named))
    with (
        _executor(client, width) as executor,
        (progress or SilentProgress()).step("reports", len(named)) as step,
    ):
        run.fleet(
            found.targets,
            store,
            executor,
            unreadable=found.unreadable,
            roots=found.roots,
            limits=run.Limits(timeout, max_memory, retries),
            symbols=places,
            analyses=analyses,
            debuginfod=debuginfod,
            step=step,
        )
    rows = stored.read(store, "targets").to_pandas()
    order = {name: number for number, name in enumerate(map(tables.stored, named))}
    rows = rows[rows["target"].isin(order) & rows.pop("present")]
    rows = rows.sort_values("target", key=lambda targets: targets.map(order), ignore_index=True)
    frame = Frame(rows)
    columns = tables.COLUMNS["targets"]
    frame.attrs = {
        "store": os.fspath(store),
        "help": {name: help for name, (_, help) in columns.items()},
    }
    return frame


def _executor(client: distributed.Client | None, width: int) -> AbstractContextManager[Executor]:
    from kcensus.fleets.executors import Cluster, Threads

    if client is None:
        return Threads(width)
    if client.asynchronous:
        raise TypeError("client is asynchronous: pass a Client made with asynchronous=False")
    return nullcontext(Cluster(client))
