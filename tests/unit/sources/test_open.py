# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open targets without a kernel: synthetic dumps, synthetic vmlinux files, a mock QEMU."""

from __future__ import annotations

import os
import shlex
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kcensus.samples import capsule
from kcensus.sources import RequestError, Target, TargetError, live, open_target, qmp
from kcensus.sources import vmcore as vmcore_source
from kcensus.sources.model import Source
from tests.unit.sources.test_sniff import PRSTATUS, elf_core, flattened, kdump, note, one_line

BUILD_ID = "3b43fad5034874490492495d552c0af6a5fab235"
OTHER_ID = "1fe9968467f2755292a45806719b9bba136b0cc8"
RELEASE = "6.1.0-18-amd64"
GREETING = b'{"QMP": {"version": {"qemu": {"major": 9}}, "capabilities": []}}\r\n'


def refusal(spec: str | None, *symbols: Path, allow_truncated: bool = False) -> str:
    with pytest.raises(TargetError) as caught:
        open_target(spec, symbols, allow_truncated=allow_truncated)
    return one_line(caught.value)


def dump(path: Path, release: str = RELEASE, build_id: str | None = BUILD_ID) -> Path:
    """Write a synthetic ELF dump that drgn accepts as one of a kernel; its memory is zeros."""
    lines = [
        f"OSRELEASE={release}",
        *([f"BUILD-ID={build_id}"] if build_id else []),
        "PAGESIZE=4096",
        "SYMBOL(swapper_pg_dir)=ffffffff82000000",
        "SYMBOL(_stext)=ffffffff81000000",
        "KERNELOFFSET=0",
        "NUMBER(phys_base)=0",
    ]
    info = "\n".join(lines).encode() + b"\n"
    path.write_bytes(elf_core([PRSTATUS, (b"VMCOREINFO", 0, info)]))
    return path


@pytest.fixture
def vmcore(tmp_path: Path) -> Path:
    return dump(tmp_path / "vmcore")


def vmlinux(
    path: Path,
    build_id: str | None,
    banner: bytes = b"",
    type_: int = 2,
    *,
    banner_address: int = 0,
) -> Path:
    """Write a synthetic ELF file with a build ID and a banner, without debug info."""
    names = b"\0.notes\0.rodata\0.shstrtab\0"
    notes = note(b"GNU", 3, bytes.fromhex(build_id)) if build_id else b""
    parts = [(1, 7, notes), (8, 1, banner), (16, 3, names)]
    at = 64
    sections = [bytes(64)]
    for name, kind, content in parts:
        place = banner_address if content is banner else 0
        fields = (name, kind, 2, place, at, len(content), 0, 0, 4, 0)
        sections.append(struct.pack("<IIQQQQIIQQ", *fields))
        at += len(content)
    at += -at % 8
    ehdr = b"\x7fELF\x02\x01\x01" + bytes(9)
    ehdr += struct.pack("<HHIQQQIHHHHHH", type_, 62, 1, 0, 0, at, 0, 64, 56, 0, 64, 4, 3)
    body = b"".join(content for _, _, content in parts)
    path.write_bytes((ehdr + body).ljust(at, b"\0") + b"".join(sections))
    return path


def test_each_spelling_belongs_to_one_source() -> None:
    sources: list[Source] = [live.SOURCE, qmp.SOURCE, vmcore_source.SOURCE]
    for spec, owner in [(None, 0), ("/proc/kcore", 0), ("qmp:/x", 1), ("/var/crash/vmcore", 2)]:
        claims = [i for i, source in enumerate(sources) if source.claims(spec)]
        assert claims[0] == owner
        assert all(sources[i].fallback for i in claims[1:])


def test_a_name_is_not_empty_and_need_not_be_a_string(tmp_path: Path, vmcore: Path) -> None:
    assert "target is ''" in refusal("")
    with pytest.raises(TargetError, match="debug info of kernel"):
        open_target(vmcore, [str(tmp_path)])
    # A target that brings its types needs no modules.
    target = Target(None, "x", "vmcore", "synthetic", False, RELEASE, True, False)
    assert target.need_modules("xfs") == []


