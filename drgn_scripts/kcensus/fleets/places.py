# SPDX-License-Identifier: LGPL-2.1-or-later
"""Places of a fleet's store: a directory, or a prefix in an object store such as S3."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from kcensus.fleets import FleetError
from kcensus.fleets.tables import SCHEMAS
from kcensus.outputs import OutputError
from kcensus.outputs import prepare as make_directory
from kcensus.store import dataset
from kcensus.store.layout import FIGURES, LOG
from kcensus.text import bounded, printable

_LOCK = ".kcensus-lock"
_OWN = {_LOCK, FIGURES, *SCHEMAS}
"""Names in a store; a run that is killed early leaves the first ones."""
_SCHEME = re.compile(r"(?:s3a?|gs|az|adl|abfss?)://[^/]+/.", re.ASCII)
_MAX_REASON = 300


class Place(Protocol):
    """Where the tables of a store are."""

    def uri(self, table: str) -> str:
        """Return the name of a table in delta-rs."""
        ...

    def has(self, table: str) -> bool:
        """Return whether a table exists."""
        ...

    def owned(self) -> contextlib.AbstractContextManager[None]:
        """Make the place, and be its only writer where that can be known at once.

        :raises FleetError: another process writes to it
        :raises OutputError: it cannot be written
        """
        ...

    def writing(self) -> contextlib.AbstractContextManager[None]:
        """Turn errors of writing into :class:`~kcensus.outputs.OutputError`."""
        ...

    def sync(self, table: DeltaTable, name: str) -> None:
        """Wait until the latest commit of a table is on disk."""
        ...


class Directory:
    """A directory, whose writer holds a lock."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def uri(self, table: str) -> str:
        return dataset.uri(self._path / table)

    def has(self, table: str) -> bool:
        # A full disk may leave a log without a commit.
        return DeltaTable.is_deltatable(self.uri(table))

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        with self.writing():
            make_directory(self._path)
            self._check_own()
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            lock = os.open(self._path / _LOCK, flags, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FleetError(
                    f"'{printable(str(self._path))}' is in use by another `kcensus fleet run`; "
                    "wait for its end, or choose another store"
                ) from None
            yield
        finally:
            os.close(lock)

    def _check_own(self) -> None:
        """Refuse a directory with other things: tables would be scattered among them.

        :raises FleetError: it has a file, and is no store of a fleet
        """
        with os.scandir(self._path) as entries:
            has_others = any(entry.name not in _OWN for entry in entries)
        if has_others and not any(self.has(each) for each in SCHEMAS):
            raise FleetError(
                f"'{printable(str(self._path))}' has files, and is no store of a fleet; name an "
                "empty directory, or one that does not exist"
            )

    def writing(self) -> contextlib.AbstractContextManager[None]:
        return dataset.writing(self._path)

    def sync(self, table: DeltaTable, name: str) -> None:
        root = Path(os.path.realpath(self._path / name))
        commit = root / LOG / f"{table.version():020}.json"
        actions = map(msgspec.json.decode, commit.read_bytes().splitlines())
        files = [root / unquote(each["add"]["path"]) for each in actions if "add" in each]
        folders = {folder for file in files for folder in file.parents if root in folder.parents}
        for path in (*files, *folders, commit, root / LOG, root):
            dataset.sync(path)


class Bucket:
    """A prefix in an object store; environment variables of delta-rs give the access.

    A put is on disk when it returns, and there is no lock: of two writers, the later one goes on.
    """

    def __init__(self, name: str) -> None:
        self._name = name.rstrip("/")

    def uri(self, table: str) -> str:
        return f"{self._name}/{table}"

    def has(self, table: str) -> bool:
        try:
            return DeltaTable.is_deltatable(self.uri(table))
        except (OSError, DeltaError) as error:
            raise FleetError(self._failed("read", error)) from None

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, DeltaError, pa.ArrowException) as error:
            raise OutputError(self._failed("written", error)) from None

    def sync(self, table: DeltaTable, name: str) -> None:
        pass

    def _failed(self, what: str, error: Exception) -> str:
        why = bounded(printable(" ".join(str(error).split())), _MAX_REASON)
        return (
            f"the store '{printable(self._name)}' cannot be {what}: {why}; "
            "delta-rs takes access and region from the environment, such as AWS_ENDPOINT_URL"
        )


def place(store: str | os.PathLike[str]) -> Place:
    """Return the place of a store: a directory, or the URL of a prefix."""
    name = os.fspath(store)
    return Bucket(name) if _SCHEME.match(name) else Directory(Path(name))
