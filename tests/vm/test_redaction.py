# SPDX-License-Identifier: LGPL-2.1-or-later
"""Redacted capsules of real kernels, compared with the same capsules unredacted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import drgn
import numpy as np
import pytest
from drgn.helpers.linux.mm import follow_phys, virt_to_phys
from drgn.helpers.linux.pid import for_each_task
from drgn.helpers.linux.slab import (
    find_slab_cache,
    for_each_slab_cache,
    slab_cache_for_each_allocated_object,
)

from kcensus.analyses import analyses
from kcensus.analyses.runner import Context
from kcensus.capsule import create
from kcensus.engine.memory import Memory
from kcensus.engine.slub.slabs import SlabMap
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.log import records
from kcensus.progress import SilentProgress
from kcensus.redaction import Redaction
from kcensus.redaction.user_names import kernel_words
from kcensus.reports import report
from kcensus.sources import Target, open_target
from kcensus.sources.capsule.container import PageStore, Reader
from kcensus.sources.capsule.recorder import Recorder
from tests.lab import Dump, build
from tests.vm.capsules import KEY, Capsules, assert_same_without_names, pages
from tests.vm.cases import analyzed, document, opened

pytestmark = pytest.mark.newest

_MANIFEST: dict[str, Any] = {"kernel": "", "format": "", "analyses": [], "redacted": []}
_KERNELS_OWN = {b"sysfs", b"proc", b"debugfs", b"tracefs", b"securityfs"}
_KERNELS_OWN |= {b"anon_inodefs", b"sockfs", b"pipefs", b"cgroup2"}


class Dentry(NamedTuple):
    address: int
    place: int
    """Address of the name."""
    name: bytes
    users: bool
    """Whether users choose names in its file system."""


_DENTRY = 192
"""Bytes of a dentry."""


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
    every = list(analyses().values())
    return Capsules.of(mixed_target, every, tmp_path_factory.mktemp("redaction"))


@pytest.fixture(scope="module")
def everything(
    mixed_target: Target, dentries: list[Dentry], tmp_path_factory: pytest.TempPathFactory
) -> Capsules:
    """Capsules of all dentries and their names, including those that no analysis reads."""
    paths = Capsules.below(tmp_path_factory.mktemp("everything"))
    recorder = Recorder(mixed_target, has_uses=True)
    report(Context.of(recorder.target), analyses().values())
    for dentry in dentries:
        recorder.target.prog.read(dentry.address, _DENTRY)
        recorder.target.prog.read_c_string(dentry.place)
    scrub = Redaction(mixed_target, recorder, KEY, SilentProgress())
    for path, hook in ((paths.plain, None), (paths.redacted, scrub)):
        recorder.write(path, _MANIFEST, level=1, progress=SilentProgress(), scrub=hook)
    return paths


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
    start, end = (target.prog.symbol(name).address for name in ("_stext", "__end_rodata"))
    image: bytes = target.prog.read(start, end - start)
    return image


def _kernels_own(target: Target) -> set[bytes]:
    """Return all words of the kernel, which users may have chosen, too."""
    return set(kernel_words(Kernel(target.prog))) | _strings(_image(target))


def test_no_name_of_the_guest_is_left(
    mixed_dump: Dump, mixed_target: Target, everything: Capsules
) -> None:
    plain, redacted = pages(everything.plain), pages(everything.redacted)
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
    redacted = pages(everything.redacted)
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


EMPTIED = b"\xff"
"""Bytes that are not 0 in a page without anything used: a page of zeros would count as lost."""
_CACHES = re.compile(r"dentry|kmalloc-(?:32|64|96|192)")
"""Whose slabs have one page: dentries and what keeps long names."""


def test_free_memory_is_wiped(mixed_target: Target, everything: Capsules) -> None:
    """Free objects that had content are zero except their freelist pointer."""
    before = _capsule_reader(everything.plain, mixed_target)
    after = _capsule_reader(everything.redacted, mixed_target)
    checked, dirty = set[str](), 0
    for cache in for_each_slab_cache(mixed_target.prog):
        name = cache.name.string_().decode()
        if not _CACHES.fullmatch(name):
            continue
        if int(cache.oo.x) >> 16:
            pytest.fail(f"the slabs of {name} have several pages; look for the free ones otherwise")
        size, place = int(cache.size), int(cache.offset)
        objects = slab_cache_for_each_allocated_object(cache, "void")
        taken = np.array([object_.value_() for object_ in objects], np.uint64)
        slabs = np.unique(taken & ~np.uint64(4095))
        steps = np.arange(4096 // size, dtype=np.uint64) * np.uint64(size)
        for address in np.setdiff1d((slabs[:, None] + steps).ravel(), taken).tolist():
            try:
                was = before(address, size)
            except drgn.FaultError:  # no analysis reads this page
                continue
            if after(address & -4096, 4096).strip(b"\0") == EMPTIED:
                continue
            raw = after(address, size)
            assert raw[:place].strip(b"\0") == raw[place + 8 :].strip(b"\0") == b""
            assert raw[place : place + 8] in (was[place : place + 8], bytes(8))
            checked.add(name)
            dirty += was.count(b"\0") < size - 8
    assert "dentry" in checked
    assert dirty > 5


def test_analyses_need_nothing_of_free_memory(mixed_target: Target, capsules: Capsules) -> None:
    wiped = open_target(str(capsules.wiped))
    for analysis in analyses().values():
        expected = document(mixed_target, analysis)
        assert expected.startswith("{")
        assert document(wiped, analysis) == expected


def test_analyses_find_the_same_without_names(capsules: Capsules) -> None:
    plain, redacted = (open_target(str(path)) for path in (capsules.plain, capsules.redacted))
    for name in analyses():
        assert_same_without_names(analyzed(redacted, name), analyzed(plain, name))


def test_names_in_results_are_pseudonyms(mixed_dump: Dump, capsules: Capsules) -> None:
    cgroups = {memcg["path"] for memcg in json.loads(mixed_dump.truth["created.json"])["memcgs"]}
    texts = [
        {str(text) for table in result.tables.values() for text in table.frame.to_numpy().ravel()}
        for path in (capsules.plain, capsules.redacted)
        for result in [analyzed(open_target(str(path)), "slab")]
    ]
    assert len(texts[0] & cgroups) > 30
    assert not texts[1] & cgroups


@pytest.mark.usually("6.1")
def test_names_of_processes_that_wait_are_pseudonyms(kernel: str, tmp_path: Path) -> None:
    target, waits = opened(build(kernel, "waits-four")), analyses()["waits"]
    capsules = Capsules.of(target, [waits], tmp_path)
    redacted = open_target(str(capsules.redacted))
    result = analyzed(redacted, "waits")
    plain = analyzed(target, "waits")
    assert [each.id for each in result.findings] == [each.id for each in plain.findings]
    assert result.amount("deadlocks") == 1
    # The words at the begin of records are the kernel's.
    one, other = (
        sum(text.startswith(("INFO:", "Call")) for _, text in records(each.prog))
        for each in (redacted, target)
    )
    assert one == other > 0
    # Kernel threads are named by the kernel; the two processes are not in any text.
    for name in ("core-reader", "crash-with"):
        assert name in document(target, waits)
        assert name not in document(redacted, waits)


def test_the_manifest_states_the_redaction(capsules: Capsules) -> None:
    assert Reader(str(capsules.plain)).manifest["redacted"] == []
    assert Reader(str(capsules.redacted)).manifest["redacted"] == ["names"]


def test_the_key_decides(tmp_path: Path) -> None:
    target = opened(build("7.3", "one"))
    keys = {"one": KEY, "same": KEY, "random": None, "other": None}
    for name, key in keys.items():
        create(target, tmp_path / name, [analyses()["slab"]], redact=["names"], key=key)
    recorded = {name: pages(tmp_path / name) for name in keys}
    assert recorded["one"] == recorded["same"]
    assert len(set(recorded.values())) == 3


def test_processes_and_the_host(mixed_dump: Dump) -> None:
    """The guest has no host name, so the test writes one into its memory."""
    target = opened(mixed_dump)
    prog = target.prog
    field = prog["init_uts_ns"].name.nodename
    place = int(follow_phys(prog["init_mm"].address_of_(), field.address_))
    start = place & ~4095
    data = bytearray(prog.read(start, 8192, physical=True))
    data[place - start : place - start + 65] = b"db-seven.example.com".ljust(65, b"\0")
    for address, is_physical in ((start, True), (int(field.address_) & ~4095, False)):
        prog.add_memory_segment(
            address, 8192, lambda _, size, at, __: bytes(data[at : at + size]), is_physical
        )
    assert field.string_() == b"db-seven.example.com"
    recorder = Recorder(target, has_uses=True)
    redaction = Redaction(target, recorder, KEY, SilentProgress())
    written = bytearray(data)
    # As in the kernel log, on the command line, and in messages of systemd.
    lines = b"\0db-seven said: hello\0ip=::::db-seven:eth0 <db-seven.example.com>.\0"
    written[: len(lines)] = lines
    recorder.target.prog.read(start, len(lines), physical=True)
    for at in range(place, place + 21):
        recorder.target.prog.read(at, 1, physical=True)
    redaction(start >> 12, written)
    new = bytes(written[place - start : place - start + 65])
    assert re.fullmatch(rb"[a-z]{2}-[a-z]{5}\.[a-z]{7}\.[a-z]{3}\0+", new)
    assert b"seven" not in written
    assert new.startswith(written[1:9])

    kernels = users = 0
    for task in for_each_task(prog):
        comm = task.comm.string_()
        place = int(virt_to_phys(task.comm.address_of_()))
        recorder.target.prog.read(place, 16, physical=True)
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
