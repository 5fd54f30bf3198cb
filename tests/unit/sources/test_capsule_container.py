# SPDX-License-Identifier: LGPL-2.1-or-later
"""Capsule files: complete, truncated, corrupt, inconsistent."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import drgn
import numpy as np
import pytest
import zstandard

from kcensus.analyses import analyses
from kcensus.outputs import OutputError
from kcensus.sources import TargetError, open_target
from kcensus.sources.capsule import BadCapsule, container
from kcensus.sources.faults import REASONS, UNRECORDED, reason
from tests.unit.capsules import HEADER, RUN, put_together, recorded, take_apart, with_manifest

PAGE = 4096


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("capsule") / "good.capsule"
    return recorded(path, [analyses()["slab"]]).read_bytes()


def refused(data: bytes, path: Path) -> str:
    path.write_bytes(data)
    with pytest.raises(TargetError) as error:
        open_target(str(path))
    text = str(error.value)
    assert text.isprintable()
    return text


def test_a_capsule_written_after_the_specification_opens(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "case.capsule"
    path.write_bytes(put_together(take_apart(good)))
    target = open_target(str(path))
    assert (target.kind, target.format) == ("capsule", "capsule of synthetic")
    assert target.recorded_for == ("slab",)
    assert container.Reader(str(path)).verify() == []


@pytest.mark.slow
def test_truncated_anywhere(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "case.capsule"
    for size in range(len(good)):
        path.write_bytes(good[:size])
        with pytest.raises(TargetError):
            open_target(str(path))


@pytest.mark.slow
def test_every_corrupt_byte_outside_of_pages_is_detected(good: bytes, tmp_path: Path) -> None:
    """Pages are checked when they are read, by the checksums of their frames."""
    path = tmp_path / "case.capsule"
    pages = _manifest(good)["sections"]["pages"]
    for at in range(0, len(good), 3):
        if 0 <= at - pages["offset"] < pages["size"]:
            continue
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
        with pytest.raises(TargetError):
            open_target(str(path))


def _manifest(data: bytes) -> Any:
    _, _, offset, size, _, _ = HEADER.unpack(data[: HEADER.size])
    return json.loads(zstandard.ZstdDecompressor().decompress(data[offset : offset + size]))


def _changed(data: bytes, manifest: Any) -> bytes:
    raw = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
    return with_manifest(data[: HEADER.unpack(data[: HEADER.size])[2]], raw)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        (1, 2, "version 2"),
        (2, 1 << 63, "is truncated"),
        (2, (1 << 64) - 1, "is truncated"),
        (3, 1 << 40, "manifest is too large"),
        (4, 1 << 40, "manifest is too large"),
        (4, 1, "the manifest does not decompress to its declared size"),
        (5, bytes(32), "manifest does not match its digest"),
    ],
)
def test_an_inconsistent_header(
    good: bytes, tmp_path: Path, field: int, value: Any, sentence: str
) -> None:
    header = list(HEADER.unpack(good[: HEADER.size]))
    header[field] = value
    assert sentence in refused(HEADER.pack(*header) + good[HEADER.size :], tmp_path / "case")


@pytest.mark.parametrize("name", ["pages", "index", "lookups", "vmcoreinfo"])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        *(({"offset": at}, "table of sections is invalid") for at in (0, -1, 1 << 70)),
        *(({"raw_size": size}, "table of sections is invalid") for size in (1 << 63, "1")),
        *(({"size": 1 << 30}, "table of sections"), ({"sha256": None}, "table of sections")),
        ({"raw_size": 1 << 40}, "index does not match|too large"),
        ({"raw_size": 7}, "index does not match|too large|declared size"),
        ({"sha256": "0" * 64}, "does not match its digest"),
    ],
)
def test_an_inconsistent_section(
    good: bytes, tmp_path: Path, name: str, change: dict[str, Any], sentence: str
) -> None:
    manifest = _manifest(good)
    manifest["sections"][name].update(change)
    data = _changed(good, manifest)
    if name == "pages" and "sha256" in change and change["sha256"]:
        # Only verify() reads all pages.
        path = tmp_path / "case.capsule"
        path.write_bytes(data)
        assert container.Reader(str(path)).verify() == ["pages"]
        return
    assert any(part in refused(data, tmp_path / "case") for part in sentence.split("|"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        *(
            (lambda places, name=name: places.pop(name), f"section '{name}' is missing")
            for name in ("pages", "index", "lookups", "vmcoreinfo")
        ),
        (
            lambda places: places.update(
                more=places["lookups"] | {"offset": places["lookups"]["offset"] + 1}
            ),
            "overlap",
        ),
        (
            lambda places: places.update(
                dict.fromkeys(map(str, range(64)), places["index"] | {"size": 0, "raw_size": 0})
            ),
            "table of sections is invalid",
        ),
    ],
    ids=range(6),
)
def test_other_sections(
    good: bytes, tmp_path: Path, change: Callable[[Any], object], sentence: str
) -> None:
    manifest = _manifest(good)
    change(manifest["sections"])
    assert sentence in refused(_changed(good, manifest), tmp_path / "case")


@pytest.mark.parametrize(
    "manifest",
    [b"", b"[]", b"null", b"{", b'{"sections": []}', b"[" * 100_000, b"\xff\xfe", b"1" * 10_000],
    ids=range(8),
)
def test_an_invalid_manifest(good: bytes, tmp_path: Path, manifest: bytes) -> None:
    assert "is corrupt" in refused(_changed(good, manifest), tmp_path / "case")


def test_bombs_are_refused_by_their_declared_sizes(good: bytes, tmp_path: Path) -> None:
    parts = take_apart(good)
    parts.sections["lookups"] = bytes(8 << 20)
    assert "'lookups' is too large" in refused(put_together(parts), tmp_path / "case")
    parts = take_apart(good)
    index = struct.pack("<QQ", 0, 40 << 20) + bytes(160 << 20)
    assert "'index' is too large" in refused(put_together(parts, index), tmp_path / "case")


@pytest.mark.slow
def test_a_frame_that_holds_more_than_its_section_says(tmp_path: Path) -> None:
    """zstandard would allocate the size that the frame states."""
    stored = zstandard.ZstdCompressor().compress(bytes(1 << 30))
    place = {
        "offset": HEADER.size,
        "size": len(stored),
        "raw_size": 100_000,
        "sha256": hashlib.sha256(stored).hexdigest(),
    }
    manifest = json.dumps({"sections": {"vmcoreinfo": place}}).encode()
    path = tmp_path / "case.capsule"
    path.write_bytes(with_manifest(bytes(HEADER.size) + stored, manifest))
    with pytest.raises(BadCapsule, match="declared size"):
        container.Reader(str(path)).section("vmcoreinfo")


def _runs(*rows: tuple[int, int, int]) -> np.ndarray:
    return np.array(list(rows), RUN)


@pytest.mark.parametrize(
    "index",
    [
        *(_runs((0, 0, 0)), _runs((5, 2, 0), (6, 2, 0)), _runs((5, 2, 0), (1, 2, 0)), _runs()),
        *(_runs(((1 << 64) - 1, 1, 0)), _runs((1 << 60, 1, 1)), _runs((0, (1 << 32) - 1, 0))),
        *(_runs((0, 1, len(REASONS) + 1)), b"", bytes(15), bytes(17)),
        struct.pack("<QQ", 1 << 63, 1 << 63),
        struct.pack("<QQ", (1 << 60) - 1, 4) + bytes(16),
        struct.pack("<QQ", 1, 0) + bytes(16),
    ],
    ids=range(14),
)
def test_an_index_of_other_pages(good: bytes, tmp_path: Path, index: bytes | np.ndarray) -> None:
    parts = take_apart(good)
    if isinstance(index, np.ndarray):
        parts.runs = index
    data = put_together(parts, index if isinstance(index, bytes) else None)
    assert "the index" in refused(data, tmp_path / "case")


@pytest.mark.parametrize(
    "more",
    [(1 << 60, 1, 1), (1 << 40, 0, 0), (0, 1, 1), (1 << 40, 1, len(REASONS) + 1)],
    ids=["frame", "length", "order", "status"],
)
def test_an_invalid_run_of_pages(good: bytes, tmp_path: Path, more: tuple[int, int, int]) -> None:
    parts = take_apart(good)
    parts.runs = np.append(parts.runs, _runs(more))
    assert "invalid run" in refused(put_together(parts), tmp_path / "case")


def test_a_block_that_is_too_large(written: Path) -> None:
    reader = container.Reader(str(written))
    index = replace(reader.index(PAGE), offsets=np.array([0, 1 << 30]))
    with pytest.raises(BadCapsule, match="block 0 is too large"):
        reader.block(index, 0, PAGE)


def test_the_header_of_another_format(good: bytes, tmp_path: Path) -> None:
    path = tmp_path / "case.capsule"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + good[8:])
    with pytest.raises(BadCapsule, match="is not a capsule"):
        container.Reader(str(path))


def test_a_path_that_is_not_a_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", tmp_path / "none", "/dev/null", "\0", "a" * 5000):
        assert not container.is_capsule(str(path))


RUNS = _runs((2, 300, 0), (302, 1, 1), (303, 2, 0), (400, 300, 0), (1 << 40, 1, 5))
STORED = 602


def memory() -> bytes:
    return b"".join(number.to_bytes(8, "little") * (PAGE // 8) for number in range(STORED))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "pages.capsule"
    data, size = memory(), container.BLOCK_PAGES * PAGE
    with container.writing(path) as writer:
        blocks = [data[start : start + size] for start in range(0, len(data), size)]
        assert writer.pages(lambda: RUNS, blocks) == len(data)
        writer.manifest({})
    return path


@pytest.fixture
def store(written: Path) -> container.PageStore:
    return container.PageStore(container.Reader(str(written)), PAGE)


@pytest.mark.parametrize(
    ("frame", "position", "pages"),
    [(2, 0, 1), (2, 0, 300), (257, 255, 2), (3, 1, 256), (303, 300, 2), (400, 302, 300)],
)
@pytest.mark.parametrize(("skip", "drop"), [(0, 0), (5, 9), (4095, 0)])
def test_reads_across_blocks(
    store: container.PageStore, frame: int, position: int, pages: int, skip: int, drop: int
) -> None:
    expected = memory()[position * PAGE + skip : (position + pages) * PAGE - drop]
    assert store.read(frame * PAGE + skip, pages * PAGE - skip - drop) == expected


@pytest.mark.parametrize(
    ("frame", "pages", "at", "why"),
    [
        (0, 1, 0, UNRECORDED),
        (1, 3, 1, UNRECORDED),
        (301, 2, 302, REASONS[0]),
        (302, 1, 302, REASONS[0]),
        (304, 2, 305, UNRECORDED),
        (699, 2, 700, UNRECORDED),
        (1 << 40, 1, 1 << 40, REASONS[4]),
        (1 << 51, 1, 1 << 51, UNRECORDED),
    ],
)
def test_missing_pages_have_a_reason(
    store: container.PageStore, frame: int, pages: int, at: int, why: str
) -> None:
    with pytest.raises(drgn.FaultError) as error:
        store.read(frame * PAGE, pages * PAGE)
    assert reason(error.value) == why
    assert error.value.address == at * PAGE


@pytest.mark.parametrize("why", REASONS)
def test_reasons_survive_drgn(why: str) -> None:
    assert reason(drgn.FaultError(why, 0)) == why


def test_large_pages_are_not_cached_without_bounds(tmp_path: Path) -> None:
    size = 1 << 16
    with container.writing(tmp_path / "large") as writer:
        blocks = [bytes(container.BLOCK_PAGES * size)] * 6
        writer.pages(lambda: _runs((0, 6 * container.BLOCK_PAGES, 0)), blocks)
        writer.manifest({})
    store = container.PageStore(container.Reader(str(tmp_path / "large")), size)
    for block in range(6):
        assert store.read(block * container.BLOCK_PAGES * size, 8) == bytes(8)
    assert store._block.cache_info().currsize == 4


def test_corrupt_pages_are_not_unreadable_pages(written: Path, tmp_path: Path) -> None:
    data = bytearray(written.read_bytes())
    data[HEADER.size + 40] ^= 1
    path = tmp_path / "case.capsule"
    path.write_bytes(data)
    with pytest.raises(BadCapsule, match="is corrupt"):
        container.PageStore(container.Reader(str(path)), PAGE).read(2 * PAGE, 8)
    assert not issubclass(BadCapsule, ValueError)
    assert container.Reader(str(path)).verify() == ["pages"]
    # Only the owner may read it.
    assert written.stat().st_mode & 0o777 == 0o600


def test_a_section_that_exceeds_the_limit_is_not_written(tmp_path: Path) -> None:
    failing = pytest.raises(OutputError, match="exceeds")
    with failing, container.writing(tmp_path / "out") as writer:
        writer.section("lookups", bytes((4 << 20) + 1))
    assert list(tmp_path.iterdir()) == []
