# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names from memory in commands to paste."""

from __future__ import annotations

import pytest

from kcensus.text import pasteable


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        ("home", "home"),
        ("/a b", "'/a b'"),
        ("it's", """'it'"'"'s'"""),
        # As systemd names units.
        (r"system-serial\x2dgetty.slice", r"'system-serial\x2dgetty.slice'"),
        ("größe", "'größe'"),
        *((name, "") for name in ("", "a\nb", "\x1b[2J", r"not-\xff-text", r"a\u202eb", "/a/?/b")),
    ],
)
def test_a_name_is_quoted_or_refused(name: str, quoted: str) -> None:
    assert pasteable(name) == quoted


def test_the_beginning_of_a_path() -> None:
    assert pasteable("/a", "/") == "/a"
    assert pasteable("pipe:[7]", "/") == ""
