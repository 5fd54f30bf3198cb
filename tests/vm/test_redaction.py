# SPDX-License-Identifier: LGPL-2.1-or-later
"""Redacted capsules of real kernels, compared with the same capsules unredacted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import drgn
import numpy as np
import pytest
from drgn.helpers.linux.mm import follow_phys, virt_to_phys
from drgn.helpers.linux.pid import for_each_task
from drgn.helpers.linux.slab import find_slab_cache, slab_cache_for_each_allocated_object

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.capsule import create
from kcensus.engine.memory import Memory
from kcensus.engine.slub.slabs import SlabMap
from kcensus.kernel.kernel import Kernel
from kcensus.progress import SilentProgress
from kcensus.redaction import Redaction
from kcensus.redaction.user_names import kernel_words
from kcensus.render.json import write_json
from kcensus.reports import report
from kcensus.results import Result
from kcensus.results.tables import Table
from kcensus.sources import Target, open_target
from kcensus.sources.capsule.container import Reader
from kcensus.sources.capsule.pages import PageStore
from kcensus.sources.capsule.recorder import Recorder
from tests.lab import Dump, build

_KEY = b"the same for all of them"
_MANIFEST: dict[str, Any] = {"kernel": "", "format": "", "analyses": [], "redacted": []}
_KERNELS_OWN = {b"sysfs", b"proc", b"debugfs", b"tracefs", b"securityfs"}
_KERNELS_OWN |= {b"anon_inodefs", b"sockfs", b"pipefs", b"cgroup2"}


@dataclass(frozen=True)
class Capsules:
    """Three capsules of one dump."""

    plain: Path
    wiped: Path
    """Free objects zeroed, names kept."""
    redacted: Path


class Dentry(NamedTuple):
    """A dentry that a slow walk found."""

    address: int
    place: int
    """Address of the name."""
    name: bytes
    users: bool
    """Whether users choose names in its file system."""


@pytest.fixture(scope="module")
def dentries(mixed_target: Target) -> list[Dentry]:
    cache = find_slab_cache(mixed_target.prog, "dentry")
    file_systems: dict[int, bytes] = {}
    found = []
    for dentry in slab_cache_for_each_allocated_object(cache, "struct dentry"):
        owner = int(dentry.d_sb)
        if owner not in file_systems:
            file_systems[owner] = dentry.d_sb.s_type.name.string_()
        name = dentry.d_name.name
        users = file_systems[owner] not in _KERNELS_OWN
        found.append(Dentry(int(dentry), int(name), name.string_(), users))
    return found


@pytest.fixture(scope="module")
def capsules(mixed_target: Target, tmp_path_factory: pytest.TempPathFactory) -> Capsules:
    directory = tmp_path_factory.mktemp("redaction")
    paths = Capsules(*(directory / name for name in ("plain", "wiped", "redacted")))
    every = list(analyses().values())
    create(mixed_target, paths.plain, every)
    made = create(mixed_target, paths.redacted, every, redact=["names"], key=_KEY)
    assert made.unredacted == []
    recorder = Recorder(mixed_target)
    report(Context.of(recorder.target), every)
    wipe = Redaction(mixed_target, recorder.touched, None, SilentProgress())
    manifest = {**_MANIFEST, "analyses": [analysis.name for analysis in every]}
    recorder.write(paths.wiped, manifest, level=1, progress=SilentProgress(), scrub=wipe)
    return paths


@pytest.fixture(scope="module")
def everything(
    mixed_target: Target, dentries: list[Dentry], tmp_path_factory: pytest.TempPathFactory
) -> Capsules:
    """Capsules of all dentries and their names, including those that no analysis reads."""
    directory = tmp_path_factory.mktemp("everything")
    paths = Capsules(*(directory / name for name in ("plain", "wiped", "redacted")))
    recorder = Recorder(mixed_target)
    report(Context.of(recorder.target), analyses().values())
    for dentry in dentries:
        recorder.target.prog.read(dentry.address, 192)
        recorder.target.prog.read(dentry.place, len(dentry.name) + 1)
    scrub = Redaction(mixed_target, recorder.touched, _KEY, SilentProgress())
    for path, hook in ((paths.plain, None), (paths.redacted, scrub)):
        recorder.write(path, _MANIFEST, level=1, progress=SilentProgress(), scrub=hook)
    return paths


def _pages(path: Path) -> bytes:
    reader = Reader(str(path))
    index = reader.index(4096)
    return b"".join(reader.block(index, at, 4096) for at in range(len(index.offsets) - 1))


def _sections(path: Path) -> bytes:
    reader = Reader(str(path))
    parts = [reader.section(name) for name in ("lookups", "vmcoreinfo", "index")]
    return b"\0".join([*parts, json.dumps(reader.manifest).encode()])


def _patterns(dump: Dump) -> list[tuple[bytes, re.Pattern[bytes]]]:
    """Return the patterns of names that the guest's program created, with their longest literal
    part, if that is long enough to be unambiguous."""
    created = json.loads(dump.truth["created.json"])
    texts = {names["pattern"] for names in created["names"]}
    paths = [names["dir"] for names in created["names"]]
    for path in paths + [memcg["path"] for memcg in created["memcgs"]]:
        texts |= set(path.split("/"))
    kinds = {"d": rb"\d+", "a": rb"[0-9A-Za-z]+", "x": rb"[0-9a-f]+"}
    patterns = []
    for text in sorted(texts):
        parts = [part.encode(errors="surrogateescape") for part in _FILLED_IN.split(text)]
        literal = max(parts[::2], key=len)
        if len(literal) >= 4:
            raw = [
                kinds[part.decode()] if at % 2 else re.escape(part) for at, part in enumerate(parts)
            ]
            patterns.append((literal, re.compile(_BEFORE + b"".join(raw) + _AFTER)))
    return patterns


_FILLED_IN = re.compile(r"\{([dax])\d*\}")
_BEFORE, _AFTER = rb"(?<![0-9A-Za-z_.&%-])", rb"(?=[\0-\x1f/]|$)"


def _occurrences(literal: bytes, pattern: re.Pattern[bytes], data: bytes) -> Iterator[bytes]:
    """Yield the matches of a pattern; ``literal`` narrows the search, which is slow without."""
    at = data.find(literal)
    while at >= 0:
        match = pattern.search(data, max(at - 64, 0), at + 128)
        if match:
            yield match[0]
        at = data.find(literal, at + 1)


def _strings(data: bytes) -> set[bytes]:
    return set(re.split(rb"[\0-\x1f\x7f/]+", data)) | set(re.split(rb"[\0-\x1f\x7f-\xff/]+", data))


def _image(target: Target) -> bytes:
    """The kernel's code and constants."""
    start, end = (target.prog.symbol(name).address for name in ("_stext", "__end_rodata"))
    image: bytes = target.prog.read(start, end - start)
    return image


