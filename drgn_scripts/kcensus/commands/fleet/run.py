# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command ``kcensus fleet run``."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from kcensus.commands import Exit
from kcensus.commands.shared import options
from kcensus.commands.shared.errors import complain
from kcensus.commands.shared.target import chosen_analyses, progress_bars
from kcensus.fleets import FleetError, require_fleet
from kcensus.human import counted, listed
from kcensus.limits.memory import MIN_BYTES
from kcensus.text import bounded, printable

if TYPE_CHECKING:
    from kcensus.fleets.executors import Executor
    from kcensus.fleets.targets import Found

_HELP = """Report on many targets, and keep the results in a store.

TARGETS are vmcores, capsules, files of --json, directories with them, and patterns; - reads more of
them from standard input, one per line. Each target is read in a process of its own with limits of
time and memory, so that a damaged dump stops no other. A target that cannot be read becomes a row
that says why. Equal files are read once.

The store can be used again: what this version of kcensus has read is not read again, and a run that
was stopped goes on. It takes about 35 KB per target; `kcensus trend STORE` reads it, too.

By default the work is done on this machine, by as many processes as CPUs. --scheduler gives it to
the workers of a Dask cluster, which need this version of kcensus, and the targets and debug info at
the same paths; only this process writes to the store.

-s names debug info of any of the kernels. A dump without debug info is read with a type pack, or
with its own BTF; without any of them, its row has what its headers tell."""

_MAX_REASON = 300
_FEW = 16
"""Targets per process up to which no cluster is started, which takes 2.5 s; a capsule takes 1 s."""


def _run(
    targets: tuple[str, ...],
    store: str,
    workers: int | None,
    seconds: int,
    retries: int,
    analyses: str | None,
    performance_report: Path | None,
    reading: options.Reading,
) -> Exit:
    require_fleet()
    if performance_report and not find_spec("bokeh"):
        raise FleetError("--performance-report needs bokeh: pip install bokeh")
    from kcensus.fleets.executors import Threads
    from kcensus.fleets.run import Limits, fleet
    from kcensus.fleets.targets import check_symbols, find

    if workers and reading.scheduler:
        raise click.UsageError("--workers is for this machine; --scheduler has workers of its own.")
    wanted = [each.name for each in chosen_analyses(analyses)] if analyses else []
    found = find(targets, _lines() if "-" in targets else ())
    if not found.targets and not found.unreadable:
        raise click.UsageError(_nothing(targets, found))
    total = len(found.targets) + len(found.unreadable)
    width = workers or len(os.sched_getaffinity(0))
    # --workers asks for this machine, whatever the environment has.
    known = None if workers else os.environ.get("DASK_SCHEDULER_ADDRESS")
    address = reading.scheduler or known
    symbols = check_symbols(reading.symbols, is_remote=bool(address))
    is_small = not address and not performance_report and total <= _FEW * width
    with (
        _resumable(),
        Threads(min(width, total))
        if is_small
        else _cluster(address, width, measured=bool(performance_report)) as executor,
        _measured(performance_report),
        progress_bars(reading.no_progress, with_rate=True) as progress,
        progress.step("reports", total) as step,
    ):
        tally = fleet(
            found.targets,
            store,
            executor,
            unreadable=found.unreadable,
            roots=found.roots,
            limits=Limits(seconds, reading.max_memory or Limits.memory, retries),
            symbols=symbols,
            analyses=wanted,
            debuginfod=reading.debuginfod,
            step=step,
        )
    states = ", ".join(f"{number:,} {state}" for state, number in tally.states.most_common())
    words = {"failed": "without a report", "incomplete": "incomplete"}
    before = [f"{tally.known[key]:,} {each}" for key, each in words.items() if tally.known[key]]
    if before:
        states += f" (of the known ones {', '.join(before)})"
    click.echo(f"{counted(total, 'target')} in {tally.seconds:.1f} s: {states}")
    for path, why in tally.reasons.items():
        reason = why.removeprefix(f"{printable(path)}: ")  # of each analysis, if all failed
        complain(f"{path}: {bounded(reason, _MAX_REASON)}")
    if found.others:
        complain(f"left out in directories: {_left_out(found)}")
    complain(f"the causes: `kcensus fleet report {quote(store)}`")
    return Exit.INCOMPLETE if tally.states["failed"] or tally.states["incomplete"] else Exit.DONE


