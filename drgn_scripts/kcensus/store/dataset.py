# SPDX-License-Identifier: LGPL-2.1-or-later
"""Add records to a store, and read them.

A record is one file, which appears under its name when it is complete and on disk. Writers of one
host take turns; one that is killed leaves at most a hidden file, which the next one replaces.
Readers take no lock: a merge exchanges the directory of a day as a whole, and a reader that listed
the old one begins again.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import functools
import json
import operator
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import parquet

from kcensus.render.directory import OutputError
from kcensus.render.plain import installed_version
from kcensus.store import StoreError, compaction
from kcensus.store.layout import (
    FORMAT,
    LOCK,
    MARKER,
    PART,
    PARTITIONS,
    SCHEMA,
    WHOLE,
    bounded_host,
    day_directory,
    host_directory,
    located,
)
from kcensus.store.records import Record
from kcensus.text import printable

_MAX_READS = 20
"""Attempts to read while merges replace directories."""
_MAX_MARKER = 1 << 16


def prepare(store: Path) -> None:
    """Make a store, unless it exists.

    :raises OutputError: it cannot be made
    :raises StoreError: it is of another format
    """
    name = printable(str(store))
    with _writing(store):
        if store.exists() and not store.is_dir():
            raise OutputError(f"'{name}' is not a directory; choose another name for the store")
        if not (store / MARKER).exists():
            store.mkdir(parents=True, exist_ok=True)
            _sync_parents(store)
            part = store / f".{MARKER}.{os.getpid()}"
            with part.open("w") as file:
                file.write(json.dumps({"format": FORMAT, "kcensus": installed_version()}))
                compaction.sync(file.fileno())
            os.replace(part, store / MARKER)
            compaction.sync_directory(store)
    check(store)


def _sync_parents(store: Path) -> None:
    """Wait until the names of the directories above a store are on disk.

    This includes names that another process made: it may have been killed before it synced them.
    The marker is written later, so that a store with a marker has a name on disk.
    """
    path = store.resolve()
    while not os.path.ismount(path):
        path = path.parent
        with contextlib.suppress(PermissionError):  # not readable, so not made by this user
            compaction.sync_directory(path)


def check(store: Path) -> None:
    """Refuse a directory that is not a store, or one of another format.

    :raises StoreError: the message says what to do
    """
    name = printable(str(store))
    try:
        with (store / MARKER).open(encoding="utf-8") as file:
            format = json.loads(file.read(_MAX_MARKER))["format"]
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(
            f"'{name}' is not a store: `kcensus record TARGET --store {name}` makes one"
        ) from None
    except OSError as error:
        raise StoreError(f"the store '{name}' cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise StoreError(f"the store '{name}' is damaged: {MARKER} has no format") from None
    if format != FORMAT:
        raise StoreError(
            f"the store '{name}' has format {printable(str(format))[:20]}, this kcensus reads "
            f"format {FORMAT}: use the kcensus that wrote it, or another directory"
        )


def add(store: Path, record: Record) -> bool:
    """Add a record to a store that :func:`prepare` made.

    When this returns, the record is on disk, whether it is new or not.

    :return: whether it is new
    :raises OutputError: it cannot be written
    """
    host = host_directory(store, record.host)
    day = day_directory(store, record.host, record.time)
    with _writing(store), _locked(host):
        if (known := _day_with(record, host, day)) is not None:
            _sync(known)
            return False
        part = host / PART
        parquet.write_table(record.rows, part, compression="zstd", store_schema=False)
        with part.open("rb") as file:
            compaction.sync(file.fileno())
        begins = not day.exists()
        day.mkdir(exist_ok=True)
        os.rename(part, day / f"{record.time:%H%M%S}-{record.id}.parquet")
        _sync(day)
        if begins:
            for other in sorted(host.glob("day=*")):
                if other != day:
                    compaction.compact(other, compaction.Extent.WHOLE)
        compaction.compact(day, compaction.Extent.RECENT)
    return True


@contextlib.contextmanager
def _writing(store: Path) -> Iterator[None]:
    """Turn errors of the operating system into one sentence."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(printable(f"cannot write to the store '{store}': {reason}")) from None