def _kernels_own(target: Target) -> set[bytes]:
    """Return all words of the kernel, which users may have chosen, too."""
    return set(kernel_words(Kernel(target.prog))) | _strings(_image(target))


def test_no_name_of_the_guest_is_left(
    mixed_dump: Dump, mixed_target: Target, everything: Capsules
) -> None:
    plain, redacted = _pages(everything.plain), _pages(everything.redacted)
    assert len(plain) == len(redacted)
    kernels, image = _kernels_own(mixed_target), _image(mixed_target)
    patterns = _patterns(mixed_dump)
    was = 0
    for literal, pattern in patterns:
        was += any(True for _ in _occurrences(literal, pattern, plain))
        left = set(_occurrences(literal, pattern, redacted)) - kernels
        left -= set(_occurrences(literal, pattern, image))  # at the ends of messages
        assert left == set(), pattern
        assert not pattern.search(_sections(everything.redacted))
    devices = re.findall(r"^([^:\n]+):", mixed_dump.truth["dmsetup-status"], re.MULTILINE)
    assert len(devices) == 5
    assert not {name.encode() for name in devices} & (_strings(redacted) - kernels)
    assert was > 0.9 * len(patterns)
    assert len(patterns) > 60


def test_no_dentry_keeps_its_name(
    mixed_target: Target, dentries: list[Dentry], everything: Capsules
) -> None:
    """Compare all dentries with a slow walk."""
    redacted = _pages(everything.redacted)
    tokens, kernels = _strings(redacted), _kernels_own(mixed_target)
    names = {dentry.name for dentry in dentries if dentry.users}
    telling = {name for name in names if len(name) >= 8} - kernels
    assert len(telling) > 10000
    # The pseudonym of a number may be another name.
    left = telling & tokens
    digits = {name for name in left if re.fullmatch(rb"[0-9a-f.-]+(\.\w+)?", name)}
    assert left - digits == set()
    assert len(digits) < 0.02 * len(telling)


