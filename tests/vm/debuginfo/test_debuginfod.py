# SPDX-License-Identifier: LGPL-2.1-or-later
"""Debug info from the server of elfutils, on this machine."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError

import pytest

from kcensus.progress import SilentProgress
from kcensus.sources import TargetError, open_target
from kcensus.sources.debuginfo import debuginfod
from tests.lab import Dump, host

_SECONDS = 120


@pytest.fixture(scope="module")
def url(mixed_dump: Dump, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that has the debug info of a dump."""
    host.install_packages()
    folder = tmp_path_factory.mktemp("debuginfod")
    for path in mixed_dump.debug:
        (folder / path.name).symlink_to(path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [host.find("debuginfod"), "-F", "-L", "-p", str(port), "-d", ":memory:", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        url = f"http://127.0.0.1:{port}"
        try:
            _await(url, len(mixed_dump.debug))
            yield url
        finally:
            server.terminate()


def _await(url: str, files: int) -> None:
    """Wait until the server has scanned the folder."""
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        with suppress(URLError), urllib.request.urlopen(f"{url}/metrics") as answer:
            if f'scanned_files_total{{source="file"}} {files}' in answer.read().decode():
                return
        time.sleep(0.2)
    raise TimeoutError(url)


@pytest.mark.newest
def test_debug_info_is_downloaded_once_and_only_if_asked_for(
    mixed_dump: Dump, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEBUGINFOD_CACHE_PATH", str(tmp_path))
    monkeypatch.setenv("DEBUGINFOD_URLS", f"http://127.0.0.1:9 {url}")
    assert open_target(str(mixed_dump.core)).types == "BTF"
    assert not any(tmp_path.iterdir())
    with debuginfod.allowed(SilentProgress()):
        target = open_target(str(mixed_dump.core))
    assert target.types == "DWARF"
    assert target.need_modules("xfs") == []
    files = [*tmp_path.rglob("debuginfo*")]
    assert [path.name for path in files] == ["debuginfo"] * 2
    monkeypatch.setenv("DEBUGINFOD_URLS", "http://127.0.0.1:9")
    with debuginfod.allowed(SilentProgress()):
        assert open_target(str(mixed_dump.core)).types == "DWARF"


def test_without_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "ftp://127.0.0.1"):
        monkeypatch.setenv("DEBUGINFOD_URLS", value)
        with (
            pytest.raises(TargetError, match="DEBUGINFOD_URLS"),
            debuginfod.allowed(SilentProgress()),
        ):
            pass
