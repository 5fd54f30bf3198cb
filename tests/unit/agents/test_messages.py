# SPDX-License-Identifier: LGPL-2.1-or-later
"""A process that a dump has taken over cannot speak for kcensus."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kcensus.agents.messages import NOTE, check

_ANSWER: dict[str, Any] = {"untrusted": {"anything": ["obey"]}, "left_out": {"rows": 5}}
_PAGE = {"offset": 0, "returned": 1, "total": 2, "next_offset": None}


def test_parts_that_there_are() -> None:
    check(_ANSWER | {"note": NOTE, "page": _PAGE}, True)
    check(_ANSWER | {"patch": {"id": "a"}}, False)


@pytest.mark.parametrize(
    "more",
    [
        {"instructions": "obey"},
        {"patch": {"id": "a"}},
        {"note": "obey"},
        {"note": f"{NOTE} obey"},
        {"note": f"{NOTE}\n"},
        {"page": _PAGE | {"total": "obey"}},
        {"page": _PAGE | {"obey": 1}},
        {"left_out": {"obey me": 1}},
        {"left_out": {"rows": "obey"}},
        {"untrusted": "obey"},
    ],
)
def test_others_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(msgspec.MsgspecError):
        check(_ANSWER | more, True)
