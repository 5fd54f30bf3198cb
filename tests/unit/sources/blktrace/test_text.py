# SPDX-License-Identifier: LGPL-2.1-or-later
"""The text of blkparse: what it may look like, and what it is not."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcensus.sources.blktrace import events, text
from kcensus.sources.blktrace.bios import pair
from kcensus.sources.blktrace.events import EVENT, Loss, Trace, TraceError
from kcensus.sources.blktrace.files import read_trace
from tests.unit.sources.blktrace.recorded import STARVED, unpack


def read(directory: Path, content: str | bytes) -> Trace:
    path = directory / "trace.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_trace(str(path))


def test_the_posted_excerpt_has_the_wait_that_blkparse_printed(tmp_path: Path) -> None:
    trace = read(tmp_path, STARVED)
    bios = pair(trace)
    assert len(bios) == 1
    assert int(bios.dispatched[0] - bios.inserted[0]) == 15_626_265_317
    assert (bios.sector[0], bios.bytes[0], bios.pid[0]) == (141698288, 4096, 804)
    assert bios.flags[0] & events.META
    assert not bios.flags[0] & events.SYNC
    index, names = trace.tasks(bios.pid, bios.queued)
    assert names[index[0]] == b"xfsaild/sda1"
    assert len(trace.messages["time"]) == 7
    assert not trace.losses.of(Loss.UNKNOWN)


def test_categories_are_the_letters(tmp_path: Path) -> None:
    letters = ("R", "RA", "WS", "FWFSM", "DS", "FN", "RM", "W")
    lines = "".join(
        f"  8,0    0 {n:8}     0.{n:09}   1  Q {each:>3} {8 * n} + 8 [x]\n"
        for n, each in enumerate(letters, 1)
    )
    flags = read(tmp_path, lines).column("flags").tolist()
    sync, meta, write, flush = events.SYNC, events.META, events.WRITE, events.FLUSH
    journal, discard = flush | events.FUA | write | sync | meta, events.DISCARD | write | sync
    assert flags == [0, events.AHEAD, write | sync, journal, discard, flush, meta, write]


def test_other_lines_are_counted_and_the_summary_is_not(tmp_path: Path) -> None:
    junk = "  <==== 'I' means Inserted ====>\n\n8,0 x 1 2.3 4 Q R 1 + 2 [a]\n 8,0 1 1 1.000000000\n"
    summary = "CPU0 (sda):\n Reads Queued:           1,        4KiB\nThroughput (R/W): 1\n"
    trace = read(tmp_path, STARVED + junk + STARVED + summary)
    assert trace.losses.of(Loss.UNKNOWN) == {"trace.txt": 3}
    assert len(trace) == 10


@pytest.mark.parametrize("sector", ["123-", "12x4", "-1"])
def test_a_damaged_sector_is_no_event_without_one(tmp_path: Path, sector: str) -> None:
    line = f"8,16 3 11 0.000107501 12 C DS {sector} + 8 [0]\n"
    trace = read(tmp_path, STARVED + line)
    assert trace.losses.of(Loss.UNKNOWN) == {"trace.txt": 1}
    assert len(trace) == len(read(tmp_path, STARVED))


def test_large_numbers_errors_and_odd_names(tmp_path: Path) -> None:
    lines = (
        "259,1048575 128 12345678 12345.678901234 4194304  Q   R 281474976710655 + 8 [a b] c]\n"
        "259,1048575 128 12345679 12345.678901235 4194304  C   R 281474976710655 + 8 [65531]\n"
        "259,1048575 128 12345680 12345.678901236 4194304  C   R 281474976710655 + 8 [-5]\n"
    )
    trace = read(tmp_path, lines)
    assert trace.column("sector").tolist() == [281474976710655] * 3
    assert trace.column("device")[0] == 259 << 20 | 1048575
    assert trace.column("pid")[0] == 4194304
    assert trace.column("error").tolist() == [0, -5, -5]
    assert trace.names["name"].tolist() == [b"a b] c"]
    assert trace.column("time").tolist() == [0, 1, 2]


@pytest.mark.parametrize("cut", [1, 3, 20, 70])
def test_a_line_that_is_cut_is_a_loss(tmp_path: Path, cut: int) -> None:
    trace = read(tmp_path, (STARVED + STARVED)[:-cut])
    whole = cut == 1  # without its line break, the line is whole
    assert len(trace) == 10 - (not whole)
    assert bool(trace.losses.of(Loss.CUT)) is not whole


@pytest.mark.slow
def test_chunks_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unpack(tmp_path, "starved")
    whole = read_trace(str(tmp_path / "starved.txt"))
    monkeypatch.setattr(text, "_CHUNK", 1000)
    parts = read_trace(str(tmp_path / "starved.txt"))
    for name in whole.events:
        assert whole.column(name).tolist() == parts.column(name).tolist(), name
    assert parts.losses == whole.losses


@pytest.mark.slow
@given(st.lists(st.text(max_size=60), max_size=20))
def test_any_text_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    content = STARVED + "\n".join(lines)
    trace = read(tmp_path_factory.mktemp("text"), content.encode("utf-8", "surrogatepass"))
    assert len(trace) >= 5


@pytest.mark.ends
@pytest.mark.parametrize("seed", range(20))
def test_damage_anywhere_raises_nothing_else(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    unpack(tmp_path, "starved")
    data = bytearray((tmp_path / "starved.txt").read_bytes()[:40_000])
    for _ in range(chance.randrange(1, 200)):
        at = chance.randrange(len(data))
        data[at : at + chance.randrange(8)] = chance.randbytes(chance.randrange(8))
    trace = read(tmp_path, bytes(data))
    assert 300 < len(trace) < 700
    pair(trace)


_ORACLE = re.compile(
    rb"""
    \ *(\d{1,9}),(\d{1,9})\ +(\d{1,9})\ +(\d{1,15})\ +(\d{1,9})\.(\d{9})\ +(\d{1,9})
    (?:\ +[^,\ ]*,\S*)?\ +(?:
        m\ +\S.*
        | ([QGIMFSPXDRC](?=\ .*\]$)|UT?|[AB]|ABORT|DRV_DATA|ZONE_(?:UN)?PLUG|ZONE_MGMT)
          \ +(\S+)(?=\ |$)
          (?:\ +(\d{1,16})\ +(?:[+/]\ +(\d{1,16})(?=\ |$)|(?=[\[(])) | (?=\ *(?:[\[(]|$)))
          [^\[]*(?:\[(.*)\])?.*
    )""",
    re.VERBOSE,
)
"""What a line is, byte by byte."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_damaged_lines_are_what_they_are_byte_by_byte(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    unpack(tmp_path, "starved")
    sound = (tmp_path / "starved.txt").read_bytes().partition(b"CPU0")[0].splitlines()
    lines = []
    for line in chance.choices(sound, k=3000):
        damaged = bytearray(line)
        for _ in range(chance.randrange(3)):
            at = chance.randrange(len(damaged))
            some = bytes(chance.choices(b" 0,.+/[](19QDmUCX\0\x1f-", k=2))
            damaged[at : at + chance.randrange(3)] = chance.choice((some, some, b"987654321"))
        lines.append(bytes(damaged).strip() or b"x")
    whole = [found for found in map(_ORACLE.fullmatch, lines) if found]
    found = text._Lines(b"\n".join(lines) + b"\n")
    assert len(found.action) == len(whole)
    assert sum(map(bool, found.others())) == len(lines) - len(whole)
    for number, column in ((3, "cpu"), (4, "sequence"), (7, "pid"), (10, "sector"), (11, "length")):
        assert getattr(found, column).tolist() == [int(each[number] or 0) for each in whole], column
    assert found.time.tolist() == [int(each[5] + each[6]) for each in whole]
    begin, stop = found.brackets
    for row, each in enumerate(whole):
        if each[12] and text._IS_BRACKETED[found.action[row]]:
            assert found.text[begin[row] : stop[row]].tobytes() == each[12].translate(
                text._NO_CONTROLS
            )


def test_other_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError):
        read(tmp_path, "hello\nworld\n" * 1000)


UNKNOWN = Loss.UNKNOWN, "trace.txt"
_LINE = b"  8,0    0        %d     0.00000000%d     %d  %c   W 8 + 8 [%s]\n"
LIFE = b"".join(_LINE % (n, n, 7, letter, b"fio") for n, letter in enumerate(b"QGID", 1))
LIFE += _LINE % (5, 5, 0, ord("C"), b"-5")


def test_line_ends_of_windows_change_nothing(tmp_path: Path) -> None:
    plain, other = (read(tmp_path, each) for each in (LIFE, LIFE.replace(b"\n", b"\r\n")))
    for name in EVENT.names or ():
        assert plain.column(name).tolist() == other.column(name).tolist()
    assert other.column("error")[-1] == -5
    assert other.names["name"].tolist() == plain.names["name"].tolist() == [b"fio"]


def test_cgroups_before_actions_are_no_words_of_theirs(tmp_path: Path) -> None:
    said = b"  8,0    0        0     0.000000002     7 a1,1f  m   N bfq7S dispatched\n"
    trace = read(tmp_path, LIFE.replace(b"  7  G ", b"  7 a1,1f  G ") + said)
    assert len(trace) == 5
    assert trace.queues[trace.messages["queue"][0]] == b"bfq7S"
    assert not trace.losses.of(Loss.UNKNOWN)


@pytest.mark.parametrize("line", range(5))
def test_a_line_that_lacks_its_end_is_no_event(tmp_path: Path, line: int) -> None:
    lines = LIFE.splitlines(keepends=True)
    for cut in range(45, len(lines[line]) - 2):
        made = [*lines]
        made[line] = made[line][:cut] + b"\n"
        trace = read(tmp_path, b"".join(made))
        assert len(trace) == 4
        assert trace.losses[UNKNOWN] == 1


def test_lines_of_zeros_and_junk_like_a_summary_are_counted(tmp_path: Path) -> None:
    junk = bytes(40) + b"\n" + b"CPU\nTotal nonsense\nInput\n" + b"\n"
    assert read(tmp_path, LIFE + junk + LIFE).losses[UNKNOWN] == 4
    summary = b"CPU0 (8,0):\n Reads Queued: 1\n\nTotal (8,0):\n Reads Queued: 1\n"
    begin = b"Input file sda.blktrace.0 added\n"
    trace = read(tmp_path, begin + LIFE + b"junk\n" + LIFE + summary + b"junk of it\n")
    assert trace.losses[UNKNOWN] == 1
    assert len(trace) == 10
    # An event ends a summary: files may be joined.
    assert read(tmp_path, LIFE + summary + LIFE + b"junk\n").losses[UNKNOWN] == 1
