# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sentences about memory that cannot be read."""

from __future__ import annotations

import types
from collections.abc import Callable

import drgn
import pytest

from kcensus.sources import faults


def test_sentences_name_the_function_not_the_comprehension() -> None:
    code = """
def dentries(read):
    return [(lambda: read(number))() for number in range(3)]
"""
    module = types.ModuleType("kcensus.kernel.synthetic")
    exec(code, module.__dict__)
    dentries: Callable[..., object] = module.dentries

    def fail(number: int) -> None:
        raise drgn.FaultError("not in the dump", 0xFFFF_8880_0000_0000)

    with pytest.raises(drgn.FaultError) as caught:
        dentries(fail)
    assert "(while reading dentries)" in faults.sentence(caught.value, "slab")
