# SPDX-License-Identifier: LGPL-2.1-or-later
"""What users of a Python prompt meet: one line per finding, hints."""

from __future__ import annotations

import drgn
import pytest

from kcensus.api.objects import columns_of, objects
from kcensus.engine.layout import LayoutError
from kcensus.results import Finding, Severity
from tests.unit.engine.test_slab_scan import one


def test_a_finding_is_one_line() -> None:
    finding = Finding(id="slab-waste:\x1b[2J", severity=Severity.NOTICE, title="much")
    assert repr(finding) == r"<NOTICE slab-waste:\x1b[2J: much>"
    assert len(repr([finding, finding]).splitlines()) == 1


def test_a_wrong_member_names_the_right_one() -> None:
    things = one("6.10", [3, 5], [])[0]
    with pytest.raises(LayoutError, match=r"has no member slef; did you mean self\?"):
        objects(things.prog, "struct thing", ["slef"])
    with pytest.raises(LayoutError, match=r"self is a pointer: kcensus\.follow"):
        objects(things.prog, "struct thing", ["id", "self.id"])
    with pytest.raises(LayoutError, match=r"has no member qqqqq$"):
        objects(things.prog, "struct thing", ["qqqqq"])


def test_a_member_of_a_member_and_of_an_unnamed_one_is_named() -> None:
    prog = drgn.Program(drgn.host_platform)
    word = prog.int_type("unsigned int", 4, False)
    inner = prog.struct_type("inner", 4, (drgn.TypeMember(word, "count"),))
    union = prog.union_type(None, 4, (drgn.TypeMember(inner, "d_lockref"),))
    outer = prog.struct_type("outer", 4, (drgn.TypeMember(union, None),))
    with pytest.raises(LayoutError, match=r"did you mean d_lockref\?"):
        columns_of(prog, outer, ["d_lokref"])
    with pytest.raises(LayoutError, match=r"did you mean d_lockref\.count\?"):
        columns_of(prog, outer, ["d_lockref.cout"])
