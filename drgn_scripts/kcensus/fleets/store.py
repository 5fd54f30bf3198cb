# SPDX-License-Identifier: LGPL-2.1-or-later
"""The store of a fleet: Delta Lake tables, written by one process.

A batch of targets is written table by table, ``targets`` last: a target counts once it has a row
there. Rows of a writer that was killed before belong to no row of ``targets``; the next run removes
them. Runs are counted in the log of ``targets``: a run whose number is no longer the last one adds
nothing. ``figures`` is a store of ``kcensus record``, so that ``kcensus trend`` reads it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import (
    CommitProperties,
    DeltaTable,
    QueryBuilder,
    Schema,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError

from kcensus.fleets import FleetError
from kcensus.fleets.places import Place, place
from kcensus.fleets.tables import SCHEMAS
from kcensus.limits import is_own_process
from kcensus.store import dataset, layout
from kcensus.store.layout import FIGURES as FIGURES
from kcensus.text import printable

_MERGED_EVERY = 64
"""Batches after which the small files of a table are merged."""
_IN_ONE = 1000
"""Attempts or records whose rows are deleted in one go."""
_RUN = "kcensus-fleet-run"
"""Name of the count of runs among the transactions of ``targets``."""
_SETTLED = 0.5
"""Seconds after an error for the other threads of delta-rs to fail, too."""
_TAKEN = "another `kcensus fleet run` has begun to write to this store; let it end, and run again"
_KEYS = ["target", "sha256", "state", "step", "started", "attempt", "duplicate_of"]
"""Columns of ``targets`` that decide which rows count."""
REPORTED = ("done", "incomplete")
"""States of targets with a report."""
TRANSIENT = ("content", "time", "killed", "worker")
"""Steps whose failures may not happen again: another run repeats them."""


@contextlib.contextmanager
def writer(store: str | os.PathLike[str]) -> Iterator[Writer]:
    """Make a store, unless it exists, and write to it.

    :raises FleetError: another process writes to it
    :raises OutputError: it cannot be written
    """
    where = place(store)
    with where.owned():
        with where.writing():
            made = Writer(where)
            made.begin()
            made.clean()
        yield made
        with where.writing():
            made.end()


class Writer:
    """Writes to a store, while no other process does."""

    def __init__(self, where: Place) -> None:
        self._where = where
        self._tables = {name: _opened(where, name) for name in (*SCHEMAS, FIGURES)}
        """As of their last use; loading one again reads the log of all its files."""
        self._batches = 0
        self._run = 0
        self._records: dict[str, str] | None = None
        """Versions of kcensus by the records in ``figures``, once some are added."""

    def begin(self) -> None:
        """Count this run, which ends all others.

        :raises FleetError: another one began at the same time
        """
        # Of two runs that read the same number, the commit of the later one conflicts.
        self._run = (self._tables["targets"].transaction_version(_RUN) or 0) + 1
        self._append("targets", SCHEMAS["targets"].empty_table())

    def clean(self) -> None:
        """Remove the rows of killed writers, and those of targets that were done again."""
        known = self.targets()["attempt"]
        for name in (*(each for each in SCHEMAS if each != "targets"), "targets"):
            found = self._read(name, ["attempt"])["attempt"]
            lost = pc.unique(pc.filter(found, pc.invert(pc.is_in(found, known.combine_chunks()))))
            self._delete(name, "attempt", lost.to_pylist())

    def targets(self) -> pa.Table:
        """Return the rows of ``targets`` that count, with the column ``present``."""
        return with_present(current(self._read("targets", None)))

    def add(self, batch: Sequence[Mapping[str, pa.Table]]) -> None:
        """Add the rows of targets, each by table; on return they are on disk.

        :raises FleetError: another run has begun
        :raises OutputError: they cannot be written; no row of ``targets`` is then
        """
        self._batches += 1
        with self._where.writing(), _quiet():
            targets = self._tables["targets"]
            targets.update_incremental()
            if targets.transaction_version(_RUN) != self._run:  # later, its commit conflicts
                raise FleetError(_TAKEN)
            for name in (*(each for each in SCHEMAS if each != "targets"), FIGURES, "targets"):
                parts = [rows[name] for rows in batch if name in rows and rows[name].num_rows]
                if name == FIGURES:
                    parts = self._new(parts)
                if parts:
                    self._append(name, pa.concat_tables(parts))

    def _new(self, parts: Sequence[pa.Table]) -> list[pa.Table]:
        """Return the records that ``figures`` lacks: a killed writer may have added them.

        Those of another kcensus are removed, to be replaced.
        """
        own = {part["record"][0].as_py(): part for part in parts}
        if not own:
            return []
        if self._records is None:
            # Of many small files, a fifth of the CPU time that pyarrow takes.
            query = QueryBuilder().register(FIGURES, self._tables[FIGURES])
            found = query.execute(f"SELECT DISTINCT record, kcensus FROM {FIGURES}").read_all()
            columns = pa.table(found).to_pydict()
            self._records = dict(zip(columns["record"], columns["kcensus"], strict=True))
        versions = {record: part["kcensus"][0].as_py() for record, part in own.items()}
        new = [each for each in own if self._records.get(each, ...) != versions[each]]
        if replaced := [each for each in new if each in self._records]:
            self._delete(FIGURES, "record", replaced)
        self._records |= versions
        return [own[each] for each in new]

    def _delete(self, name: str, column: str, values: Sequence[str]) -> None:
        for start in range(0, len(values), _IN_ONE):
            some = ", ".join(f"'{each}'" for each in values[start : start + _IN_ONE])
            self._tables[name].delete(f"{column} IN ({some})")

    def _append(self, name: str, rows: pa.Table) -> None:
        table = self._tables[name]
        run = CommitProperties(app_transactions=[Transaction(_RUN, self._run)])
        own = run if name == "targets" else None
        try:
            write_deltalake(
                table, rows, mode="append", schema_mode="merge",
                writer_properties=dataset.WRITING, commit_properties=own,
            )  # fmt: skip
        except CommitFailedError:
            if own is None:
                raise
            raise FleetError(_TAKEN) from None
        self._where.sync(table, name)
        if self._batches % _MERGED_EVERY == 0:
            self._merge(name)

    def end(self) -> None:
        """Remove rows that count no more, and merge small files.

        For a report, each file is as much work as many rows.
        """
        if self._batches:
            with _quiet():
                rows = self._read("targets", _KEYS)
                if len(current(rows)) < len(rows):
                    self.clean()
                for name in self._tables:
                    self._merge(name)

    def _merge(self, name: str) -> None:
        table = self._tables[name]
        with contextlib.suppress(DeltaError, OSError):  # nothing is lost; the next run does it
            table.optimize.compact(writer_properties=dataset.WRITING)
            self._where.sync(table, name)
            table.vacuum(dry_run=False)

    def _read(self, name: str, columns: list[str] | None) -> pa.Table:
        return self._tables[name].to_pyarrow_dataset().to_table(columns=columns)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop the backtraces that threads of delta-rs print where a disk is full.

    Other threads lose what they print meanwhile, and processes that they start have no standard
    error: a frame of the progress bar, and the messages of a nurse that was replaced.
    """
    if not is_own_process() or sys.stderr is None:  # with 2>&-
        yield
        return
    with contextlib.suppress(OSError):  # it may be a file on that disk
        sys.stderr.flush()
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    except BaseException:
        time.sleep(_SETTLED)
        raise
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def _opened(where: Place, name: str) -> DeltaTable:
    """Return a table, made unless it exists."""
    if where.has(name):
        table = DeltaTable(where.uri(name))
    else:
        is_record = name == FIGURES
        table = DeltaTable.create(
            where.uri(name), Schema.from_arrow(layout.SCHEMA if is_record else SCHEMAS[name]),
            mode="ignore", partition_by=[*layout.PARTITIONS] if is_record else ["day"],
            configuration=dataset.SETTINGS,
        )  # fmt: skip
    where.sync(table, name)
    return table


