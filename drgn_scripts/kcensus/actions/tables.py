# SPDX-License-Identifier: LGPL-2.1-or-later
"""``--help-tables``: the tables of a command, and their columns."""

from __future__ import annotations

from collections.abc import Sequence

import click

from kcensus.results.tables import Column, Show, TableSpec


def help_tables(specs: Sequence[TableSpec], formatter: click.HelpFormatter) -> str:
    """Return what a row of each table is, and its columns."""
    for spec in specs:
        with formatter.section(spec.name):
            formatter.write_text(f"{spec.title}. Row: {spec.help}")
            formatter.write_paragraph()
            formatter.write_dl([(name, _help(name, each)) for name, each in spec.columns.items()])
    formatter.write_paragraph()
    formatter.write_text(
        "Columns marked (data) are in --json, --csv and --parquet, not on screen."
        if specs
        else "This analysis does not describe its tables."
    )
    return formatter.getvalue().strip("\n")


def _help(name: str, column: Column) -> str:
    heading = "" if column.label in ("", name.replace("_", " ")) else f'"{column.label}": '
    unit = f" [{column.unit.value}]" if column.unit.value not in ("", "text", "count") else ""
    return f"{heading}{column.help}{unit}{' (data)' if column.show is Show.DATA else ''}".strip()