def _lines() -> Iterable[str]:
    """Return the lines of the standard input, in which names of files may have any bytes."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    return sys.stdin or ()


def _left_out(found: Found) -> str:
    """Return how many files of directories were left out, and the first ones."""
    named = [f"{printable(path)}: {why}" for path, why in found.examples.items()]
    named += [""] * (found.others - len(named))
    return f"{counted(found.others, 'other file')} ({listed(named, len(found.examples), '; ')})"


def _nothing(words: Sequence[str], found: Found) -> str:
    """Return why there is no target."""
    if not words:
        return (
            "TARGETS are missing: give vmcores, capsules, directories with them, or - for a list."
        )
    named = [printable(each) for each in words if each != "-"]
    if not named:
        return "- names no target: standard input has no line with a path."
    lists = " and standard input" if "-" in words else ""
    left_out = f"; left out: {_left_out(found)}" if found.others else ""
    return f"no vmcore, capsule or document in {listed(named, 3)}{lists}{left_out}."


@contextmanager
def _resumable() -> Iterator[None]:
    """Say on Ctrl-C how to go on; what was read until then is in the store."""
    try:
        yield
    except KeyboardInterrupt:
        complain("the store keeps what was read; the same command goes on")
        raise


@contextmanager
def _cluster(address: str | None, width: int, *, measured: bool) -> Iterator[Executor]:
    """Yield a Dask cluster: that of a scheduler, or one on this machine.

    :param measured: whether Dask measures itself, for its page
    :raises FleetError: it cannot be reached, or its workers are unusable
    """
    import dask

    from kcensus.fleets import clients
    from kcensus.fleets.executors import Cluster

    clients.silence()
    with dask.config.set({} if measured else clients.LEAN):
        local = nullcontext() if address else clients.local_cluster(width)
        with local as own, clients.client(own or address) as client:
            if find_spec("bokeh"):
                complain(f"dashboard of the cluster: {client.dashboard_link}")
            yield Cluster(client)


@contextmanager
def _measured(path: Path | None) -> Iterator[None]:
    if path is None:
        yield
        return
    from distributed import performance_report

    with performance_report(filename=str(path)):
        yield


RUN = options.command(
    "run",
    _run,
    [
        options.words("targets", "TARGETS..."),
        options.option(
            "--store", "DIR", "The store, created if missing; or a URL: s3://bucket/fleet.",
            type=options.PLACE, required=True,
        ),
        options.option(
            "--scheduler", "ADDRESS",
            "Scheduler of a Dask cluster, such as tcp://host:8786. Default:"
            " DASK_SCHEDULER_ADDRESS, or this machine.",
        ),
        options.option(
            "--workers", "N",
            "Processes on this machine, also if DASK_SCHEDULER_ADDRESS is set. Default: one per"
            " CPU.",
            type=click.IntRange(1),
        ),
        options.option(
            "seconds --timeout", "INTERVAL", "Most time for a target: 30s, 10m.",
            type=options.interval, default="10m", show_default=True,
        ),
        options.option(
            "--max-memory", "SIZE", "Most private memory for a target. Default: 4G.",
            type=options.size(MIN_BYTES, f"{MIN_BYTES >> 20}M, such as 512M or 2G"),
        ),
        options.option(
            "--retries", "N", "Further attempts after a worker died.", type=click.IntRange(0, 10),
            default=2, show_default=True,
        ),
        options.symbols(),
        options.debuginfod(),
        options.analyses(),
        options.files("--performance-report", "FILE", "Write Dask's page about the run."),
        *options.running(),
    ],
    _HELP,
    (
        ("kcensus fleet run /var/crash --store fleet", "all dumps below a directory"),
        ("kcensus fleet run '/srv/cases/**/vmcore' --store fleet --timeout 5m", "a pattern"),
        ("find /srv -name vmcore | kcensus fleet run - --store fleet", "a list"),
        ("kcensus fleet run - --store fleet --scheduler tcp://head:8786 <list", "a Dask cluster"),
        ("kcensus fleet report fleet", "what they suffer from"),
    ),
)  # fmt: skip
