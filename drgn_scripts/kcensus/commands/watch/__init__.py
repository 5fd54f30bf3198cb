# SPDX-License-Identifier: LGPL-2.1-or-later
"""What changes in a running kernel? On screen, as JSON lines or as metrics."""

from __future__ import annotations

import re

import click

from kcensus.commands.shared import options, values
from kcensus.watch import MAX_ROWS

_LOOPBACK = "127.0.0.1"


def address(text: str) -> tuple[str, int]:
    """Return the host and port of ``127.0.0.1:9750``, ``[::1]:9750`` or ``9750``."""
    host, _, port = text.strip().rpartition(":")
    is_port = re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 1 << 16
    is_host = re.fullmatch(r"[^\s:\[\]]*|\[[0-9a-fA-F:]+\]", host)
    if not (is_port and is_host):
        raise click.BadParameter(f"{text!r} is not an address, such as 127.0.0.1:9750 or 9750")
    return host.strip("[]") or _LOOPBACK, int(port)


_HELP = """Show the figures of a running kernel that change, every few seconds, until Ctrl-C.

A sample reads the kernel's own counters, in milliseconds; counters that take more than 0.5 % of one
CPU are read less often, and shown with their last values. A census runs the analyses:
with the first sample, and then as often as all censuses together take less than 1 % of one CPU on
average; --census N takes one every N samples at any cost, and --census 0 none. ANALYSIS is one or
more names, separated by commas. TARGET is a QEMU guest (qmp:PATH), or the running kernel.

Each figure has its value, its rate since the previous value, the change since the start, and up to
60 values as bars. If standard output is not a terminal, each sample is a line per analysis with the
figures that changed; with --metrics or --listen, there are no such lines. --json prints one JSON
object per line; `kcensus --json-schema` describes it as watch_sample.

--metrics replaces FILE with each sample, for node_exporter's textfile collector: its name must end
in .prom. When watch is stopped, it removes FILE, since the figures are no longer current; after
--count samples, FILE stays. --listen answers Prometheus with the last sample and never reads the
kernel for that. Without HOST, it listens on 127.0.0.1. --rows adds the largest rows of each table,
by directory, cache or cgroup: each new name is a new series for Prometheus, and anyone who reads
the metrics sees the names. docs/monitoring/ has a dashboard, alert rules and the names of the
metrics."""


COMMAND = options.command(
    "watch",
    "kcensus.commands.watch.loop:run",
    [
        options.words("words", "[ANALYSIS,…] [TARGET]", values.analyses_and_targets),
        options.option(
            "every --interval",
            "INTERVAL",
            "Time from one sample to the next: 2s, 30s, 5m.",
            type=options.interval,
            default="10s",
            show_default=True,
        ),
        options.option("--count", "N", "Stop after N samples.", type=click.IntRange(1)),
        options.option(
            "--census",
            "N",
            "Run the analyses every N samples; 0: never. Default: as 1 % of a CPU allows.",
            type=click.IntRange(0),
        ),
        options.flag("as_json --json", "Print a JSON object per line and sample."),
        options.files("--metrics", "FILE", "Write metrics for node_exporter's textfile collector."),
        options.option(
            "--listen",
            "HOST:PORT",
            "Serve metrics for Prometheus, on all addresses only if HOST says so (0.0.0.0).",
            type=address,
        ),
        options.option(
            "--rows",
            "N",
            f"Export the N largest rows of each table, too; at most {MAX_ROWS}.",
            type=click.IntRange(0, MAX_ROWS),
            default=0,
            show_default=True,
        ),
        *options.reading(),
    ],
    _HELP,
    (
        ("sudo kcensus watch", "the running kernel, all analyses"),
        ("sudo kcensus watch dentries,memcgs --interval 2s", "counters of two of them"),
        ("kcensus watch qmp:/run/guest.qmp --json | jq .gauges", "a QEMU guest, for a script"),
        (
            "sudo kcensus watch --metrics /var/lib/prometheus/node-exporter/kcensus.prom",
            "for node_exporter's textfile collector, where Debian has it",
        ),
        ("sudo kcensus watch --listen 127.0.0.1:9750", "for a Prometheus on this host"),
    ),
)
