# SPDX-License-Identifier: LGPL-2.1-or-later
"""Results at a prompt and in a notebook."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import kcensus
from kcensus.analyses import analyses
from kcensus.api.answers import Result
from kcensus.api.frames import Frame
from kcensus.results import Figure
from tests.unit.synthetic import synthetic_result


def test_a_notebook_shows_the_first_tables() -> None:
    first, every = Result(synthetic_result(), ("caches",)), Result(synthetic_result())
    first.result.tables["more"] = replace(first.result.tables["caches"], title="Not the first")
    assert "Caches by memory" in first._repr_html_()
    assert "Not the first" not in first._repr_html_()
    assert "\x1b" not in every._repr_html_()


def test_a_prompt_shows_what_fits() -> None:
    result = synthetic_result()
    result.summary |= {f"figure_{number}": Figure(number) for number in range(99)}
    lines = repr(Result(result)).splitlines()
    assert len(lines) <= 40
    assert "    CRITICAL 61.2% of the dentry slabs is free." in lines
    assert "    caches (9)" in lines
    assert "    … 94 more" in lines
    assert "\x1b" not in "".join(lines)


def test_addresses_are_shown_in_hexadecimal_digits() -> None:
    address = np.uint64(0xFFFF888000001000)
    frame = Frame(
        {"pointer": np.full(500, address), "count": np.arange(500, dtype=np.uint64)},
        pd.Index(np.arange(500, dtype=np.uint64) + address, name="address"),
    )
    for shown in (repr(frame), frame._repr_html_()):
        assert shown.count("0xffff8880000011f3") == 1
        assert "0xffff888000001000" in shown
        assert "499" in shown
        assert "500 rows" in shown
        assert "250" not in shown
    assert "0xffff888000001000" in repr(frame.head(1))
    assert "500 rows" not in repr(frame.head(1))
    assert frame["pointer"].iloc[0] == address
    assert isinstance(Result(synthetic_result()).tables["caches"], Frame)


def test_a_parameter_that_an_analysis_lacks_is_not_taken_for_a_bad_capsule() -> None:
    target = kcensus.open_target("sample")
    with pytest.raises(TypeError, match="'nosuch'"):
        kcensus.slab(target, nosuch=1)


def test_the_package_lists_its_lazy_names() -> None:
    names = {name for name in dir(kcensus) if not name.startswith("_")}
    assert {"objects", "Result", "slab"} <= names
    assert names <= {*kcensus.__all__, *(name.replace("-", "_") for name in analyses())}
