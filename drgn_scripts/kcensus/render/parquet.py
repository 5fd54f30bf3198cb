# SPDX-License-Identifier: LGPL-2.1-or-later
"""A Result as a directory of Parquet files, for DataFrames on many machines.

``summary.parquet`` is one row with the identity of the result and a column per figure, so that the
rows of many machines can be stacked. The metadata of a field has its unit and label, the metadata
of a file the identity and the machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kcensus.outputs import replacing
from kcensus.render.directory import write_directory
from kcensus.render.plain import Plain, label, origin, plain, plain_column
from kcensus.reports import Report
from kcensus.results import Result, Unit
from kcensus.results.tables import Column, Table

if TYPE_CHECKING:
    import pandas as pd

_FRACTIONAL = (Unit.RATIO, Unit.SECONDS)


def _array(values: list[Plain], unit: Unit) -> Any:
    """Return an Arrow array of the narrowest type for ``values`` without loss.

    Without values the unit decides: an empty column of names is text.
    """
    import pyarrow as pa

    present = [value for value in values if value is not None]
    if any(isinstance(value, str) for value in present) or (not present and unit is Unit.TEXT):
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    if not present:
        return pa.array(values, pa.float64() if unit in _FRACTIONAL else pa.int64())
    if all(type(value) is int for value in present):
        # Kernel addresses and inode numbers fill 64 bits.
        wide = unit is Unit.ADDRESS or max(map(int, present)) >= 1 << 63
        return pa.array(values, pa.uint64() if wide else pa.int64())
    if len({type(value) for value in present}) > 1:  # figures of findings, each in its own unit
        return pa.array([None if value is None else float(value) for value in values])
    return pa.array(values)


def _series(series: pd.Series[Any], unit: Unit) -> Any:
    import pyarrow as pa

    if series.dtype.kind in "iub" and not series.hasnans:
        return pa.array(series.to_numpy())
    return _array(plain_column(series), unit)


def _write(
    path: Path, arrays: Mapping[str, Any], columns: Mapping[str, Column], result: Result
) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    fields = [
        pa.field(
            name,
            array.type,
            metadata={"unit": column.unit.value, "label": label(name, column.label)},
        )
        for (name, array), column in zip(arrays.items(), columns.values(), strict=True)
    ]
    facts = origin(result).items()
    metadata = {f"kcensus.{key}": str(value) for key, value in facts if value is not None}
    schema = pa.schema(fields, metadata)
    with replacing(path) as part:
        parquet.write_table(pa.Table.from_arrays(list(arrays.values()), schema=schema), part)


def _write_summary(path: Path, result: Result) -> None:
    arrays = {key: _array([value], Unit.TEXT) for key, value in origin(result).items()}
    columns = {key: Column(Unit.TEXT) for key in arrays}
    for key, figure in result.summary.items():
        arrays[key] = _array([plain(figure.value)], figure.unit)
        columns[key] = Column(figure.unit, figure.label)
    _write(path, arrays, columns, result)


def _write_table(path: Path, table: Table, result: Result) -> None:
    arrays = {key: _series(table.frame[key], each.unit) for key, each in table.columns.items()}
    _write(path, arrays, dict(table.columns), result)


def write_parquet(subject: Result | Report, directory: Path) -> list[Path]:
    """Write a result to ``directory`` as of :func:`write_directory`, and return the files."""
    return write_directory(subject, directory, ".parquet", _write_summary, _write_table)
