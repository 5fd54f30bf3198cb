# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sentences fit the screen, and commands in them are whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from kcensus.render.screen.wrapping import wrapped

_COMMAND = "`kcensus waits vmcore -s vmlinux --table stacks --top 0`"


def lines(text: str, width: int) -> list[str]:
    return [line.plain for line in wrapped(Text(text), width)]


@pytest.mark.parametrize("width", [10, 40, 72, 100])
def test_a_command_is_never_broken(width: int) -> None:
    made = lines(f"for developers: {_COMMAND}, and more words after the command", width)
    assert sum(_COMMAND in line for line in made) == 1
    assert all(len(line) <= width or line == f"{_COMMAND}," for line in made)


def test_words_are_broken_only_if_no_line_holds_them() -> None:
    assert lines("one two", 3) == ["one", "two"]
    assert lines("a 0123456789 b", 4) == ["a", "0123", "4567", "89 b"]
    assert lines("", 4) == [""]
    assert lines("a\n\nb", 4) == ["a", "", "b"]


@given(st.text(st.sampled_from("ab宽 \n"), max_size=40), st.integers(2, 12))
def test_no_word_is_lost_and_every_line_fits(text: str, width: int) -> None:
    made = lines(text, width)
    assert "".join("".join(made).split()) == "".join(text.split())
    assert max(map(cell_len, made)) <= width


def test_styles_stay() -> None:
    text = Text.assemble(("one two", "bold"), " three")
    assert [[str(span.style) for span in line.spans] for line in wrapped(text, 7)] == [["bold"], []]