def current(targets: pa.Table) -> pa.Table:
    """Return the rows of ``targets`` that count, of each path and content the last one.

    The last row of a path has its present content, or none. Of what it had before, reports count,
    unless another path with that content has one. A file that has an earlier content again has a
    duplicate of its own report.

    A failure that may not happen again counts until the target is done again; it does not replace
    a report on the same content, nor, if the file was not read, any other row. Duplicates name the
    row of their content that counts.
    """
    if not len(targets):
        return targets
    frame = targets.select(_KEYS).to_pandas().sort_values("started", kind="stable")
    frame = frame[~((frame["state"] == "gone") & frame.duplicated("target", keep="last"))]
    is_failed = frame["state"] == "failed"
    is_passing = is_failed & frame["step"].isin(TRANSIENT)
    has_report = (~is_failed).groupby([frame["target"], frame["sha256"]]).transform("any")
    has_other = (frame["sha256"] == "") & (~is_passing).groupby(frame["target"]).transform("any")
    has_later = frame.duplicated("target", keep="last")
    kept = frame[~(is_passing & (has_report | has_other | has_later))]
    is_copy = kept["state"] == "duplicate"
    paths = kept.drop_duplicates("attempt").set_index("attempt")["target"]
    own = kept["duplicate_of"].map(paths) == kept["target"]
    kept = kept.assign(is_back=is_copy & own)
    kept = kept[~kept.duplicated(["target", "sha256", "is_back"], keep="last")]
    is_before = kept.duplicated("target", keep="last")
    is_report = kept["state"].isin(REPORTED)
    elsewhere = kept["sha256"].isin(kept.loc[is_report & ~is_before, "sha256"])
    elsewhere |= kept["sha256"].where(is_before & is_report).duplicated(keep="last")
    is_copy = kept["state"] == "duplicate"
    # A failure on a content that another path has now is that path's.
    is_of_copy = kept["sha256"].isin(kept.loc[is_copy & ~is_before, "sha256"])
    is_of_copy &= (kept["state"] == "failed") & (kept["sha256"] != "")
    counts = (is_report & ~elsewhere) | is_of_copy | ~is_before
    kept = kept[counts].sort_index()
    is_copy = kept["state"] == "duplicate"
    originals = (
        kept[~is_copy & (kept["sha256"] != "")]
        .drop_duplicates("sha256", keep="last")
        .set_index("sha256")["attempt"]
    )
    of = kept["duplicate_of"].mask(
        is_copy & kept["sha256"].isin(originals.index), kept["sha256"].map(originals)
    )
    place = targets.schema.get_field_index("duplicate_of")
    rows = targets.take(pa.array(kept.index))
    return rows.set_column(place, "duplicate_of", pa.array(of, pa.string()))


