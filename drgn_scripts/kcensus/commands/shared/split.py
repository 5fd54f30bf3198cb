# SPDX-License-Identifier: LGPL-2.1-or-later
"""``--scheduler``: split one target over the workers of a Dask cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import click

from kcensus.commands.shared.errors import complain
from kcensus.commands.shared.options import Reading
from kcensus.fleets import require_fleet
from kcensus.human import human_bytes

if TYPE_CHECKING:
    from kcensus.engine.workers import Each
    from kcensus.fleets.split import Order
    from kcensus.fleets.split.cluster import Cluster
    from kcensus.fleets.split.leader import Divider
    from kcensus.sources import Target

Dividing: TypeAlias = "Callable[[Target], Each | None]"
"""Takes the target that was opened; None if this process does all."""
_BELOW = "KCENSUS_SPLIT_FROM"
"""Environment variable with another least size in bytes, for tests and measurements."""
_LEAST_BYTES = 4 << 30
"""Least size of an uncompressed dump that workers read faster: to begin takes them 1.5 seconds, in
which one process reads 1.6 GiB of slabs. A page compressed with zlib takes five times as long, and
an eighth of the file."""
_BYTES_PER_PROCESS = 512 << 20
_LEAST_PROCESSES = 3
"""Of workers, for an uncompressed dump: this process has half of the work, and two others send
their half no faster than it would read it."""


@contextmanager
def dividing(spec: str | None, reading: Reading) -> Iterator[Dividing]:
    """Let the workers of ``--scheduler`` begin to open a target, until the end of the context.

    :raises FleetError: the scheduler does not answer, or no worker can read the target
    """
    if reading.scheduler is None:
        yield lambda _: None
        return
    if reading.jobs or reading.cpu_share or reading.max_memory:
        raise click.UsageError(
            "--scheduler leaves the work to its workers: omit --jobs, --cpu-share and --max-memory."
        )
    require_fleet()
    size, least, processes = _needs(spec)
    if size < least:
        reason = (
            f"a dump of {human_bytes(size)} is read as fast by one process; splitting one like "
            f"this pays from {human_bytes(least)}"
            if size
            else "only the file of a vmcore can be split"
        )
        _refuse(reason)
        yield lambda _: None
        return
    from kcensus.fleets.split.cluster import Cluster
    from kcensus.fleets.split.leader import Divider

    most = max(size * _LEAST_BYTES // (least or _LEAST_BYTES) // _BYTES_PER_PROCESS, 2)
    cluster = Cluster(reading.scheduler, _order(str(spec), reading), most, processes)
    divider = Divider(cluster)
    try:
        yield lambda target: _divide(target, str(spec), cluster, divider, processes)
        _say(divider)
    finally:
        cluster.close()


def _needs(spec: str | None) -> tuple[int, int, int]:
    """Return the bytes of a target's file, 0 if it is none; bytes and processes of a split."""
    if spec is None or not os.path.isfile(spec):
        return 0, 1, 1
    from kcensus.sources.formats import kdump

    try:
        with open(spec, "rb") as file:
            is_compressed = file.read(16).startswith((kdump.MAGIC, kdump.FLAT_MAGIC))
            size = os.fstat(file.fileno()).st_size
    except OSError:  # opening the target says why
        return 0, 1, 1
    if _BELOW in os.environ:
        return size, int(os.environ[_BELOW]), 1
    return (size, _LEAST_BYTES >> 3, 1) if is_compressed else (size, _LEAST_BYTES, _LEAST_PROCESSES)


def _order(spec: str, reading: Reading) -> Order:
    from kcensus.fleets.split import Order
    from kcensus.sources.model import SYMBOLS

    places = os.environ.get(SYMBOLS, "").split(os.pathsep)
    return Order(
        os.urandom(8).hex(),
        os.path.abspath(spec),
        tuple(os.path.abspath(path) for path in reading.symbols),
        os.pathsep.join(os.path.abspath(place) for place in places if place),
        reading.allow_truncated,
        None if reading.vmcoreinfo is None else os.path.abspath(reading.vmcoreinfo),
        reading.debuginfod,
    )


def _divide(
    target: Target, spec: str, cluster: Cluster, divider: Divider, processes: int
) -> Each | None:
    if not target.shareable:
        divider.reason = _refuse(f"a {target.kind} cannot be split")
        return None
    files = (os.path.abspath(spec), *map(os.path.abspath, target.paths))
    able = cluster.threads
    if able >= processes:
        for sentence in cluster.opened(files):
            complain(sentence)
        able = cluster.processes
    if able < processes:
        divider.reason = _refuse(
            f"{processes} threads of workers read an uncompressed dump faster than one process, "
            f"and there are {able}"
        )
        return None
    return divider.each


def _refuse(reason: str) -> str:
    complain(f"the workers of --scheduler are not used: {reason}")
    return reason


def _say(divider: Divider) -> None:
    """Say what the workers did not do."""
    if divider.redone:
        total = divider.redone + divider.divided
        complain(
            f"this process did {divider.redone:,} of {total:,} tasks for the workers: "
            f"{divider.reason}"
        )
    elif not divider.divided and not divider.reason:
        complain(
            f"the workers of --scheduler were not used: the longest pass over memory has "
            f"{divider.longest} tasks, and a split pays from {divider.least}"
        )
