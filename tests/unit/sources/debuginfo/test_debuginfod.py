# SPDX-License-Identifier: LGPL-2.1-or-later
"""Downloads from servers that answer anything, on this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kcensus.progress import SilentProgress
from kcensus.sources import open_target
from kcensus.sources.debuginfo import debuginfod
from kcensus.sources.debuginfo.debuginfod.client import Servers
from kcensus.sources.model import MissingDebugInfo, RequestError
from tests.unit.sources.test_open import BUILD_ID, dump, vmlinux

_PAGE = b"<html>Sign in to use this network.</html>"
Serve = Callable[[Callable[[BaseHTTPRequestHandler], None]], str]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Serve]:
    """Start a server that answers so, and let kcensus use it."""
    servers = []

    def serve(answer: Callable[[BaseHTTPRequestHandler], None]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer(self)

            def log_message(self, *_: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("DEBUGINFOD_URLS", url)
        return url

    monkeypatch.setenv("DEBUGINFOD_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def sends(body: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return answer


def test_only_debug_info_of_the_build_is_kept(serve: Serve, tmp_path: Path) -> None:
    wanted = vmlinux(tmp_path / "wanted", BUILD_ID).read_bytes()
    other = vmlinux(tmp_path / "other", "00" * 20).read_bytes()
    for body in (_PAGE, other, wanted[:70]):
        serve(sends(body))
        servers = Servers(SilentProgress())
        assert servers.debug_file(BUILD_ID, "kernel 6.1.0") is None
        assert "not an ELF file with this build ID" in next(iter(servers.troubles))
        assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    serve(sends(wanted))
    path = Servers(SilentProgress()).debug_file(BUILD_ID, "kernel 6.1.0")
    assert path is not None
    assert path.read_bytes() == wanted


def test_another_file_in_the_cache_is_replaced(serve: Serve, tmp_path: Path) -> None:
    wanted = vmlinux(tmp_path / "wanted", BUILD_ID).read_bytes()
    kept = tmp_path / "cache" / BUILD_ID / "debuginfo"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(_PAGE)
    serve(sends(wanted))
    assert Servers(SilentProgress()).debug_file(BUILD_ID, "kernel 6.1.0") == kept
    assert kept.read_bytes() == wanted


def test_words_of_elfutils_are_no_urls(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    url = serve(sends(_PAGE))
    monkeypatch.setenv("DEBUGINFOD_URLS", f"ima:enforcing {url} ima:ignore {url}/more")
    servers = Servers(SilentProgress())
    assert servers.debug_file(BUILD_ID, "kernel 6.1.0") is None
    assert len(servers.troubles) == 2
    for bad in ("ima:enforcing", "http://[bad", "ftp://127.0.0.1"):
        monkeypatch.setenv("DEBUGINFOD_URLS", bad)
        with pytest.raises(RequestError, match="DEBUGINFOD_URLS"):
            Servers(SilentProgress())


@pytest.mark.parametrize("line", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_server_that_trickles_is_left(
    serve: Serve, line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = threading.Event()

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(line)
        while not is_over.wait(0.1):
            request.wfile.write(b"x")

    serve(answer)
    monkeypatch.setenv("DEBUGINFOD_TIMEOUT", "1")
    servers, start = Servers(SilentProgress()), time.monotonic()
    try:
        # Both would go on until 64 KiB or 1 MiB are there.
        assert servers.debug_file(BUILD_ID, "kernel 6.1.0") is None
    finally:
        is_over.set()
    assert time.monotonic() - start < 10
    assert "in 1 s" in next(iter(servers.troubles))


def test_sentences_name_what_was_not_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUGINFOD_URLS", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    servers = Servers(SilentProgress())
    for what in ("kernel 6.1.0", "module xfs", "module dm_mod", "module xfs"):
        assert servers.debug_file(BUILD_ID, what) is None
    (sentence,) = servers.sentences("module")
    assert sentence.startswith("debug info of modules xfs, dm_mod was not downloaded: http://")
    (sentence,) = servers.sentences("kernel", "6.1.0")
    assert "of kernel 6.1.0 was" in sentence
    assert servers.sentences("kernel", "6.1") == []


@pytest.mark.parametrize(
    ("build_id", "words"), [(BUILD_ID, "not on the servers"), (None, "were not asked")]
)
def test_why_no_server_has_the_kernel(
    serve: Serve, tmp_path: Path, build_id: str | None, words: str
) -> None:
    serve(lambda request: request.send_error(404))
    with debuginfod.allowed(SilentProgress()), pytest.raises(MissingDebugInfo, match=f"{words}.*"):
        open_target(str(dump(tmp_path / "vmcore", build_id=build_id)))
