# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files of blktrace: byte orders, versions, payloads, and damage."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcensus.sources.blktrace import binary
from kcensus.sources.blktrace.events import EVENT, Loss, Trace, TraceError
from kcensus.sources.blktrace.files import read_trace
from tests.unit.sources.blktrace.recorded import Event, life, message, name_of, packed, unpack

pytestmark = pytest.mark.ends

NOTE_SIZE = 48


def resident(key: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{key}:")[1].split()[0]) * 1024


def read(directory: Path, data: bytes | bytearray) -> Trace:
    (directory / "sda.blktrace.0").write_bytes(data)
    return read_trace(str(directory / "sda"))


def some_events(count: int = 300) -> list[Event]:
    chance = random.Random(7)
    made = [name_of(1, 100, b"fio")]
    for step in range(count):
        made += life(8 * step, *(1000 * step + each for each in (10, 20, 30, 40, 50)))
        made.append(message(1000 * step + 60, "cfq1S " + "x" * chance.randrange(60)))
    return made


@pytest.mark.parametrize("version", [7, 8])
@pytest.mark.parametrize("order", ["<", ">"])
def test_each_byte_order_and_version_is_read(tmp_path: Path, order: str, version: int) -> None:
    trace = read(tmp_path, packed(some_events(), order, version))
    assert trace.counts == {(8 << 20, action): 300 for action in (1, 4, 7, 8, 12)}
    assert trace.column("time")[:6].tolist() == [0, 10, 20, 30, 40, 1000]
    assert trace.column("sector")[-1] == 8 * 299
    assert len(trace.messages["time"]) == 300
    assert set(trace.queues) == {b"", b"cfq1S"}
    assert trace.names["name"].tolist() == [b"fio"]
    assert not trace.losses.of(Loss.DAMAGED)


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=40), st.integers(60, 400))
def test_payloads_of_any_length_and_content_are_skipped(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes], chunk: int
) -> None:
    magic = (0x65617407).to_bytes(4, "little")
    every = [payload + magic * (step % 3) for step, payload in enumerate(payloads)]
    made = [Event("U", step, payload=each, flags=0) for step, each in enumerate(every)]
    path = tmp_path_factory.mktemp("payloads") / "x"
    size = path.write_bytes(packed(made))
    room = {name: np.empty(binary.capacity(size), EVENT[name]) for name in EVENT.names or ()}
    old, binary._CHUNK = binary._CHUNK, chunk
    try:
        part = binary.read(path, room, size)
    finally:
        binary._CHUNK = old
    assert part.events["time"].tolist() == [*range(len(payloads))]
    assert sum(part.losses.values()) == 0


@pytest.mark.parametrize("cut", [1, 47, 48, 60])
def test_a_truncated_file_is_read_up_to_the_last_whole_event(tmp_path: Path, cut: int) -> None:
    data = packed(some_events(20)[:-1])  # ends with a C, which has no payload
    trace = read(tmp_path, data[:-cut])
    lost = -(-cut // NOTE_SIZE)
    assert len(trace) == 100 - lost
    assert sum(trace.losses.of(Loss.CUT).values()) == lost * NOTE_SIZE - cut


def test_garbage_between_events_costs_no_event_but_those_it_replaces(tmp_path: Path) -> None:
    made = life(0, *range(5)) * 100
    data = bytearray(packed(made))
    data[48 * 10 : 48 * 10] = random.Random(1).randbytes(1001)
    data[48 * 300 + 1001 + 46 : 48 * 300 + 1001 + 48] = b"\xff\xff"  # a length
    trace = read(tmp_path, data)
    assert len(trace) == 500
    assert trace.losses.of(Loss.DAMAGED) == {"sda.blktrace.0": 1001}


def test_zeros_that_blktrace_has_not_written_yet_are_told_from_damage(tmp_path: Path) -> None:
    data = packed(life(0, 10, 11, 12, 13, 14)) + (0x65617407).to_bytes(4, "little")
    trace = read(tmp_path, data + bytes(1 << 20))
    assert trace.column("time").tolist() == [*range(5)]
    assert trace.losses.of(Loss.UNKNOWN) == {"sda.blktrace.0": 1}
    assert trace.losses.of(Loss.CUT) == {"sda.blktrace.0": (1 << 20) - 44}
    assert not trace.losses.of(Loss.DAMAGED)


def test_a_file_of_magic_numbers_alone_is_abandoned_with_bounded_work(tmp_path: Path) -> None:
    magic = (0x65617407).to_bytes(4, "little")
    (tmp_path / "sda.blktrace.0").write_bytes(packed(life(0, *range(5))) + magic * (1 << 20))
    trace = read_trace(str(tmp_path / "sda"))
    assert sum(trace.losses.of(Loss.DAMAGED).values()) > 3 << 20
    assert len(trace) <= 2 * binary._MAX_BREAKS


def test_other_files_are_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "sda.blktrace.0").write_bytes(random.Random(2).randbytes(100_000))
    (tmp_path / "empty.blktrace.0").write_bytes(b"")
    version = packed(life(0, 1)).replace(b"\x07tae", b"\x09tae")
    (tmp_path / "new.blktrace.0").write_bytes(version)
    for name in ("sda", "empty", "new", "sda.blktrace.0", "none", "none/none", "\x1b[2J"):
        with pytest.raises(TraceError) as error:
            read_trace(str(tmp_path / name))
        assert "\x1b" not in str(error.value)
        assert "\n" not in str(error.value)


