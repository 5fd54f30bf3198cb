# SPDX-License-Identifier: LGPL-2.1-or-later
"""Real dumps and guests: what opens, in which format, and what is said of each bad input."""

from __future__ import annotations

import gc
import hashlib
import mmap
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import drgn
import pytest

from kcensus.sources import Target, TargetError, open_target
from tests.lab import Dump, Live, build, live
from tests.lab.host import which
from tests.vm.cases import opened
from tests.vm.elf_edit import copy, truncated

KERNEL, OTHER = "6.1", "6.12"
PAGE = 4096


@pytest.fixture(scope="module")
def dump() -> Dump:
    return build(KERNEL, "negatives")


def makedumpfile(*arguments: str | Path, **more: Any) -> None:
    command = which("makedumpfile")
    assert command
    subprocess.run([command, *arguments], stderr=subprocess.DEVNULL, check=True, **more)


@pytest.fixture(scope="module")
def lzo(dump: Dump, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same memory as makedumpfile writes it into a file, to the last byte."""
    path = tmp_path_factory.mktemp("lzo") / "vmcore"
    makedumpfile("-l", "-d", "31", dump.core, path)
    return path


@pytest.fixture(scope="module")
def guest() -> Iterator[Live]:
    with live(KERNEL, "churn") as guest:
        yield guest


def refusal(spec: Path | str, *symbols: Path, allow_truncated: bool = False) -> str:
    """What is said of a target; checks that it is one printable line."""
    with pytest.raises(TargetError) as caught:
        open_target(str(spec), symbols, allow_truncated=allow_truncated)
    sentence = str(caught.value)
    assert sentence.isprintable()
    assert not sentence.endswith(".")
    assert ". " not in sentence
    return sentence


def cut(source: Path, path: Path, size: int) -> Path:
    """A sparse copy, cut or extended to ``size``."""
    truncated(source, path, size)
    return path


# What opens


def test_every_kernel_opens_with_its_modules(mixed_dump: Dump, mixed_target: Target) -> None:
    assert (mixed_target.kind, mixed_target.format) == ("vmcore", "ELF")
    flags = mixed_target.live, mixed_target.shareable, mixed_target.compressed
    assert flags == (False, True, False)
    assert mixed_target.kernel == mixed_dump.release
    assert mixed_target.name == str(mixed_dump.core)
    assert mixed_target.need_modules("xfs", "dm-snapshot", "dm_mod") == []
    for name in ("struct xfs_inode", "struct dm_snapshot"):
        assert mixed_target.prog.type(name).size > 0


def test_only_the_modules_asked_for_are_loaded_from_a_directory(mixed_dump: Dump) -> None:
    target = open_target(str(mixed_dump.core), [mixed_dump.vmlinux.parent])
    assert target.need_modules("xfs", "no_such_module") == []
    assert target.prog.type("struct xfs_inode").size > 0
    with pytest.raises(LookupError):
        target.prog.type("struct dm_snapshot")


@pytest.mark.usefixtures("without_btf")
def test_a_missing_module_names_its_package(mixed_dump: Dump) -> None:
    target = open_target(str(mixed_dump.core), [mixed_dump.vmlinux])
    (sentence,) = target.need_modules("xfs", "no_such_module")
    assert sentence.isprintable()
    assert sentence.startswith(
        f"debug info of module xfs of kernel {mixed_dump.release} is missing"
    )
    assert f"`apt install linux-image-{mixed_dump.release}-dbg`" in sentence


@pytest.mark.usefixtures("without_btf")
@pytest.mark.parametrize(
    ("vmlinux", "modules"),
    [
        ("usr/lib/debug/boot/vmlinux-{0}", "usr/lib/debug/lib/modules/{0}/kernel/fs"),
        ("usr/lib/debug/lib/modules/{0}/vmlinux", "usr/lib/debug/lib/modules/{0}/kernel/fs"),
        ("vmlinux", "."),
    ],
)
def test_modules_are_found_beside_their_vmlinux(
    mixed_dump: Dump, tmp_path: Path, vmlinux: str, modules: str
) -> None:
    path, folder = (tmp_path / each.format(mixed_dump.release) for each in (vmlinux, modules))
    path.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    path.symlink_to(mixed_dump.vmlinux)
    for file in mixed_dump.debug[1:]:
        (folder / f"{file.stem}.ko.debug").symlink_to(file)
    target = open_target(str(mixed_dump.core), [path])
    assert target.need_modules("xfs", "dm-snapshot", "dm_mod") == []
    assert target.modules is not None
    found = {of for of, _ in target.modules.places()}
    assert found == {"vmlinux", "xfs", "dm_snapshot", "dm_mod"}

    # Files of another build are not taken.
    for file in [*folder.glob("*.ko.debug")]:
        file.unlink()
        file.symlink_to(next(each for each in mixed_dump.debug[1:] if each.stem not in file.stem))
    other = open_target(str(mixed_dump.core), [path])
    assert len(other.need_modules("xfs", "dm-snapshot", "dm_mod")) == 3


@pytest.mark.parametrize(
    ("name", "form", "compressed"),
    [
        ("kdump-elf", "ELF", False),
        ("kdump-lzo", "kdump-compressed (lzo, dump level ", True),
        ("kdump-zlib", "kdump-compressed (zlib, dump level ", True),
    ],
)
def test_formats_of_the_crash_kernel(dump: Dump, name: str, form: str, compressed: bool) -> None:
    target = opened(dump, form=name)
    assert target.format.startswith(form)
    assert (target.compressed, target.shareable, target.live) == (compressed, True, False)
    assert target.prog["init_uts_ns"].name.release.string_().decode() == dump.release


def _digest(prog: drgn.Program, start: int, size: int) -> str:
    digest = hashlib.sha256()
    for address in range(start, start + size, PAGE):
        digest.update(prog.read(address, PAGE))
    return digest.hexdigest()


@pytest.mark.parametrize("name", ["kdump-elf", "lzo"])
def test_forked_workers_read_the_same_bytes(dump: Dump, lzo: Path, name: str) -> None:
    prog = open_target(str(dump.formats.get(name, lzo)), dump.debug).prog
    start, size = prog.symbol("_stext").address, 4 << 20
    chunks = [(prog, start + i * size // 4, size // 4) for i in range(4)] * 2
    expected = [_digest(*chunk) for chunk in chunks[:4]]
    children = []
    for chunk in chunks:
        receive, send = multiprocessing.Pipe(duplex=False)
        child = os.fork()
        if child == 0:
            send.send(_digest(*chunk))
            os._exit(0)
        children.append((child, receive))
    for (child, receive), digest in zip(children, expected * 2, strict=True):
        assert receive.poll(60)
        assert receive.recv() == digest
        os.waitpid(child, 0)


def test_a_flattened_dump_opens(dump: Dump, lzo: Path, tmp_path: Path) -> None:
    flat = tmp_path / "flat"
    with flat.open("wb") as file:
        makedumpfile("-F", "-l", "-d", "31", dump.core, stdout=file)
    for path, more in ((lzo, ""), (flat, ", flattened")):
        target = open_target(str(path), dump.debug)
        assert target.format == f"kdump-compressed (lzo, dump level 31){more}"
        assert target.compressed
    os.truncate(flat, flat.stat().st_size - PAGE)
    assert "lacks the end mark" in refusal(flat, *dump.debug, allow_truncated=True)


# What does not


def test_an_elf_dump_cut_short(mixed_dump: Dump, tmp_path: Path) -> None:
    whole = mixed_dump.core
    size = whole.stat().st_size
    short = cut(whole, tmp_path / "vmcore", size // 2)
    said = re.search(r"is truncated: (\d+) of (\d+) bytes", refusal(short, *mixed_dump.debug))
    assert said
    missing, memory_end = map(int, said.groups())
    assert missing == memory_end - size // 2
    # QEMU writes a few bytes behind the memory, which no analysis needs.
    assert size - 64 < memory_end <= size
    target = open_target(str(short), mixed_dump.debug, allow_truncated=True)
    assert target.format == "ELF, truncated"
    assert target.kernel == mixed_dump.release
    # Whether its module list is in the part that is there or not: no exception.
    for sentence in target.need_modules("xfs"):
        assert sentence.isprintable()
    # Inside its headers, or before any memory.
    for keep in (100, 5000, 100_000):
        short = cut(whole, tmp_path / f"vmcore-{keep}", keep)
        assert "is truncated" in refusal(short, *mixed_dump.debug)


@pytest.mark.parametrize("share", [0.0001, 0.001, 0.01, 0.5, 0.999])
def test_a_kdump_cut_short(dump: Dump, lzo: Path, tmp_path: Path, share: float) -> None:
    """What is missing kills the process when libkdumpfile touches it; so it must not get there."""
    short = cut(lzo, tmp_path / "vmcore", int(lzo.stat().st_size * share))
    assert "is truncated" in refusal(short, *dump.debug)
    assert "is truncated" in refusal(short, *dump.debug, allow_truncated=True)


def test_a_kdump_cut_short_opens_when_extended_as_advised(
    dump: Dump, lzo: Path, tmp_path: Path
) -> None:
    short = cut(lzo, tmp_path / "vmcore", lzo.stat().st_size * 9 // 10)
    advice = refusal(short, *dump.debug)
    length = int(advice.split("`truncate -s ")[1].split("`")[0])
    assert length <= lzo.stat().st_size
    os.truncate(short, length)
    assert "last pages were never written" in refusal(short, *dump.debug)
    # In a process of its own, so that a SIGBUS would be seen as what it is.
    script = (
        "import sys; from pathlib import Path; from kcensus.sources import open_target; "
        "t = open_target(sys.argv[1], [Path(sys.argv[2])], allow_truncated=True); print(t.format)"
    )
    command = [sys.executable, "-c", script, str(short), str(dump.vmlinux)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode >= 0, signal.Signals(-done.returncode).name
    assert done.stdout.rstrip().endswith(", truncated"), done.stderr


_SHRINKING = """
import os, sys
from kcensus import cli
from kcensus.sources import vmcore
load, path = vmcore.load_debug_info, sys.argv[2]
def shrink(*target):
    opened = load(*target)
    os.truncate(path, os.path.getsize(path) // 4)
    return opened
vmcore.load_debug_info = shrink
sys.exit(cli.main())
"""


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_kdump_that_shrinks_while_it_is_read(
    dump: Dump, lzo: Path, tmp_path: Path, jobs: str
) -> None:
    path = tmp_path / "vmcore"
    copy(lzo, path)
    words = ["slab", str(path), "-s", str(dump.vmlinux), "--jobs", jobs]
    command = [sys.executable, "-c", _SHRINKING, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3
    assert "shrank while it was read" in done.stderr.splitlines()[-1]


def test_a_kdump_that_makedumpfile_marked_incomplete(dump: Dump, lzo: Path, tmp_path: Path) -> None:
    marked = tmp_path / "vmcore"
    copy(lzo, marked)
    with marked.open("r+b") as file, mmap.mmap(file.fileno(), 0) as header:
        header[424] |= 0x8
    assert "makedumpfile ran out of space" in refusal(marked, *dump.debug)
    assert open_target(str(marked), dump.debug, allow_truncated=True).format.endswith("truncated")


def test_a_vmlinux_of_another_build(dump: Dump, lzo: Path) -> None:
    other = build(OTHER, "mixed")
    sentence = refusal(lzo, other.vmlinux)
    assert sentence.startswith(f"{other.vmlinux} ({other.release}, build ID ")
    assert f"does not belong to this kernel, {dump.release} (build ID " in sentence


@pytest.mark.usefixtures("without_btf")
def test_dumps_without_a_build_id(tmp_path: Path) -> None:
    """As of kernels before 5.9: each vmlinux is compared with the dump."""
    dump, other = build(KERNEL, "mixed"), build(OTHER, "mixed")
    path = tmp_path / "vmcore"
    copy(dump.core, path)
    right, wrong, both = (tmp_path / name for name in ("right", "wrong", "both"))
    for folder, name, source in (
        (right, "vmlinux", dump),
        (wrong, "vmlinux", other),
        (both, "vmlinux-1", other),
        (both, "vmlinux-2", dump),
    ):
        folder.mkdir(exist_ok=True)
        (folder / name).symlink_to(source.vmlinux)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        at = memory.find(b"\nBUILD-ID=")
        memory[at : at + 9] = b"\nBUILD-XX"
    for symbols in ((right,), (wrong, right), (right, wrong), (both,), (wrong / "vmlinux", right)):
        target = open_target(path, symbols)
        assert target.modules
        (place,) = (place for of, place in target.modules.places() if of == "vmlinux")
        assert os.path.realpath(place) == os.path.realpath(dump.vmlinux)
    for symbol in (wrong, wrong / "vmlinux"):
        sentence = refusal(path, symbol)
        assert sentence.startswith(f"{wrong / 'vmlinux'} ({other.release} #")
        assert f"does not belong to this kernel, {dump.release} (#" in sentence

    # Another build of the same release.
    banner = rb"Linux version %s \([^\n]{1,256}? #1? SMP" % re.escape(dump.release.encode())
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        for match in list(re.finditer(banner, memory)):
            memory[match.end() - 1 : match.end()] = b"Q"
    assert f"does not belong to this kernel, {dump.release}" in refusal(path, right)


# A guest that runs


def test_a_guest_over_qmp(guest: Live) -> None:
    target = open_target(f"qmp:{guest.qmp}", guest.debug)
    assert (target.kind, target.format) == ("qmp", "live (QEMU guest over QMP)")
    assert (target.live, target.shareable, target.compressed) == (True, False, False)
    assert target.kernel == guest.release
    assert target.prog["init_uts_ns"].name.release.string_().decode() == guest.release
    assert target.need_modules("xfs") == []
    # QEMU serves one client at a time: the second waits for a greeting that does not come.
    assert "another client is connected" in refusal(f"qmp:{guest.qmp}")
    # The error's traceback holds this frame, and that the target.
    del target
    gc.collect()


@pytest.mark.usefixtures("without_btf")
def test_a_guest_without_debug_info_lets_go_of_the_socket(guest: Live) -> None:
    for _ in range(2):
        assert "debug info of kernel" in refusal(f"qmp:{guest.qmp}")
        gc.collect()  # pytest keeps the error, and with it the connection


def test_a_dump_in_the_format_of_qemu(guest: Live, tmp_path: Path) -> None:
    path = tmp_path / "vmcore"
    guest.stop()
    try:
        guest.machine.command(
            "dump-guest-memory", paging=False, protocol=f"file:{path}", format="kdump-zlib"
        )
    finally:
        guest.resume()
    assert "dump the guest as ELF" in refusal(path, *guest.debug)
