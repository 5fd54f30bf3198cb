# SPDX-License-Identifier: LGPL-2.1-or-later
"""A Result as a directory of files, whatever their format: a summary, and one for each table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kcensus.outputs import prepare, renewing
from kcensus.render.plain import directories
from kcensus.reports import Report
from kcensus.results import Result
from kcensus.results.tables import Table


def write_directory(
    subject: Result | Report,
    directory: Path,
    suffix: str,
    write_summary: Callable[[Path, Result], object],
    write_table: Callable[[Path, Table, Result], object],
) -> list[Path]:
    """Write a result to ``directory`` and return the files written, in order.

    A report has a directory with all findings, and in it one for each result. Files of earlier runs
    that the result does not have are removed: a table of another machine would pass for its own.

    :param suffix: of the files, with a dot
    """
    parts = list(directories(subject, directory))
    names = [
        [where / f"{name}{suffix}" for name in ("summary", *tables)] for where, _, tables in parts
    ]
    written = [path for paths in names for path in paths]
    prepare(directory)
    with renewing(directory, [str(path.relative_to(directory)) for path in written]):
        for (where, result, tables), (summary, *paths) in zip(parts, names, strict=True):
            prepare(where)
            write_summary(summary, result)
            for path, table in zip(paths, tables.values(), strict=True):
                write_table(path, table, result)
    return written
