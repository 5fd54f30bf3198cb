# SPDX-License-Identifier: LGPL-2.1-or-later
"""A damaged file of a store stops no other host; and stores that are taken for dumps."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kcensus
from kcensus.cli import main
from kcensus.commands import Exit
from kcensus.store import StoreError, dataset
from tests.unit.store.growth.test_growth import growing
from tests.unit.store.histories import SLAB, history, write_store

pytestmark = pytest.mark.ends


@pytest.fixture(params=["footer", "pages", "missing"])
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """A store of two hosts, and the name of the damaged file of one."""
    store = tmp_path / "store"
    for host in ("good", "bad"):
        write_store(store, growing(host).assign(live=False))
    (file,) = store.glob("host=bad/*/*.parquet")
    content = bytearray(file.read_bytes())
    if request.param == "footer":
        del content[len(content) // 2 :]
    else:
        content[40:400] = b"\xff" * 360
    if request.param == "missing":
        file.unlink()
    else:
        file.write_bytes(content)
    return store, str(file.relative_to(store))


def test_the_trends_of_other_hosts_are_there(
    damaged: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    store, name = damaged
    assert main(["trend", str(store), "--json"]) == Exit.DONE
    document = json.loads(capsys.readouterr().out)
    assert {row["host"] for row in document["tables"]["growths"]} == {"good"}
    (gap,) = (each for each in document["gaps"] if each["what"] == "files")
    assert gap["count"] == 1
    assert name in gap["reason"]
    assert any(each.what == "files" for each in kcensus.trend(store).result.gaps)


def test_a_history_names_the_file(damaged: tuple[Path, str]) -> None:
    store, name = damaged
    with pytest.raises(StoreError, match=name.replace(".", "[.]")):
        kcensus.history(store)
    assert {*kcensus.history(store, host="good")["host"]} == {"good"}


_OF_ONE: tuple[dict[str, Any], ...] = (
    {}, {"host": ["db1"]}, {"since": datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)},
)  # fmt: skip
"""Choices that take all records of one host, of four days."""


@pytest.mark.parametrize("chosen", _OF_ONE)
@pytest.mark.parametrize("is_missing", [True, False])
def test_the_other_files_of_a_host_are_read(
    chosen: dict[str, Any], is_missing: bool, tmp_path: Path
) -> None:
    rows = history({SLAB: np.arange(80.0)}, step=3600)
    store = write_store(tmp_path / "store", rows.assign(live=False))
    first, *_ = sorted(store.glob("host=*/*/*.parquet"))
    if is_missing:
        first.unlink()
    else:
        first.write_bytes(first.read_bytes()[:500])
    damaged: dict[str, str] = {}
    read = dataset.read(store, metric=["slab_bytes"], damaged=damaged, **chosen)
    assert sorted(read["value"].to_pylist()) == [*range(24, 80)]
    assert [*damaged] == [str(first.relative_to(store))]
    assert all(each.isprintable() and "[" not in each for each in damaged.values())
    with pytest.raises(StoreError, match=first.name.replace(".", "[.]")):
        dataset.read(store, **chosen)
    # It is of another day.
    later = datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)
    assert dataset.read(store, metric=["slab_bytes"], since=later).num_rows == 56


@pytest.mark.parametrize("name", ["sample-series", "a store"])
def test_a_store_in_place_of_a_dump(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name != "sample-series":
        name = str(write_store(tmp_path / "store", growing()))
    for words in (["slab", name], ["record", name, "--store", str(tmp_path / "other")]):
        assert main(words) == Exit.TARGET
        error = capsys.readouterr().err
        assert "is a store of records" in error
        assert "kcensus trend" in error


def test_a_picture_is_svg(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "a.png"
    assert main(["trend", "sample-series", "--svg", str(picture)]) == Exit.USAGE
    assert ".svg" in capsys.readouterr().err
    assert not picture.exists()


def test_shares_have_a_decimal() -> None:
    trend = kcensus.trend("sample-series", metric="memcgs.share_of_ram")
    row = trend.tables["growing"].iloc[0]
    exact = [row["rate_per_day"], row["rate_per_day_low"], row["rate_per_day_high"]]
    shown = [row["rate"].removesuffix("/d"), *row["interval"].split(" to ")]
    assert shown == [f"{each:.1%}" for each in exact]
