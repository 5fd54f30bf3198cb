# SPDX-License-Identifier: LGPL-2.1-or-later
"""Merge files of a day into blocks: a file per record would be slow to read.

A block is sorted by analysis, part, metric, subject and time, so that a reader of one metric skips
most of it. A merge writes the new content of a day beside it and exchanges both directories in one
step: readers see all records once, before and after, and so does a reader after a crash.
"""

from __future__ import annotations

import ctypes
import enum
import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from kcensus.store.layout import ORDER, SCHEMA, STAGING

_MAX_SINGLES = 64
"""Files of single records in a day before they are merged."""
_MAX_BLOCK = 512
"""Records of a block: to sort 512 of 1,500 rows each takes 400 MB."""
_ROW_GROUP = 1 << 12
_BLOCK = re.compile(r"block-(\d+)-[0-9a-f]+\.parquet")
_TEXTS = [field.name for field in SCHEMA if pa.types.is_string(field.type)]
_CODED = pa.schema(
    [
        field.with_type(pa.dictionary(pa.int32(), pa.string())) if field.name in _TEXTS else field
        for field in SCHEMA
    ],
    SCHEMA.metadata,
)
"""The schema with a code for each text, which takes less memory."""
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2

_libc = ctypes.CDLL(None, use_errno=True)


class Extent(enum.Enum):
    """How much of a day to merge."""

    RECENT = "recent"
    """Single records once there are many, and blocks that are not larger than what is merged."""
    WHOLE = "whole"
    """Everything."""


def is_data(name: str) -> bool:
    """Return whether a file holds records."""
    return name.endswith(".parquet") and not name.startswith((".", "_"))


def blocks(day: Path) -> list[Path]:
    """Return the files of a day that hold merged records."""
    return sorted(path for path in _files(day) if _BLOCK.fullmatch(path.name))


def singles(day: Path) -> list[Path]:
    """Return the files of a day that hold one record each."""
    return sorted(path for path in _files(day) if not _BLOCK.fullmatch(path.name))


def _files(day: Path) -> list[Path]:
    if not day.is_dir():
        return []
    with os.scandir(day) as entries:
        return [day / each.name for each in entries if is_data(each.name) and each.is_file()]


def _size(path: Path) -> int:
    """Return the number of records in a file, from its name."""
    match = _BLOCK.fullmatch(path.name)
    return int(match[1]) if match else 1


def compact(day: Path, extent: Extent) -> bool:
    """Merge files of a day, where that pays; the lock of its host must be held.

    :return: whether any were merged. Nothing is lost if that fails, as on a full disk, and the next
        writer tries again
    """
    try:
        merged = _chosen(_files(day), extent)
        if len(merged) < 2:
            return False
        return _replace(day, merged)
    except (OSError, pa.ArrowException):
        return False


def _chosen(files: Sequence[Path], extent: Extent) -> list[Path]:
    """Return the files to merge: small ones first, so that each record is merged few times."""
    files = sorted(files, key=lambda path: (_size(path), path.name))
    singles = sum(_size(path) == 1 for path in files)
    if extent is Extent.RECENT and singles < _MAX_SINGLES:
        return []
    chosen: list[Path] = []
    total = 0
    for path in files:
        size = _size(path)
        grows_fast = extent is Extent.WHOLE or size <= max(total, 1)
        if not grows_fast or total + size > _MAX_BLOCK:
            break
        chosen.append(path)
        total += size
    return chosen


def _replace(day: Path, merged: Sequence[Path]) -> bool:
    staging = day.parent / STAGING
    shutil.rmtree(staging, ignore_errors=True)  # of a writer that was killed
    staging.mkdir()
    try:
        _require_exchange(staging)
        files = {*_files(day)}
        for path in files - {*merged}:
            os.link(path, staging / path.name)
        _write_block(merged, staging)
        sync_directory(staging)
        exchange(staging, day)
        for name in {path.name for path in staging.iterdir()} - {path.name for path in files}:
            os.rename(staging / name, day / name)  # not a record, so not ours to delete
        sync_directory(day.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return True


def _require_exchange(directory: Path) -> None:
    """Check that directories can be exchanged, before records are merged for nothing.

    :raises OSError: the file system cannot, as NFS
    """
    probes = directory / ".1", directory / ".2"
    for path in probes:
        path.mkdir()
    exchange(*probes)
    for path in probes:
        path.rmdir()


def _write_block(paths: Sequence[Path], directory: Path) -> None:
    files = (parquet.ParquetFile(path, read_dictionary=_TEXTS) for path in paths)
    tables = [file.read().select(SCHEMA.names).cast(_CODED) for file in files]
    rows = _sorted(pa.concat_tables(tables))
    digest = hashlib.sha256("\n".join(sorted(path.name for path in paths)).encode()).hexdigest()
    block = directory / f"block-{sum(map(_size, paths))}-{digest[:12]}.parquet"
    parquet.write_table(
        rows, block, compression="zstd", store_schema=False, row_group_size=_ROW_GROUP
    )
    with block.open("rb") as file:
        sync(file.fileno())


def _sorted(rows: pa.Table) -> pa.Table:
    """Return rows of :data:`_CODED` in the order of a block; Arrow does not sort dictionaries."""
    rows = rows.unify_dictionaries().combine_chunks()
    keys = {}
    for name in ORDER:
        keys[name] = rows[name].chunk(0)
        if name in _TEXTS:
            ranks = pc.rank(keys[name].dictionary, "ascending")
            keys[name] = ranks.take(keys[name].indices)
    order = pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in ORDER])
    return rows.take(order)


def exchange(first: Path, second: Path) -> None:
    """Exchange two directories in one step.

    :raises OSError: the file system cannot, as NFS
    """
    paths = (os.fsencode(first), os.fsencode(second))
    if _libc.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def sync(descriptor: int) -> None:
    """Wait until a file is on disk."""
    os.fsync(descriptor)


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)