def test_what_drgn_refuses_is_quoted(tmp_path: Path) -> None:
    path = tmp_path / "vmcore"
    path.write_bytes(elf_core([(b"VMCOREINFO", 0, b"OSRELEASE=6.1.0\n")]))
    sentence = refusal(str(path))
    assert sentence.startswith(f"{path}: cannot be opened as ELF (drgn: ")
    assert "VMCOREINFO" in sentence


def test_a_dump_that_libkdumpfile_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "vmcore"
    # A drgn that was built without it refuses these, too.
    monkeypatch.setattr("drgn._with_libkdumpfile", True)
    for content in (kdump(sysname=b""), flattened(kdump(sysname=b""))):
        path.write_bytes(content)
        assert "dump the guest as ELF" in refusal(str(path))
    path.write_bytes(kdump())
    monkeypatch.setattr("drgn._with_libkdumpfile", False)
    assert "built without libkdumpfile" in refusal(str(path))


def test_a_hostile_dump_cannot_write_to_the_terminal_or_into_commands(tmp_path: Path) -> None:
    sentence = refusal(str(dump(tmp_path / "vmcore", "6.1.0\x1b]0;x\x07`reboot`-amd64")))
    assert "\\x1b]0;x\\x07" in sentence
    assert f"(build ID {BUILD_ID})" in sentence
    assert "--debuginfod" in sentence
    assert "apt" not in sentence


def test_a_directory_of_other_kernels_says_nothing_about_this(tmp_path: Path, vmcore: Path) -> None:
    vmlinux(tmp_path / "vmlinux-1", OTHER_ID)
    vmlinux(tmp_path / "vmlinux-2", OTHER_ID)
    (tmp_path / "vmlinux-broken").write_bytes(b"\x7fELF\x02\x01")
    os.mkfifo(tmp_path / "vmlinux-fifo")
    sentence = refusal(str(vmcore), tmp_path)
    assert sentence.startswith(f"debug info of kernel {RELEASE} is missing")
    for name in ("vmlinux-1", "vmlinux-2"):
        assert f"{tmp_path / name} (build ID {OTHER_ID})" in sentence


def test_a_vmlinux_without_debug_info_or_a_module_alone(tmp_path: Path, vmcore: Path) -> None:
    stripped = vmlinux(tmp_path / "vmlinux", BUILD_ID)
    assert "stripped" in refusal(str(vmcore), stripped)
    module = vmlinux(tmp_path / "xfs.ko", OTHER_ID, type_=1)
    assert refusal(str(vmcore), module).startswith(f"debug info of kernel {RELEASE} is missing")


def test_a_vmlinux_where_no_build_id_is_known(tmp_path: Path) -> None:
    path = dump(tmp_path / "vmcore", build_id=None)
    # Even of the same release, as long as the dump lacks its banner.
    same = vmlinux(tmp_path / "vmlinux", None, f"Linux version {RELEASE} (gcc)".encode())
    assert refusal(str(path), same).startswith(f"{same} ({RELEASE}): does not belong")
    bare = vmlinux(tmp_path / "vmlinux", None)
    assert "cannot be compared" in refusal(str(path), bare)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty; copy it again"),
        (b"some text\n", "is not an ELF file"),
        (bytes(514) + b"HdrS", "is a bootable kernel image"),
        (elf_core([]), "is a dump"),
        (b"\x7fELF\x02\x01", "is truncated: it ends inside its ELF header"),
    ],
)
def test_a_file_without_debug_info(tmp_path: Path, vmcore: Path, content: bytes, said: str) -> None:
    symbols = tmp_path / "symbols"
    symbols.write_bytes(content)
    assert refusal(str(vmcore), symbols).startswith(f"-s {symbols}: {said}")