def test_every_name_keeps_its_shape_and_its_equals(
    mixed_target: Target, dentries: list[Dentry], everything: Capsules
) -> None:
    """Each name keeps its length, and equal names stay equal."""
    capsule = _capsule_reader(everything.redacted, mixed_target)
    mapped: dict[bytes, bytes] = {}
    hash_place, same = drgn.offsetof(mixed_target.prog.type("struct dentry"), "d_name.hash"), 0
    for dentry in dentries:
        if not dentry.users:
            continue
        old = dentry.name
        new = capsule(dentry.place, len(old) + 1)
        assert new[-1] == 0
        assert len(new[:-1].partition(b"\0")[0]) == len(old)
        assert mapped.setdefault(old, new[:-1]) == new[:-1]
        if re.match(rb"[0-9A-Za-z]", old):
            assert new[0] != old[0]
        place = dentry.address + hash_place
        same += capsule(place, 4) == mixed_target.prog.read(place, 4)
    assert same < 3  # by chance, one in 2^32
    ascii_names = [old for old in mapped if old.isascii()]
    assert len({mapped[old] for old in ascii_names}) == len(ascii_names) > 10000


def _capsule_reader(path: Path, target: Target) -> Any:
    store = PageStore(Reader(str(path)), 4096)
    start = SlabMap(Memory(target.prog)).pages.direct_map
    return lambda address, size: store.read(address - start, size)


