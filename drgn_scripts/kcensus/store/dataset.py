# SPDX-License-Identifier: LGPL-2.1-or-later
"""Add records to a store, a Delta Lake table of Parquet files, and read them.

A record is one commit: its file belongs to the table once the log names it, so readers see all of
it or nothing, and a killed writer leaves at most an unused file. Each commit also counts the
records of its host; of two writers at a time, one finds the count changed and begins again.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import operator
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from shlex import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import (
    CommitProperties,
    DeltaTable,
    Schema,
    Transaction,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError

from kcensus.outputs import OutputError
from kcensus.outputs import prepare as make_directory
from kcensus.store import StoreError
from kcensus.store.layout import COLUMNS, LOG, PARTITIONS, SCHEMA, bounded_host, located
from kcensus.store.records import Record
from kcensus.text import printable

_MERGED_EVERY = 64
"""Number of records of a host after which its small files are merged."""
_BLOCK = 2 << 20
"""Approximate bytes of a merged file; larger ones are not merged again."""
_DELETED_EVERY = 512
"""Number of records of a host after which files merged a day ago are deleted."""
SETTINGS = {
    "delta.deletedFileRetentionDuration": "interval 1 days",
    "delta.logRetentionDuration": "interval 1 days",
}
WRITING = WriterProperties(compression="ZSTD", max_row_group_size=1 << 16)
_MAX_TRIES = 200
"""Most tries of a commit, while others write to the same host."""
_MAX_FILE, _MAX_TEXT, _MAX_TEXTS = 1 << 28, 1 << 14, 1 << 31
"""Most bytes of a file, uncompressed; of a text; and of all texts that are read."""
_TEXTS = {each.name for each in SCHEMA if each.type == pa.string()} - {*PARTITIONS}
"""Columns of texts in files, each of which is in memory once while it is read."""
_MAX_ROWS = 1 << 23
"""Most rows to read at once: 20,000 records, which take 3 GB."""
_UNSYNCED = 16
"""Latest commits that a writer syncs with its own: earlier writers may have been killed before."""
_OS_ERROR = re.compile(r"[^:\n]+\(os error \d+\)")
"""As Rust prints it: ``No space left on device (os error 28)``."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m|↳")
"""Of the causes of errors of delta-rs."""
_IN_PATHS = " /._-+=:,@~"
"""Characters of paths of stores besides letters and digits."""


def prepare(store: Path) -> None:
    """Make a store, unless it exists.

    :raises OutputError: it cannot be made
    :raises StoreError: it is another table
    """
    place = uri(store)
    with writing(store):
        make_directory(store)
        try:
            DeltaTable.create(
                place, Schema.from_arrow(SCHEMA), mode="ignore", partition_by=[*PARTITIONS],
                configuration=SETTINGS,
            )  # fmt: skip
        except DeltaError:
            if not DeltaTable.is_deltatable(place):  # else another process made it meanwhile
                raise
        path = Path(os.path.realpath(store))
        sync(path / LOG)
        sync(path)
        while not os.path.ismount(path):
            path = path.parent
            with contextlib.suppress(PermissionError):  # not readable, so not made by this user
                sync(path)
    _table(store)


def uri(store: Path) -> str:
    """Return the name of a directory in delta-rs.

    :raises StoreError: delta-rs mistakes some of its characters, and ends the process for others
    """
    path = Path(os.path.realpath(store))
    if refused := [each for each in str(path) if not (each.isalnum() or each in _IN_PATHS)]:
        raise StoreError(
            f"the path of the store '{printable(str(path))}' has the character"
            f" '{printable(refused[0])}': use letters, digits and {_IN_PATHS.strip()}"
        )
    return path.as_uri()


def _table(store: Path) -> DeltaTable:
    """Return the table of a store.

    :raises StoreError: it is not a store; the message has the next step
    """
    name = printable(str(store))
    if not (store / LOG).is_dir():
        raise StoreError(
            f"'{name}' is not a store: `kcensus record TARGET --store {quote(name)}` makes one"
        )
    place = uri(store)
    try:
        table = DeltaTable(place)
        has = {field.name for field in table.schema().fields}
    except (DeltaError, OSError, ValueError) as error:
        raise StoreError(
            f"the log of the store '{name}' cannot be read: {_reason(error)}"
        ) from None
    if lacks := [column for column in COLUMNS if column not in has]:
        raise StoreError(
            f"'{name}' is a table without column {lacks[0]}, so another program or a later kcensus"
            " made it; use that program, or choose another directory"
        )
    return table


