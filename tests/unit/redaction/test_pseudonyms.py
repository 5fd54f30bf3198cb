# SPDX-License-Identifier: LGPL-2.1-or-later
"""Pseudonyms keep the shape of names only."""

from __future__ import annotations

import itertools
import re
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcensus.redaction.pseudonyms import _WORD, KEY_BYTES, Pseudonyms, new_key

_KEY = b"not much of a secret"
_NAMES = Pseudonyms(_KEY)

names = st.binary(min_size=1, max_size=300) | st.text(
    "abcdefxyzABCDEFXYZ0123456789.-_ é日", max_size=60
).map(str.encode)


def _replaced(raw: bytes, pseudonyms: Pseudonyms = _NAMES) -> bytes:
    return pseudonyms.of(raw)


def _kind(byte: int) -> str:
    for kind in ("09", "af", "gz", "AF", "GZ"):
        if ord(kind[0]) <= byte <= ord(kind[1]):
            return kind
    return "gz" if byte >= 128 else chr(byte)


@given(names)
def test_the_shape_stays_and_every_word_changes(raw: bytes) -> None:
    new = _replaced(raw)
    assert [_kind(byte) for byte in new] == [_kind(byte) for byte in raw]
    for word in _WORD.finditer(raw):
        if word[1] is None and word[0][0] < 128:  # else an escape
            assert new[word.start()] != word[0][0]


def test_escapes_stay_escapes() -> None:
    plain, mangled = _replaced(b"data base"), _replaced(rb"data\x20base")
    assert mangled == plain.replace(b" ", rb"\x20")
    assert _replaced(rb"by\x2dlabel\x41") != rb"by\x2dlabel\x41"
    assert re.fullmatch(rb"\w\w\\x2d\w{5}\\x[0-9][0-9]", _replaced(rb"by\x2dlabel\x41"))
    assert re.fullmatch(rb"\w{2}\\[a-z]{2}", _replaced(rb"by\xy"))


@pytest.mark.slow
@given(st.lists(names, max_size=8), st.sampled_from([b"/", b"-", b"\0", b". "]))
def test_equal_words_get_equal_pseudonyms(parts: list[bytes], glue: bytes) -> None:
    assert _replaced(glue.join(parts)) == glue.join(_replaced(part) for part in parts)


@pytest.mark.slow
def test_words_of_one_shape_stay_different() -> None:
    kinds = (b"0123456789", b"abcdef", b"ghijklmnopqrstuvwxyz", b"ABCDEF")
    for size in range(1, 5):
        words = [bytes(word) for word in itertools.product(*kinds[:size])]
        new = _replaced(b"-".join(words)).split(b"-")
        assert len(set(new)) == len(words)
    digits = [b"%05d" % number for number in range(100000)]
    assert len(set(_replaced(b".".join(digits)).split(b"."))) == len(digits)


def test_the_key_decides() -> None:
    raw = b"a file name of some length 0123456789"
    assert _replaced(raw) == _replaced(raw, Pseudonyms(_KEY))
    assert _replaced(raw) != _replaced(raw, Pseudonyms(_KEY + b"!"))
    assert len(new_key()) == KEY_BYTES
    assert new_key() != new_key()


@pytest.mark.slow
def test_pseudonyms_are_uniform() -> None:
    """All letters are equally likely, and neighbours are unrelated."""
    words = [b"%08d" % number for number in range(20000)]
    new = np.frombuffer(_replaced(b" ".join(words)).replace(b" ", b""), np.uint8).reshape(-1, 8)
    for column in range(8):
        counts = np.bincount(new[:, column] - ord("0"), minlength=10)
        # The first digit is the same in all originals, and never stays.
        expected = 20000 / (9 if column == 0 else 10)
        assert (np.abs(counts[counts > 0] - expected) < 6 * expected**0.5).all()
        assert np.count_nonzero(counts) == (9 if column == 0 else 10)
    assert abs(np.mean(new[1:] == new[:-1]) - 0.1) < 0.01


def test_only_what_is_wanted_is_replaced() -> None:
    raw = b"keep this but not that, ever"
    wanted = np.zeros(len(raw), np.bool_)
    wanted[18:22] = True
    buffer = np.frombuffer(raw, np.uint8).copy()
    _NAMES.replace(buffer, wanted)
    assert buffer.tobytes() == raw.replace(b"that", _replaced(b"that"))
    assert buffer.tobytes() != raw


def test_words_longer_than_a_digest_stay_different() -> None:
    words = [b"x" * at + b"y" + b"x" * (299 - at) for at in range(300)]
    assert len({_replaced(word) for word in words}) == 300


def test_batches_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = b" ".join(b"word%d" % number for number in range(1000)) + b" " + b"x" * 3000
    whole = _replaced(raw)
    monkeypatch.setattr("kcensus.redaction.pseudonyms._BATCH", 7)
    assert _replaced(raw) == whole


_LETTERS = "abcdefxyzABCDEFXYZ0123456789.-_/ "


def _escaped(name: str) -> bytes:
    """Return a name as systemd and device mapper have it."""
    kept = string.ascii_letters + string.digits + "._-/"
    return b"".join(
        bytes([byte]) if chr(byte) in kept else rb"\x%02x" % byte for byte in name.encode()
    )


@given(
    st.text(
        st.sampled_from(_LETTERS + "é’日\\😀") | st.characters(codec="utf-8"),
        min_size=1,
        max_size=60,
    ).map(_escaped)
)
def test_the_key_gives_escaped_names_back(raw: bytes) -> None:
    assert _NAMES.original(_replaced(raw)) == raw


def test_the_key_gives_escapes_of_utf8_back() -> None:
    names = [rb"vg-caf\xe2\x80\x99%ddata" % number for number in range(400)]
    assert [_NAMES.original(_replaced(name)) for name in names] == names


def test_some_texts_are_no_pseudonyms() -> None:
    texts = [rb"\x%d%s" % (number, letters) for number in range(80, 100) for letters in (b"", b"z")]
    originals = [_NAMES.original(text) for text in texts]
    assert None in originals
    for text, original in zip(texts, originals, strict=True):
        assert original is None or _replaced(original) == text
    assert _NAMES.original("é".encode()) is None


@given(st.lists(st.sampled_from([*_LETTERS, r"\x"]), min_size=1, max_size=200))
def test_the_key_gives_names_back(letters: list[str]) -> None:
    raw = "".join(letters).encode()
    found = _NAMES.original(_replaced(raw))
    # Escapes of half a letter in UTF-8 may have the pseudonym of a blank.
    assert found is not None
    assert _replaced(found) == _replaced(raw)
    assert found == raw or rb"\x" in raw
    if re.search(rb"[0-9A-Za-z]{8}", raw):
        assert Pseudonyms(_KEY + b"!").original(_replaced(raw)) != raw


def test_numbers_are_equal_where_numbers_are_equal() -> None:
    values = np.array([7, 1, 7, 2**32 - 1], np.uint64)
    numbers = _NAMES.numbers(values)
    assert numbers.dtype == np.uint32
    assert numbers[0] == numbers[2]
    assert len(set(numbers.tolist())) == 3
    assert not (numbers == Pseudonyms(_KEY + b"!").numbers(values)).any()
    assert len(_NAMES.numbers(values[:0])) == 0
