# SPDX-License-Identifier: LGPL-2.1-or-later
"""The store of a fleet, where several processes write."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from kcensus.fleets import FleetError
from kcensus.fleets.places import Bucket, Directory, place
from kcensus.fleets.store import Writer, read, writer
from kcensus.fleets.tables import arrow


def test_a_later_run_ends_an_earlier_one_where_there_is_no_lock(tmp_path: Path) -> None:
    """As in an object store: what the earlier one adds after that counts nowhere."""

    def rows(attempt: str) -> dict[str, pa.Table]:
        row = {"day": "2026-01-31", "attempt": attempt, "target": attempt}
        return {"findings": arrow("findings", [row], {}), "targets": arrow("targets", [row], {})}

    with writer(tmp_path) as earlier:
        earlier.add([rows("a")])
        later = Writer(place(tmp_path))
        later.begin()
        later.clean()
        with pytest.raises(FleetError):
            earlier.add([rows("b")])
        later.add([rows("c")])
    for table in ("targets", "findings"):
        assert sorted(read(tmp_path, table)["attempt"].to_pylist()) == ["a", "c"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("s3://bucket/fleet", Bucket),
        ("gs://bucket/of/fleets/", Bucket),
        ("s3:/bucket/fleet", Directory),
        ("s3://bucket", Directory),
        ("a/s3://bucket/fleet", Directory),
        ("fleet", Directory),
    ],
)
def test_a_url_is_an_object_store(name: str, kind: type) -> None:
    assert isinstance(place(name), kind)
