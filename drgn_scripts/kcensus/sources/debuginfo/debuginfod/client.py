# SPDX-License-Identifier: LGPL-2.1-or-later
"""Download debug info from debuginfod servers.

drgn does not, for kernels: their files have 300 MB to 1 GB, and it has no progress bar. Downloads
are kept where elfutils' clients keep theirs, if they are ELF files with the wanted build ID:
gateways answer with pages of their own, too.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kcensus.human import human_bytes, listed
from kcensus.progress import Progress
from kcensus.sources.formats import elf
from kcensus.sources.model import RequestError, TargetError
from kcensus.sources.reader import FileReader, os_reason
from kcensus.text import printable

_URLS, _CACHE, _TIMEOUT = "DEBUGINFOD_URLS", "DEBUGINFOD_CACHE_PATH", "DEBUGINFOD_TIMEOUT"
_SECONDS = 90
"""Default of elfutils: the longest time without any data."""
_LEAST_BYTES = 100 << 10
"""Least bytes in that time, as of elfutils."""
_BLOCK = 1 << 20
_MAX_BYTES = 1 << 33
_MAX_NAMED = 8
_BUILD_ID = re.compile(r"[0-9a-f]{2,128}")


@dataclass
class Servers:
    """The servers in ``DEBUGINFOD_URLS``.

    The words ``ima:…`` between URLs, of elfutils 0.192, are skipped: signatures are not verified.

    :raises RequestError: the variable is not set, or has something else than URLs
    """

    progress: Progress
    troubles: dict[str, list[str]] = field(default_factory=dict)
    """By server and its failure, without 404: the kernel or modules that were wanted."""

    def __post_init__(self) -> None:
        words = os.environ.get(_URLS, "").split()
        self._urls = [word for word in words if not word.startswith("ima:")]
        if not self._urls:
            raise RequestError(
                f"--debuginfod: {_URLS} is not set; set it to the URL of the distribution's server"
            )
        for url in self._urls:
            if not _is_url(url):
                raise RequestError(f"--debuginfod: '{printable(url)}' in {_URLS} is not a URL")

    def debug_file(self, build_id: str, what: str) -> Path | None:
        """Return the file with the debug info of a build, downloaded once; None if there is none.

        :param what: ``kernel RELEASE`` or ``module NAME``, printable
        """
        if not _BUILD_ID.fullmatch(build_id):
            return None
        path = _cache() / build_id / "debuginfo"
        # Clients keep an empty file for a while where no server had one.
        if path.is_file() and path.stat().st_size and _is_of_build(path, build_id):
            return path
        troubles = []
        for url in self._urls:
            try:
                self._download(url, build_id, path, what)
            except urllib.error.HTTPError as error:
                if error.code != 404:
                    troubles.append(f"{printable(url)}: HTTP status {error.code}")
            except (OSError, HTTPException, ValueError) as error:
                reason = getattr(error, "reason", error)
                why = os_reason(reason) if isinstance(reason, OSError) else printable(str(reason))
                troubles.append(f"{printable(url)}: {why}")
            else:
                return path
        for trouble in troubles:
            wanted = self.troubles.setdefault(trouble, [])
            wanted += [what] * (what not in wanted)
        return None

    def sentences(self, kind: str, name: str = "") -> list[str]:
        """Return what was not downloaded, and why.

        :param kind: ``kernel`` or ``module``
        :param name: of a single one
        """
        sentences = []
        for trouble, wanted in self.troubles.items():
            split = [what.partition(" ") for what in wanted]
            names = [each for of, _, each in split if of == kind and name in ("", each)]
            if names:
                what = f"{kind}{'s' * (len(names) > 1)} {listed(names, _MAX_NAMED)}"
                sentences.append(f"debug info of {what} was not downloaded: {trouble}")
        return sentences

    def _download(self, server: str, build_id: str, path: Path, what: str) -> None:
        url = f"{server.rstrip('/')}/buildid/{build_id}/debuginfo"
        request = urllib.request.Request(url, headers={"User-Agent": "kcensus"})
        opener = urllib.request.build_opener(_Http, _Https)
        with opener.open(request, timeout=_seconds()) as answer:
            length = answer.headers.get("Content-Length") or answer.headers.get("X-DEBUGINFOD-SIZE")
            size = int(length) if length and length.isdecimal() else 0
            if size > _MAX_BYTES:
                raise ValueError(f"{human_bytes(size)} are too much for debug info")
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(prefix="debuginfo.", dir=path.parent)
            try:
                self._store(answer.read, handle, size, what)
                if not _is_of_build(Path(name), build_id):
                    raise ValueError("the answer is not an ELF file with this build ID")
                os.replace(name, path)
            except BaseException:
                with suppress(OSError):
                    os.unlink(name)
                raise

    def _store(self, read: Callable[[int], bytes], handle: int, size: int, what: str) -> None:
        done = 0
        title = f"downloading the debug info of {what}" + (f", {human_bytes(size)}" if size else "")
        with os.fdopen(handle, "wb") as file, self.progress.step(title, size) as step:
            while block := read(_BLOCK):
                done += len(block)
                if done > _MAX_BYTES:
                    raise ValueError(f"more than {human_bytes(_MAX_BYTES)} are sent")
                file.write(block)
                step.advance(len(block))
        if size and done != size:
            raise ValueError(f"the connection ended after {done} of {size} bytes")


class _Paced(io.RawIOBase):
    """The bytes of a connection, while they do not come too slowly."""

    def __init__(self, raw: io.RawIOBase, seconds: int) -> None:
        self._raw, self._seconds = raw, seconds
        self._since: float | None = None
        self._bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count = self._raw.readinto(buffer)
        now = time.monotonic()
        # The server may need long before its first byte; the timeout of the socket is for that.
        self._since = now if self._since is None else self._since
        self._bytes += count or 0
        if now - self._since > self._seconds:
            if count and self._bytes < _LEAST_BYTES:
                raise TimeoutError(f"less than {human_bytes(_LEAST_BYTES)} in {self._seconds} s")
            self._since, self._bytes = now, 0
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Answer(HTTPResponse):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fp = io.BufferedReader(_Paced(self.fp.detach(), _seconds()))


class _Plain(HTTPConnection):
    response_class = _Answer


class _Secure(HTTPSConnection):
    response_class = _Answer


class _Http(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_Plain, request)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_Secure, request)


def _seconds() -> int:
    timeout = os.environ.get(_TIMEOUT, "")
    return int(timeout) if timeout.isdecimal() and int(timeout) else _SECONDS


def _is_url(word: str) -> bool:
    try:
        return urlsplit(word).scheme in ("http", "https")
    except ValueError:
        return False


def _is_of_build(path: Path, build_id: str) -> bool:
    try:
        with FileReader(path) as reader:
            is_elf = reader.read(0, len(elf.MAGIC)) == elf.MAGIC
            return is_elf and elf.identity(reader, elf.read_header(reader)).build_id == build_id
    except TargetError:
        return False


def _cache() -> Path:
    """Return the directory where elfutils' clients keep what they have downloaded."""
    if own := os.environ.get(_CACHE):
        return Path(own)
    home = Path(os.environ.get("HOME") or "/")
    old = home / ".debuginfod_client_cache"
    base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return old if old.is_dir() else base / "debuginfod_client"