def test_directories_that_cannot_be_searched_are_skipped(tmp_path: Path, vmcore: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/loop").symlink_to(tmp_path / "a")
    assert refusal(str(vmcore), tmp_path / "a", Path("/proc")).startswith("debug info of kernel")
    assert "no such file" in refusal(str(vmcore), tmp_path / "a" / ("x" * 200))
    assert refusal(str(vmcore), tmp_path / "none") == f"-s {tmp_path}/none: no such file"
    with pytest.raises(RequestError, match="no such file"):
        open_target("sample", [tmp_path / "none"])


def test_the_environment_names_more_debug_info(
    tmp_path: Path, vmcore: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (vmlinux(tmp_path / name, OTHER_ID) for name in ("vmlinux-1", "vmlinux-2"))
    monkeypatch.setenv("KCENSUS_SYMBOLS", f"{second}{os.pathsep}")
    assert refusal(str(vmcore), first).startswith(
        f"{first} (build ID {OTHER_ID}), {second} (build ID {OTHER_ID}): do not belong"
    )
    monkeypatch.setenv("KCENSUS_SYMBOLS", f"{tmp_path}/none")
    assert open_target("sample").notes == ()
    assert f"KCENSUS_SYMBOLS {tmp_path}/none: no such file" in refusal(str(vmcore))


@contextmanager
def server(path: Path, *answers: bytes) -> Iterator[str]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        done = threading.Event()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                # All at once, because drgn holds the GIL while it waits.
                connection.sendall(b"".join(answers))
                done.wait(60)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"qmp:{path}"
        finally:
            done.set()
            thread.join(10)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qmp, "_MAX_GREETING_SECONDS", 0.2)
    monkeypatch.setattr(qmp, "_MAX_ANSWER_SECONDS", 1)


def test_a_path_that_is_no_socket_of_qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    assert "no such socket; start QEMU with" in refusal(f"qmp:{tmp_path}/none")
    (tmp_path / "file").write_bytes(b"x")
    assert "is not a socket" in refusal(f"qmp:{tmp_path}/file")
    with socket.socket(socket.AF_UNIX) as unused:
        unused.bind(str(tmp_path / "qmp"))
    assert "connection refused" in refusal(f"qmp:{tmp_path}/qmp")
    # Root may connect to any socket, and tests often run as root.
    monkeypatch.setattr(socket.socket, "connect", denied)
    assert "permission denied" in refusal(f"qmp:{tmp_path}/qmp")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ((), "does not answer within"),
        ((b"220 mail.example ESMTP\r\n",), "does not answer like a QMP socket"),
        ((GREETING,), "cannot be read as a QEMU guest (drgn: "),
        ((GREETING, b'{"error": {"class": "Any", "desc": "no\\nway"}}\r\n'), "no\\x0away"),
    ],
)
def test_a_socket_that_does_not_answer_as_a_guest(
    tmp_path: Path, impatient: None, answers: tuple[bytes, ...], said: str
) -> None:
    with server(tmp_path / "qmp", *answers) as spec:
        assert said in refusal(spec)


def test_a_target_has_the_words_that_open_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    symbols = tmp_path / "debug info"
    symbols.mkdir()
    assert open_target("sample").words == "sample"
    target = open_target("sample", [symbols], allow_truncated=True)
    assert target.words == f"sample --allow-truncated -s '{symbols}'"
    modules = [symbols / name for name in ("vmlinux", "dm.ko", "xfs.ko.debug", "bfq.ko")]
    for path in modules:
        path.touch()
    assert open_target("sample", modules[:3]).words == shlex.join(
        ["sample", *(word for path in modules[:3] for word in ("-s", str(path)))]
    )
    assert open_target("sample", modules).words == f"sample -s '{modules[0]}' -s '{symbols}'"
    spaced = tmp_path / "a dump"
    spaced.symlink_to(capsule("sample") or "")
    assert open_target(spaced).words == f"'{spaced}'"
    # A file with the name of an option.
    monkeypatch.chdir(tmp_path)
    Path("-s").symlink_to(spaced)
    assert open_target("-s").words == "./-s"