def test_a_missing_file_of_a_cpu_and_skipped_numbers_are_losses(tmp_path: Path) -> None:
    made = life(0, *range(5))
    made[3].sequence = made[4].sequence = 0
    for cpu in (0, 1, 3):
        (tmp_path / f"sda.blktrace.{cpu}").write_bytes(packed(made[: 5 - cpu]))
    skipping = [Event("P", time, sequence=number, flags=0) for time, number in ((9, 1), (10, 12))]
    (tmp_path / "sda.blktrace.4").write_bytes(packed(skipping))
    trace = read_trace(str(tmp_path / "sda"))
    assert dict(+trace.losses) == {(Loss.SKIPPED, "sda.blktrace.4"): 10}
    assert trace.offline == 1


def test_a_directory_holds_all_devices(tmp_path: Path) -> None:
    for device in (1, 2):
        made = life(0, *range(5), device=device << 20)
        (tmp_path / f"disk{device}.blktrace.0").write_bytes(packed(made))
    trace = read_trace(str(tmp_path))
    assert sorted(set(trace.column("device").tolist())) == [1 << 20, 2 << 20]


@pytest.mark.slow
def test_memory_grows_with_the_events_and_not_with_the_file(tmp_path: Path) -> None:
    # 64 KiB of payload for each event.
    made = [Event("U", step, payload=bytes(0xFFFF), flags=0) for step in range(1500)]
    (tmp_path / "sda.blktrace.0").write_bytes(packed(made))
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    trace = read_trace(str(tmp_path / "sda"))
    assert len(trace) == 1500
    # There is room for as many events as would fit into the file, but it is not touched.
    assert resident("VmHWM") - before < 24 << 20


@pytest.mark.parametrize("seed", range(40))
def test_damage_anywhere_raises_nothing_else(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    unpack(tmp_path, "bfq")
    path = tmp_path / "bfq.blktrace.0"
    data = bytearray(path.read_bytes()[:60_000])
    for _ in range(chance.randrange(1, 60)):
        at = chance.randrange(len(data))
        data[at : at + chance.randrange(1, 64)] = chance.randbytes(chance.randrange(64))
    if chance.random() < 0.3:
        data = bytearray(data[chance.randrange(64) :])
    path.write_bytes(data)
    trace = read_trace(str(tmp_path / "bfq"))
    assert sum(trace.losses.of(Loss.DAMAGED).values()) <= len(data)
    assert all((trace.events["time"][span] >= 0).all() for span in trace.spans)


@pytest.mark.parametrize(
    ("seconds", "kept"),
    [
        ((100, 101, 1, 102, 103), (100, 101, 102, 103)),  # too early
        ((1, 9_000, 2, 9_000, 3, 4), (1, 2, 3, 4)),  # two too late
        ((1, 2, 9_000, 9_001), (1, 2, 9_000, 9_001)),  # a pause
        ((9_000, 1, 2), (1, 2)),
        ((1, 2, 90_000), (1, 2)),  # a day later
        ((1, 2, 80_000), (1, 2, 80_000)),
    ],
)
def test_an_event_is_displaced_if_it_is_off_both_neighbours(
    tmp_path: Path, seconds: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    made = [Event("P", each * 10**9, flags=0) for each in seconds]
    trace = read(tmp_path, packed(made))
    assert (trace.column("time") // 10**9 + kept[0]).tolist() == [*kept]
    assert sum(trace.losses.of(Loss.DISPLACED).values()) == len(seconds) - len(kept)


@pytest.mark.parametrize("start", [b"\x7fELF\x02", b"KDUMP   ", b"makedumpfile", b"\x1f\x8b"])
def test_dumps_and_compressed_files_are_no_traces(start: bytes, tmp_path: Path) -> None:
    """Their pages may hold what blktrace was about to write."""
    path = tmp_path / "vmcore"
    path.write_bytes(start + bytes(512) + packed(life(8, 0, 10, 20, 30, 40)))
    with pytest.raises(TraceError, match=r"vmcore' is (an ELF|a memory dump|compressed)"):
        read_trace(str(path))


def test_an_idle_disk_and_a_pipe_are_refused(tmp_path: Path) -> None:
    (tmp_path / "sda.blktrace.0").write_bytes(packed([name_of(5, 7, b"fio")]))
    (tmp_path / "sda.blktrace.1").write_bytes(b"")
    with pytest.raises(TraceError, match="without events"):
        read_trace(str(tmp_path / "sda"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceError, match="not a regular file"):
        read_trace(str(tmp_path / "pipe"))