def add(store: Path, record: Record) -> bool:
    """Add a record to a store made by :func:`prepare`.

    On return, the record is on disk, whether it is new or not.

    :return: whether it is new
    :raises OutputError: it cannot be written
    """
    with writing(store):
        for _ in range(_MAX_TRIES):
            table = _table(store)
            count = (table.transaction_version(record.host) or 0) + 1
            if _has(table, record):
                _sync(store, table, record)
                return False
            properties = CommitProperties(
                app_transactions=[Transaction(record.host, count)], max_commit_retries=_MAX_TRIES
            )
            try:
                write_deltalake(
                    table,
                    record.rows,
                    mode="append",
                    schema_mode="merge",  # the table may have columns of a later kcensus
                    writer_properties=WRITING,
                    commit_properties=properties,
                )
            except CommitFailedError:  # another writer added to this host, maybe the same record
                continue
            _sync(store, table, record)
            with contextlib.suppress(DeltaError, OSError):  # nothing is lost; the next one does it
                if count % _MERGED_EVERY == 0:
                    merge(table, record.host)
                    _sync(store, table, record)
                if count % _DELETED_EVERY == 0:
                    table.vacuum(dry_run=False)
            return True
    name = printable(str(store))
    raise OutputError(
        f"cannot write to the store '{name}': too many other processes write records of this host; "
        "try again"
    )


def _place(record: Record) -> dict[str, str]:
    """Return host and day of a record; the host alone if the day is that of recording."""
    is_timed = record.rows["clock"][0].as_py() == "machine"
    return {"host": record.host} | ({"day": record.rows["day"][0].as_py()} if is_timed else {})


def _has(table: DeltaTable, record: Record) -> bool:
    """Return whether a table has a record: on its day, or on any day if the dump has no time."""
    same = {**_place(record), "record": record.id}
    matches = functools.reduce(
        operator.and_, [ds.field(name) == value for name, value in same.items()]
    )
    return bool(table.to_pyarrow_dataset().head(1, columns=["record"], filter=matches).num_rows)


def merge(table: DeltaTable, host: str) -> None:
    """Merge the small files of each day of a host.

    :raises DeltaError: another writer merged them meanwhile, or it cannot be done
    """
    table.optimize.compact(
        partition_filters=[("host", "=", host)],
        target_size=_BLOCK,
        max_concurrent_tasks=1,
        writer_properties=WRITING,
    )


@contextlib.contextmanager
def writing(store: Path) -> Iterator[None]:
    """Give new files no more permissions than the store has, by default those of its owner.

    :raises StoreError: another user could lead what is written elsewhere, by a link
    :raises OutputError: it cannot be written
    """
    umask = os.umask(0o077)
    try:
        if store.is_dir():
            status = store.stat()
            os.umask(umask | (~status.st_mode & 0o777))
            is_root = os.geteuid() == 0
            if status.st_mode & stat.S_IWOTH or (is_root and status.st_uid != 0):
                name = printable(str(store))
                raise StoreError(
                    f"'{name}' belongs to another user, or any user can write to it: run as its "
                    f"owner, or use `chmod o-w {quote(name)}`"
                )
        yield
    except (OSError, DeltaError, pa.ArrowException) as error:
        name = printable(str(store))
        raise OutputError(f"cannot write to the store '{name}': {_reason(error)}") from None
    finally:
        os.umask(umask)


def _reason(error: Exception) -> str:
    """Return the error of the system, anywhere in the text of delta-rs, or the end of its line."""
    text = getattr(error, "strerror", None)
    whole = _COLOURS.sub("", str(error))
    if not text and (found := _OS_ERROR.search(whole)):
        text = found[0].strip()
    return printable(text or whole.partition("\n")[0].rpartition(": ")[2])


def provenance(store: Path) -> str:
    """Return how the records of a store were made, as the description of its table says.

    :raises StoreError: it is not a store
    """
    return printable(_table(located(store)).metadata().description or "")


def _files(store: Path, table: DeltaTable, names: Iterable[str]) -> list[Path]:
    """Return the files of a table by their URIs.

    Each is the escaped path of the store, and then host, day and name of the file as they are; the
    bundled store has no directories of days.
    """
    parts = len(table.metadata().partition_columns) + 1
    return [store.joinpath(*name.split("/")[-parts:]) for name in names]


