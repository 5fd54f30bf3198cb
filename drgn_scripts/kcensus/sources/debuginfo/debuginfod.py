# SPDX-License-Identifier: LGPL-2.1-or-later
"""Download debug info from debuginfod servers, if the user asks for it.

drgn does not, for kernels: their files have 300 MB to 1 GB, and it has no progress bar. Downloads
are kept where elfutils' clients keep theirs.
"""

from __future__ import annotations

import os
import re
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from kcensus.human import human_bytes
from kcensus.progress import Progress
from kcensus.sources.model import RequestError
from kcensus.text import printable

_URLS, _CACHE, _TIMEOUT = "DEBUGINFOD_URLS", "DEBUGINFOD_CACHE_PATH", "DEBUGINFOD_TIMEOUT"
_SECONDS = 90
"""Default of elfutils: the longest time without any data."""
_BLOCK = 1 << 20
_MAX_BYTES = 1 << 33
_BUILD_ID = re.compile(r"[0-9a-f]{2,128}")


@dataclass
class Servers:
    """The servers in ``DEBUGINFOD_URLS``.

    :raises RequestError: the variable is not set, or has something else than URLs
    """

    progress: Progress
    troubles: list[str] = field(default_factory=list)
    """Sentences about servers that failed, without 404."""

    def __post_init__(self) -> None:
        self._urls = os.environ.get(_URLS, "").split()
        if not self._urls:
            raise RequestError(
                f"--debuginfod: {_URLS} is not set; set it to the URL of the distribution's server"
            )
        for url in self._urls:
            if urlsplit(url).scheme not in ("http", "https"):
                raise RequestError(f"--debuginfod: '{printable(url)}' in {_URLS} is not a URL")

    def debug_file(self, build_id: str, what: str) -> Path | None:
        """Return the file with the debug info of a build, downloaded once; None if there is none.

        :param what: the kernel or module, for the progress bar
        """
        if not _BUILD_ID.fullmatch(build_id):
            return None
        path = _cache() / build_id / "debuginfo"
        # Clients keep an empty file for a while where no server had one.
        if path.is_file() and path.stat().st_size:
            return path
        troubles = []
        for url in self._urls:
            try:
                self._download(f"{url.rstrip('/')}/buildid/{build_id}/debuginfo", path, what)
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    troubles.append(f"{printable(url)}: HTTP status {error.code}")
            except (OSError, HTTPException, ValueError) as error:
                reason = getattr(error, "reason", error)
                troubles.append(f"{printable(url)}: {printable(str(reason))}")
            else:
                return path
        self.troubles += troubles
        return None

    def _download(self, url: str, path: Path, what: str) -> None:
        timeout = os.environ.get(_TIMEOUT, "")
        seconds = int(timeout) if timeout.isdecimal() and int(timeout) else _SECONDS
        request = urllib.request.Request(url, headers={"User-Agent": "kcensus"})
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            length = answer.headers.get("Content-Length") or answer.headers.get("X-DEBUGINFOD-SIZE")
            size = int(length) if length and length.isdecimal() else 0
            if size > _MAX_BYTES:
                raise ValueError(f"{human_bytes(size)} are too much for debug info")
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(prefix="debuginfo.", dir=path.parent)
            try:
                self._store(answer.read, handle, size, what)
                os.replace(name, path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(name)
                raise

    def _store(self, read: Callable[[int], bytes], handle: int, size: int, what: str) -> None:
        done = 0
        title = f"downloading {what}" + (f", {human_bytes(size)}" if size else "")
        with os.fdopen(handle, "wb") as file, self.progress.step(title, size) as step:
            while block := read(_BLOCK):
                done += len(block)
                if done > _MAX_BYTES:
                    raise ValueError(f"more than {human_bytes(_MAX_BYTES)} are sent")
                file.write(block)
                step.advance(len(block))
        if size and done != size:
            raise ValueError(f"the connection ended after {done} of {size} bytes")


def _cache() -> Path:
    """Return the directory where elfutils' clients keep what they have downloaded."""
    if own := os.environ.get(_CACHE):
        return Path(own)
    home = Path(os.environ.get("HOME") or "/")
    old = home / ".debuginfod_client_cache"
    base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return old if old.is_dir() else base / "debuginfod_client"


_servers: ContextVar[Servers | None] = ContextVar("servers", default=None)


@contextmanager
def allowed(progress: Progress) -> Iterator[None]:
    """Let targets that are opened meanwhile, and their modules, have their debug info downloaded.

    :raises RequestError: as for :class:`Servers`
    """
    token = _servers.set(Servers(progress))
    try:
        yield
    finally:
        _servers.reset(token)


def current() -> Servers | None:
    """Return the servers to use; None if the user did not ask for any."""
    return _servers.get()
