# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line of the lab."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import dumps, host, qemu, samples, scenario
from .debian import store
from .host import LabError, say

_DAY = 24 * 60 * 60


def _cases(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    every = store.kernels(every=True)
    if unknown := set(arguments.kernel or []) - set(every):
        raise LabError(f"unknown kernel {', '.join(unknown)} (choose from {', '.join(every)})")
    return [
        (kernel, name)
        for name in arguments.scenario or scenario.scenarios()
        for kernel in scenario.kernels_of(name)
        if not arguments.kernel or kernel in arguments.kernel
    ]


def _build(arguments: argparse.Namespace) -> None:
    cases = _cases(arguments)
    host.install_packages()
    # The longest first, so that no CPU idles at the end.
    cases.sort(key=lambda case: -scenario.load(case[1], case[0]).time_limit)
    loaded = [(kernel, scenario.load(name, kernel)) for kernel, name in cases]
    asked = [pair for pair in loaded if arguments.scenario or not pair[1].on_request]
    wanted = [(kernel, case.name) for kernel, case in asked if not case.live]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        try:
            fetches = [
                pool.submit(dumps.shared_kernel, kernel, refresh=arguments.refresh)
                for kernel in dict(asked)
            ]
            for fetch in fetches:
                fetch.result()
            builds = [pool.submit(dumps.build, kernel, name) for kernel, name in wanted]
            failures = [error for build in builds if (error := build.exception())]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            qemu.kill_all()
            raise
    if done := [build.result() for build in builds if not build.exception()]:
        _summary(done)
    for failure in failures:
        if not isinstance(failure, LabError):
            raise failure
        say(f"error: {failure}")
    if failures:
        raise LabError(f"{len(failures)} of {len(builds)} dumps could not be made.")


def _size(path: Path) -> str:
    # Sparse files: what they take on disk, not how far they reach.
    return f"{path.stat().st_blocks * 512 / (1 << 20):.0f} MiB"


def _summary(done: list[dumps.Dump]) -> None:
    rows = [("kernel", "scenario", "format", "on disk", "seconds")]
    rows += [
        (dump.release, dump.scenario, name, _size(path), f"{dump.seconds:.0f}")
        for dump in sorted(done, key=lambda dump: (dump.scenario, dump.path))
        for name, path in dump.formats.items()
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
    print(f"\nThe cache is {host.cache()}.")


def _list(arguments: argparse.Namespace) -> None:
    for kernel, name in _cases(arguments):
        case = scenario.load(name, kernel)
        missing = "on request" if case.on_request else "to be built"
        state = "cached" if dumps.cached(kernel, name) else missing
        if case.live:
            state = "live"
        print(f"{name:24} {kernel:14} {state}")


def _samples(_arguments: argparse.Namespace) -> None:
    host.install_packages()
    samples.make()


def _clean(_arguments: argparse.Namespace) -> None:
    used = dumps.in_use()
    for kind in ("kernels", "dumps"):
        for path in sorted((host.cache() / kind).glob("*")):
            # Another build may be filling it at this moment.
            busy = path.name.startswith(".") and path.stat().st_mtime > time.time() - _DAY
            if path.is_dir() and path not in used and not busy:
                say(f"removing {path.name}")
                shutil.rmtree(path)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m tests.lab", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Callable[[argparse.Namespace], None], text: str) -> None:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(function=function)
        if name in ("clean", "samples"):
            return
        sub.add_argument("--kernel", metavar="K", action="append", help="only this kernel")
        sub.add_argument("--scenario", metavar="S", action="append", help="only this scenario")
        if name == "build":
            sub.add_argument("--jobs", type=int, default=2, help="guests at once (%(default)s)")
            sub.add_argument("--refresh", action="store_true", help="look for newer kernels")

    command("build", _build, "Make the dumps that are not in the cache yet.")
    command("samples", _samples, "Record the bundled samples again.")
    command("list", _list, "Show which dumps there are to be had.")
    command("clean", _clean, "Remove from the cache what no scenario uses any more.")
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        _main()
    except (LabError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
