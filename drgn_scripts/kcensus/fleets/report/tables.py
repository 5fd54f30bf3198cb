# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tables of the reports on a fleet."""

from __future__ import annotations

from dataclasses import replace

from kcensus.results.tables import (
    ALWAYS,
    BYTES,
    COUNT,
    DATA,
    RATIO,
    SECONDS,
    TEXT,
    WIDE,
    Column,
    TableSpec,
)

_HOST = Column(TEXT, "", ALWAYS, "Name of the host; its boot if it has none.")
_FIGURE = Column(TEXT, "key", DATA, "Analysis and key of its summary.", "figure")
_WORDS = Column(TEXT, "figure", ALWAYS, "The amount in words.")
_DUMP = Column(TEXT, "dump", DATA, "Path of its latest dump.", "target")
_OPEN = Column(TEXT, "open", WIDE, "Command that opens its latest dump; empty if it has odd bytes.")
FAILURES = TableSpec("failures", "Targets without a report", {
    "targets": Column(COUNT, "", ALWAYS, "Number of targets."),
    "step": Column(TEXT, "", ALWAYS, "Step that failed."),
    "error": Column(TEXT, "reason", ALWAYS, "Reason of the first one."),
    "example": Column(TEXT, "", WIDE, "Path of the first one."),
}, "Targets that failed in one step for one reason.", rows="failures")  # fmt: skip
FAILED = TableSpec("failed", "Paths without a report", {
    "target": Column(TEXT, "", ALWAYS, "Its path."),
    "step": Column(TEXT, "", ALWAYS, "Step that failed."),
    "release": Column(TEXT, "kernel", WIDE, "Release of the kernel, if known."),
    "build_id": Column(TEXT, "build ID", DATA, "Build ID of the vmlinux, if known."),
    "error": Column(TEXT, "reason", ALWAYS, "Reason."),
}, "A target that failed, by step and path.", rows="failed")  # fmt: skip
INCOMPLETE = TableSpec("incomplete", "Reports that lack analyses", {
    "host": replace(_HOST, get="machine"),
    "target": Column(TEXT, "dump", DATA, "Its path."),
    "command": Column(TEXT, "open", WIDE, "Command that opens it; empty if it has odd bytes."),
    "error": Column(TEXT, "failed analyses", ALWAYS, "Analyses that failed, each with the reason."),
}, "A target whose report lacks analyses, by path.", rows="incomplete")  # fmt: skip
CAUSES = TableSpec("causes", "Causes", {
    "cause": Column(TEXT, "id", ALWAYS, "Id, for `kcensus fleet show`.", "id"),
    "severity": Column(TEXT, "", ALWAYS, "Of the gravest dump.", "severity_name"),
    "hosts": Column(COUNT, "", ALWAYS, "Number of hosts with it."),
    "dumps": Column(COUNT, "", ALWAYS, "Number of dumps with it."),
    "title": Column(TEXT, "cause", ALWAYS, "What most of its dumps have (and others lack)."),
    "first": Column(TEXT, "since", ALWAYS, "Time of the first dump with it, UTC."),
    "last": Column(TEXT, "until", WIDE, "Time of the last dump with it, UTC."),
    "kernels": Column(TEXT, "", WIDE, "Most frequent kernels."),
    "example": Column(TEXT, "for example", DATA, "Finding of the representative."),
    "representative": Column(TEXT, "open first", WIDE, "The dump that is most like all others."),
    "command": Column(TEXT, "", DATA, "Command that opens it; empty without one."),
    "replaced": Column(TEXT, "", DATA, "yes: the path has another dump now, or none."),
    "outliers": Column(COUNT, "differ", WIDE, "Dumps with further features, or without some."),
    "differs": Column(TEXT, "differences", DATA, "What outliers have further, or lack."),
    "features": Column(TEXT, "most have", DATA, "What at least half of its dumps have."),
}, "Dumps with the same findings, deadlock, panic or stacks.", rows="causes")  # fmt: skip
PATCHES = TableSpec("missing_patches", "Missing fixes", {
    "patch": Column(TEXT, "", ALWAYS, "Id, for `kcensus patches show`."),
    "release": Column(TEXT, "kernel", ALWAYS, "Release of the kernel."),
    "hosts": Column(COUNT, "", ALWAYS, "Number of hosts that lack it."),
    "concerned": Column(COUNT, "with a cost", ALWAYS, "Hosts with a cost in their latest dump."),
    "cost_bytes": Column(BYTES, "memory", ALWAYS,
        "Memory that it costs all hosts; several fixes may save the same."),
    "stalled": Column(COUNT, "stalled tasks", ALWAYS, "Tasks that it stalls on all hosts."),
    "cost_seconds": Column(SECONDS, "longest delay", WIDE, "Longest delay of I/O on a host.",
        unknown=(0,)),
    "title": Column(TEXT, "", WIDE, "Title of the patch."),
}, "A fix that a kernel lacks; of each host, the latest dump counts.",
    rows="missing_patches")  # fmt: skip