def test_free_memory_is_wiped(
    mixed_target: Target, dentries: list[Dentry], everything: Capsules
) -> None:
    """Free dentries that had content are zero except their freelist pointer."""
    cache = find_slab_cache(mixed_target.prog, "dentry")
    assert cache is not None
    size = int(cache.size)
    taken = np.array([dentry.address for dentry in dentries], np.uint64)
    slabs = np.unique(taken & ~np.uint64(4095))
    slots = (slabs[:, None] + np.arange(4096 // size, dtype=np.uint64) * np.uint64(size)).ravel()
    free = np.setdiff1d(slots, taken)
    if int(cache.oo.x) >> 16:
        pytest.fail("the slabs of dentries have several pages; look for the free ones otherwise")
    before = _capsule_reader(everything.plain, mixed_target)
    after = _capsule_reader(everything.redacted, mixed_target)
    place = int(cache.offset)
    dirty = 0
    assert len(free) > 10
    for address in free.tolist():
        raw = after(address, size)
        assert raw[:place].strip(b"\0") == raw[place + 8 :].strip(b"\0") == b""
        assert raw[place : place + 8] in (before(address + place, 8), bytes(8))
        dirty += before(address, size).count(b"\0") < size - 8
    assert dirty > 5


def _results(path: Path) -> list[Result]:
    made = report(Context.of(open_target(str(path))), analyses().values())
    assert [section.error for section in made.sections] == [""] * len(made.sections)
    return [replace(section.result, target="") for section in made.sections if section.result]


def test_analyses_need_nothing_of_free_memory(mixed_target: Target, capsules: Capsules) -> None:
    def documents(results: Sequence[Result], tmp: Path) -> list[str]:
        texts = []
        for result in results:
            with tmp.open("w+") as file:
                write_json(result, file)
                file.seek(0)
                texts.append(file.read())
        return texts

    made = report(Context.of(mixed_target), analyses().values())
    expected = [replace(section.result, target="") for section in made.sections if section.result]
    scratch = capsules.plain.with_name("json")
    assert documents(_results(capsules.wiped), scratch) == documents(expected, scratch)


def test_analyses_find_the_same_without_names(capsules: Capsules) -> None:
    plain, redacted = _results(capsules.plain), _results(capsules.redacted)
    assert [result.analysis for result in plain] == [result.analysis for result in redacted]
    for before, after in zip(plain, redacted, strict=True):
        assert _figures(after) == _figures(before)
        assert after.checks == before.checks
        assert len(after.gaps) == len(before.gaps)
        assert [(f.severity, f.patch, f.holds) for f in after.findings] == [
            (f.severity, f.patch, f.holds) for f in before.findings
        ]
        assert list(after.tables) == list(before.tables)
        for name, table in before.tables.items():
            assert _numbers(after.tables[name]) == _numbers(table), (before.analysis, name)


def _figures(result: Result) -> dict[str, Any]:
    return {
        name: figure.value
        for name, figure in result.summary.items()
        if not isinstance(figure.value, str)
    }


def _numbers(table: Table) -> list[tuple[Any, ...]]:
    """Return the rows without text, in an order that does not depend on names."""
    numbers = table.frame.select_dtypes(["number", "bool"])
    return sorted(map(tuple, numbers.fillna(-1).to_numpy().tolist()))


def test_names_in_results_are_pseudonyms(mixed_dump: Dump, capsules: Capsules) -> None:
    cgroups = {memcg["path"] for memcg in json.loads(mixed_dump.truth["created.json"])["memcgs"]}
    texts = [
        {str(text) for table in result.tables.values() for text in table.frame.to_numpy().ravel()}
        for path in (capsules.plain, capsules.redacted)
        for result in _results(path)
        if result.analysis == "slab"
    ]
    assert len(texts[0] & cgroups) > 30
    assert not texts[1] & cgroups


def test_the_manifest_states_the_redaction(capsules: Capsules) -> None:
    assert Reader(str(capsules.plain)).manifest["redacted"] == []
    assert Reader(str(capsules.redacted)).manifest["redacted"] == ["names"]


def test_the_key_decides(tmp_path: Path) -> None:
    dump = build("6.1", "mixed")
    target = open_target(str(dump.formats["elf"]), dump.debug)
    keys = {"one": _KEY, "same": _KEY, "random": None, "other": None}
    for name, key in keys.items():
        create(target, tmp_path / name, [analyses()["slab"]], redact=["names"], key=key)
    pages = {name: _pages(tmp_path / name) for name in keys}
    assert pages["one"] == pages["same"]
    assert len(set(pages.values())) == 3


def test_processes_and_the_host(mixed_dump: Dump) -> None:
    """The guest has no host name, so the test writes one into its memory."""
    target = open_target(str(mixed_dump.formats["elf"]), mixed_dump.debug)
    prog = target.prog
    field = prog["init_uts_ns"].name.nodename
    place = int(follow_phys(prog["init_mm"].address_of_(), field.address_))
    start = place & ~4095
    data = bytearray(prog.read(start, 8192, physical=True))
    data[place - start : place - start + 65] = b"db-seven.example.com".ljust(65, b"\0")
    prog.add_memory_segment(
        start, 8192, lambda _, count, offset, __: bytes(data[offset : offset + count]), True
    )
    prog.add_memory_segment(
        int(field.address_) & ~4095,
        8192,
        lambda _, count, offset, __: bytes(data[offset : offset + count]),
    )
    assert field.string_() == b"db-seven.example.com"
    recorded = np.zeros(int(prog["max_pfn"]), np.bool_)
    redaction = Redaction(target, recorded, _KEY, SilentProgress())
    pages = bytearray(data)
    # As in the kernel log, on the command line, and in messages of systemd.
    lines = b"\0db-seven said: hello\0ip=::::db-seven:eth0 <db-seven.example.com>.\0"
    pages[: len(lines)] = lines
    redaction(start >> 12, pages)
    new = bytes(pages[place - start : place - start + 65])
    assert re.fullmatch(rb"[a-z]{2}-[a-z]{5}\.[a-z]{7}\.[a-z]{3}\0+", new)
    assert b"seven" not in pages
    assert new.startswith(pages[1:9])

    kernels = users = 0
    for task in for_each_task(prog):
        comm = task.comm.string_()
        place = int(virt_to_phys(task.comm.address_of_()))
        page = bytearray(prog.read(place & ~4095, 4096, physical=True))
        redaction(place >> 12, page)
        new = bytes(page[place & 4095 : (place & 4095) + 16]).partition(b"\0")[0]
        assert len(new) == len(comm)
        if task.mm:
            assert new != comm
            users += 1
        else:
            assert new == comm
            kernels += 1
    assert users > 40
    assert kernels > 20