def _sync(store: Path, table: DeltaTable, record: Record) -> None:
    """Wait until the files of a record's host and day, and the latest commits, are on disk.

    Other writers may have been killed before they synced theirs.
    """
    latest = range(max(table.version() - _UNSYNCED, 0), table.version() + 1)
    root = Path(os.path.realpath(store))
    filters = [(name, "=", value) for name, value in _place(record).items()]
    files = [root / LOG / f"{version:020}.json" for version in latest]
    files += _files(root, table, table.file_uris(file_pruning_predicate=filters))
    directories = {root / above for file in files for above in file.relative_to(root).parents}
    for path in (*files, *sorted(directories)):
        with contextlib.suppress(FileNotFoundError):  # the log has it in a checkpoint
            sync(path)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(
    store: Path,
    *,
    columns: Collection[str] = tuple(SCHEMA.names),
    since: datetime.datetime | None = None,
    until: datetime.datetime | None = None,
    damaged: dict[str, str] | None = None,
    **equal: Collection[str] | None,
) -> pa.Table:
    """Return the rows of a store as an Arrow table, in no particular order.

    :param store: a directory, or the name of a bundled store
    :param since: time of the first record, with a time zone; ``until``: of the last
    :param damaged: takes the names of unreadable files, which are then left out, and the reasons
    :param equal: accepted values of a column, by its name; None accepts any
    :raises StoreError: it is not a store, or it is damaged
    """
    store = located(store)
    wanted = {name: [*values] for name, values in equal.items() if values is not None}
    if "host" in wanted:
        wanted["host"] = [bounded_host(printable(name)) for name in wanted["host"]]
    conditions = [
        ds.field(name).isin(pa.array(values, pa.string())) for name, values in wanted.items()
    ]
    for time_, compare in ((since, operator.ge), (until, operator.le)):
        if time_ is not None:
            day = f"{time_.astimezone(datetime.timezone.utc):%Y-%m-%d}"
            conditions += [compare(ds.field("time"), time_), compare(ds.field("day"), day)]
    matches = functools.reduce(operator.and_, conditions) if conditions else None
    name = printable(str(store))
    try:
        rows = _table(store).to_pyarrow_dataset(
            schema=SCHEMA, parquet_read_options=ds.ParquetReadOptions(dictionary_columns=_TEXTS)
        )
        try:
            return _rows(store, rows, columns, matches)
        except (OSError, pa.ArrowException) as error:
            if _is_refused(error):
                raise
            lost, readable = _unreadable(store, rows, columns, matches)
            if not lost:
                raise
        if damaged is None:
            file, reason = next(iter(lost.items()))
            more = f" (and {len(lost) - 1:,} more)" if len(lost) > 1 else ""
            raise StoreError(
                f"the store '{name}' has a file that cannot be read: {file}: {reason}{more}; "
                "restore it from a backup, or use `kcensus trend`, which leaves it out"
            )
        damaged |= lost
        return _rows(store, readable, columns, matches)
    except (OSError, DeltaError, pa.ArrowException) as error:
        raise StoreError(
            f"the store '{name}' has a file that cannot be read: {_reason(error)}"
        ) from None


def _rows(
    store: Path, rows: ds.Dataset, columns: Collection[str], matches: ds.Expression | None
) -> pa.Table:
    _check_size(store, rows, matches)
    return _decoded(rows.to_table(columns=[*columns], filter=matches))


def _unreadable(
    store: Path, rows: ds.Dataset, columns: Collection[str], matches: ds.Expression | None
) -> tuple[dict[str, str], ds.Dataset]:
    """Return the damaged files below a store with the reasons, and the rows of the others.

    The error of a whole dataset does not name the file.
    """
    lost, kept = {}, []
    for fragment in rows.get_fragments(filter=matches):
        try:
            _check_file(store, fragment)
            fragment.to_table(columns=[*columns], schema=SCHEMA, filter=matches)
            kept.append(fragment)
        except (OSError, pa.ArrowException) as error:
            if _is_refused(error):
                raise
            path = printable(str(fragment.path)).removeprefix(f"{printable(str(store))}/")
            lost[path] = _reason(error).rstrip(".")
    return lost, ds.FileSystemDataset(kept, rows.schema, rows.format, rows.filesystem)


def _is_refused(error: Exception) -> bool:
    """Return whether it is a refusal of this module: what it names must not be read."""
    return isinstance(error, OSError) and error.errno == 0


def _check_size(store: Path, dataset: ds.Dataset, matches: ds.Expression | None) -> None:
    """Refuse files that would take more memory than any store: kilobytes inflate to gigabytes.

    :param matches: what is asked for; files of other hosts and days are not read

    :raises OSError: what would be read is too large, or is no file, such as a FIFO
    """
    rows = 0
    for file in dataset.get_fragments(filter=matches):
        _check_file(store, file)
        # Equal rows take bytes in the file, but hundreds each in memory.
        if (rows := rows + file.metadata.num_rows) > _MAX_ROWS:
            raise OSError(0, f"more than {_MAX_ROWS:,} rows; ask for one host, or a shorter time")


def _check_file(store: Path, file: ds.ParquetFileFragment) -> None:
    """Refuse a FIFO before it is opened, and a file that inflates to more than any that is written.

    :raises OSError: it is too large, missing, or no file
    """
    if not stat.S_ISREG(os.stat(store / file.path).st_mode):
        raise OSError(0, "something that is no regular file")
    size = sum(group.total_byte_size for group in file.row_groups)
    if size > _MAX_FILE:
        raise OSError(0, f"a file of {size} bytes, uncompressed")


def _decoded(table: pa.Table) -> pa.Table:
    """Return a table with its texts, each of which is in memory once until here.

    :raises OSError: a text, or all of them, are longer than any that is written
    """
    total = 0
    for column in table.columns:
        for chunk in column.chunks if pa.types.is_dictionary(column.type) else ():
            lengths = pc.binary_length(chunk.dictionary)
            total += pc.sum(lengths.take(chunk.indices)).as_py() or 0
            longest = pc.max(lengths).as_py() or 0
            if longest > _MAX_TEXT or total > _MAX_TEXTS:
                raise OSError(0, f"texts of {longest} and {total} bytes")
    return table.cast(pa.schema([SCHEMA.field(name) for name in table.column_names]))