OUTLIERS = TableSpec("outliers", "Hosts far above their peers", {
    "host": _HOST,
    "figure": _FIGURE,
    "words": _WORDS,
    "value": Column(BYTES, "", ALWAYS, "In the latest dump."),
    "share": Column(RATIO, "of its RAM", ALWAYS, "Share of the host's RAM."),
    "peers": Column(RATIO, "peers", ALWAYS, "Median share of hosts with the same kernel."),
    "release": Column(TEXT, "kernel", WIDE, "Release of the kernel."),
    "target": _DUMP,
    "command": _OPEN,
}, "A figure that is a far larger share of RAM than on hosts with the same kernel.",
    rows="outliers")  # fmt: skip
GROWTH = TableSpec("growth", "Growth", {
    "host": _HOST,
    "figure": _FIGURE,
    "words": _WORDS,
    "per_day": Column(BYTES, "per day", ALWAYS, "Growth in a day."),
    "bytes": Column(BYTES, "grown", ALWAYS, "Growth from the first to the last dump of the boot."),
    "value": Column(BYTES, "now", ALWAYS, "In the last dump."),
    "full_seconds": Column(SECONDS, "fills RAM in", ALWAYS,
        "Time until the figure is as large as RAM, at this rate."),
    "span_seconds": Column(SECONDS, "in", WIDE, "Time between the first and the last dump."),
    "dumps": Column(COUNT, "", WIDE, "Number of dumps of this boot."),
    "target": _DUMP,
    "command": _OPEN,
}, "A figure of a host that grew in its latest boot.", rows="growth")  # fmt: skip
ALL_DUMPS = TableSpec("dumps", "Dumps", {
    "host": replace(_HOST, get="machine"),
    "time": Column(TEXT, "", ALWAYS, "Time of the dump, UTC."),
    "cause": Column(TEXT, "", ALWAYS, "Id of its cause; empty if healthy, or of a rare kind."),
    "severity": Column(TEXT, "", ALWAYS, "Of its gravest finding; empty without one."),
    "state": Column(TEXT, "", ALWAYS, "done, or incomplete (an analysis failed)."),
    "target": Column(TEXT, "dump", ALWAYS, "Its path."),
    "replaced": Column(TEXT, "", WIDE, "yes: the path has another dump now, or none."),
}, "A dump with a report, the gravest first.", rows="every_dump")  # fmt: skip
TABLES = (CAUSES, ALL_DUMPS, FAILURES, FAILED, INCOMPLETE, PATCHES, OUTLIERS, GROWTH)
DUMPS = TableSpec("dumps", "Dumps of this cause", {
    "host": Column(TEXT, "", ALWAYS, "Name of the host; its boot if it has none.", "machine"),
    "time": Column(TEXT, "", ALWAYS, "Time of the dump, UTC."),
    "more": Column(TEXT, "also has", WIDE, "Features that most others lack."),
    "lacks": Column(TEXT, "", WIDE, "Features that most others have."),
    "target": Column(TEXT, "dump", DATA, "Its path."),
    "command": Column(TEXT, "open", ALWAYS, "Command that opens it; empty without one."),
    "replaced": Column(TEXT, "", WIDE, "yes: the path has another dump now, or none."),
    "severity": Column(TEXT, "", WIDE, "Of its gravest finding."),
    "release": Column(TEXT, "kernel", WIDE, "Release of the kernel."),
}, "A dump; the representative first, then those that differ, then the latest.",
    rows="dumps")  # fmt: skip
TABLES_OF_A_CAUSE = (DUMPS,)