@contextlib.contextmanager
def _locked(host: Path) -> Iterator[None]:
    """Hold the lock of a host; the kernel releases it if this process is killed."""
    host.mkdir(exist_ok=True)
    descriptor = os.open(host / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sync(day: Path) -> None:
    """Wait until the names of the files of a day are on disk, and those of the directories above.

    This includes names that another process made: it may have been killed before it synced them.
    """
    for path in (day, day.parent, day.parent.parent):
        compaction.sync_directory(path)


def _day_with(record: Record, host: Path, day: Path) -> Path | None:
    """Return the directory that has a record, or None.

    This is that of its day, or any one of the host if the dump has no time.
    """
    if not record.rows.num_rows:
        return None
    is_timed = record.rows["clock"][0].as_py() == "machine"
    for each in [day] if is_timed else sorted(host.glob("day=*")):
        singles = compaction.singles(each)
        if any(path.name.endswith(f"-{record.id}.parquet") for path in singles):
            return each
        if _is_merged(record, compaction.blocks(each)):
            return each
    return None


def _is_merged(record: Record, blocks: Sequence[Path]) -> bool:
    """Return whether one of the blocks has a record."""
    if not blocks:
        return False
    # Each analysis of a record has a row of this metric, and few row groups of a block have any.
    row = {
        "analysis": record.rows["analysis"][0].as_py(),
        "part": "quality",
        "metric": "failed",
        "record": record.id,
    }
    matches = functools.reduce(
        operator.and_, [ds.field(name) == value for name, value in row.items()]
    )
    rows = ds.dataset([*map(str, blocks)], schema=SCHEMA, format="parquet")
    return bool(rows.count_rows(filter=matches))


def read(
    store: Path,
    *,
    columns: Collection[str] = tuple(WHOLE.names),
    since: datetime.datetime | None = None,
    until: datetime.datetime | None = None,
    **equal: Collection[str] | None,
) -> pa.Table:
    """Return the rows of a store as an Arrow table, in no particular order.

    :param store: a directory, or the name of a store that comes with kcensus
    :param since: time of the first record, with a time zone; ``until``: of the last
    :param equal: by name of a column, values that it may have; any where None
    :raises StoreError: it is not a store, or it is damaged
    """
    store = located(store)
    check(store)
    for _ in range(_MAX_READS):
        try:
            return _read(store, columns, since, until, equal)
        except FileNotFoundError:
            continue  # merged since it was listed
        except (OSError, pa.ArrowException) as error:
            reason = printable(str(error).partition("\n")[0])
            raise StoreError(
                f"the store '{printable(str(store))}' has a file that cannot be read: {reason}"
            ) from None
    raise StoreError(f"the store '{printable(str(store))}' changes faster than it can be read")


def _read(
    store: Path,
    columns: Collection[str],
    since: datetime.datetime | None,
    until: datetime.datetime | None,
    equal: Mapping[str, Collection[str] | None],
) -> pa.Table:
    wanted = {name: [*values] for name, values in equal.items() if values is not None}
    if "host" in wanted:
        wanted["host"] = [bounded_host(printable(name)) for name in wanted["host"]]
    names = {host_directory(store, host).name for host in wanted.get("host", ())} or None
    bounds = [
        each and f"day={each.astimezone(datetime.timezone.utc):%Y-%m-%d}" for each in (since, until)
    ]
    paths = [
        path
        for host in _directories(store, "host=", lambda name: names is None or name in names)
        for day in _directories(
            host,
            "day=",
            lambda name: (bounds[0] or name) <= name <= (bounds[1] or name),
        )
        for path in _files(day)
    ]
    if not paths:
        return pa.schema([WHOLE.field(name) for name in columns]).empty_table()
    conditions = [
        ds.field(name).isin(pa.array(values, pa.string())) for name, values in wanted.items()
    ]
    if since is not None:
        conditions.append(ds.field("time") >= since)
    if until is not None:
        conditions.append(ds.field("time") <= until)
    rows = ds.dataset(
        paths,
        schema=WHOLE,
        format="parquet",
        partitioning=ds.partitioning(PARTITIONS, flavor="hive"),
        partition_base_dir=str(store),
    )
    return rows.to_table(
        columns=[*columns],
        filter=functools.reduce(operator.and_, conditions) if conditions else None,
    )


def _directories(path: Path, prefix: str, is_wanted: Callable[[str], bool]) -> list[Path]:
    with os.scandir(path) as entries:
        names = [each.name for each in entries if each.name.startswith(prefix) and each.is_dir()]
    return [path / name for name in sorted(names) if is_wanted(name)]


def _files(day: Path) -> list[str]:
    """Return the files of a day, all of the same moment.

    :raises FileNotFoundError: a merge replaced the directory while it was listed
    """
    descriptor = os.open(day, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with os.scandir(descriptor) as entries:
            names = [entry.name for entry in entries if compaction.is_data(entry.name)]
        # If it was replaced, a part of its files may have been deleted already.
        if not os.path.samestat(os.fstat(descriptor), os.stat(day)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(day))
    finally:
        os.close(descriptor)
    return [f"{day}/{name}" for name in sorted(names)]