def with_present(targets: pa.Table) -> pa.Table:
    """Return rows that count with the column ``present``: whether it is the last of its path."""
    frame = targets.select(["target", "started"]).to_pandas()
    frame = frame.sort_values("started", kind="stable")
    is_last = ~frame.duplicated("target", keep="last").sort_index()
    return targets.append_column("present", pa.array(is_last, pa.bool_()))


def located(targets: pa.Table) -> pa.Table:
    """Return rows with the column ``present`` as the files are now.

    Where the path of a report has another content now, or none, and a duplicate has this one, the
    report is of the duplicate's path, and replaces its row. Without a duplicate it is not
    ``present``. Rows of paths without a file are left out.
    """
    frame = targets.select(["target", "state", "sha256", "present"]).to_pandas()
    is_present = frame["present"].copy()
    copies = frame[is_present & (frame["state"] == "duplicate")]
    copies = copies.sort_values("target").drop_duplicates("sha256")
    moved = frame[~is_present & frame["sha256"].isin(copies["sha256"])]
    of = pd.Series(copies.index, copies["sha256"])[moved["sha256"]].to_numpy()
    source = frame.index.to_series()
    source[moved.index] = of
    for name in ("target", "size_bytes", "modified_ns"):
        number = targets.schema.get_field_index(name)
        targets = targets.set_column(number, name, targets[name].take(pa.array(source)))
    is_present[moved.index] = True
    number = targets.schema.get_field_index("present")
    targets = targets.set_column(number, "present", pa.array(is_present, pa.bool_()))
    return targets.filter(pa.array(~frame.index.isin(of) & (frame["state"] != "gone")))


class Reader:
    """Reads a store: rows of the targets that it had completely when ``targets`` was first read.

    Those of ``targets`` are :func:`located`.
    """

    def __init__(self, store: str | os.PathLike[str]) -> None:
        self._shown, self._place = printable(str(store)), place(store)

    @cached_property
    def _targets(self) -> pa.Table:
        return located(with_present(current(self._rows("targets", None, None))))

    def _rows(
        self, name: str, columns: Sequence[str] | None, where: pc.Expression | None
    ) -> pa.Table:
        found = DeltaTable(self._place.uri(name)).to_pyarrow_dataset()
        return found.to_table(columns=[*columns] if columns else None, filter=where)

    def read(
        self, name: str, columns: Sequence[str] | None = None, *, where: pc.Expression | None = None
    ) -> pa.Table:
        """Return the rows of a table.

        :param columns: all if None
        :param where: of the rows to read
        :raises FleetError: it is not the store of a fleet
        """
        if not self._place.has(name):
            raise FleetError(
                f"'{self._shown}' is not the store of a fleet: `kcensus fleet run TARGETS --store "
                "DIR` makes one"
            )
        try:
            if name == "targets":
                found = self._targets if where is None else self._targets.filter(where)
                return found.select([*columns]) if columns else found
            targets = self._targets  # first: the rows of a later target may not be complete
            found = self._rows(name, columns, where)
            key = "record" if name == FIGURES else "attempt"
            if key in found.column_names:
                found = found.filter(pc.is_in(found[key], targets[key].combine_chunks()))
            return found
        except (OSError, DeltaError, pa.ArrowException) as error:
            raise FleetError(
                f"the store '{self._shown}' cannot be read: {printable(str(error))}"
            ) from None


def read(
    store: str | os.PathLike[str],
    name: str,
    columns: Sequence[str] | None = None,
    *,
    where: pc.Expression | None = None,
) -> pa.Table:
    """Return the rows of a table, as :meth:`Reader.read`."""
    return Reader(store).read(name, columns, where=where)
