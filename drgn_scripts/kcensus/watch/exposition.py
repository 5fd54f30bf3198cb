# SPDX-License-Identifier: LGPL-2.1-or-later
"""Metrics for others: a file for node_exporter, or a port for Prometheus."""

from __future__ import annotations

import io
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client.exposition import generate_latest, make_wsgi_app
from prometheus_client.registry import Collector, CollectorRegistry

from kcensus.outputs import OutputError, remove, replacing

_END = b"# EOF\n"
"""OpenMetrics demands it; for Prometheus' text format it is a comment."""
_MAX_CONNECTIONS = 64
"""Connections at once; the oldest ends for a new one."""
_MAX_SECONDS = 5
"""Time for all of a request and its answer."""
_STACK_BYTES = 256 << 10
"""Stack of a thread."""


def text(metrics: Collector) -> bytes:
    """Return metrics as text that is valid in both formats."""
    return generate_latest(_registry(metrics)) + _END


def _registry(metrics: Collector) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(metrics)
    return registry


class MetricsFile:
    """A file of metrics; a reader sees the former or the new ones, and always all of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: os.stat_result | None = None

    def write(self, metrics: Collector) -> None:
        """Replace the file.

        :raises OutputError: it cannot be written
        """
        with replacing(self._path) as part:
            part.write_bytes(text(metrics))
            written = os.stat(part)
        self._written = written

    def keep(self) -> None:
        """Let the file stay: :meth:`remove` does nothing then."""
        self._written = None

    def remove(self) -> None:
        """Remove the file if :meth:`write` wrote it last.

        Another process may have replaced it since, and its figures are current.
        """
        if self._written is not None:
            remove(self._path, self._written)


@contextmanager
def _small_stacks() -> Iterator[None]:
    """Give threads small stacks: they count as private memory, by default with 8 MiB each."""
    before = threading.stack_size(_STACK_BYTES)
    try:
        yield
    finally:
        threading.stack_size(before)


class _Server(ThreadingMixIn, WSGIServer):
    """Answers each connection in a thread; slow ones end, and the oldest for new ones."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self._began: dict[socket.socket, float] = {}
        super().__init__(address, handler)

    def service_actions(self) -> None:
        """End what takes too long; called every half a second, and after each new connection."""
        late = time.monotonic() - _MAX_SECONDS
        for request, began in list(self._began.items()):
            if began < late:
                _end(request)

    def process_request(self, request: Any, client_address: Any) -> None:
        open_ = list(self._began)
        for oldest in open_[: max(len(open_) + 1 - _MAX_CONNECTIONS, 0)]:
            _end(oldest)  # a scrape takes milliseconds
        if len(open_) >= 2 * _MAX_CONNECTIONS:  # their threads have not seen it yet
            self.shutdown_request(request)
            return
        self._began[request] = time.monotonic()
        try:
            with _small_stacks():
                super().process_request(request, client_address)
        except BaseException:  # no thread has started that would do it
            del self._began[request]
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._began.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print no errors of disconnected clients: they would be drawn across the terminal."""


def _end(request: socket.socket) -> None:
    """Let the thread of a connection see its end."""
    with suppress(OSError):  # it has ended
        request.shutdown(socket.SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    timeout = _MAX_SECONDS

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log no requests."""

    def get_stderr(self) -> Any:
        """Return a stream that is discarded; the client gets status 500."""
        return io.StringIO()


@contextmanager
def serving(metrics: Collector, host: str, port: int) -> Iterator[int]:
    """Serve metrics at ``http://HOST:PORT/metrics``, until the context ends; yield the port.

    :param port: 0 for any free port
    :raises OutputError: the address cannot be used
    """
    made = make_wsgi_app(_registry(metrics))

    def app(environ: dict[str, Any], start: Any) -> Any:
        try:
            return made(environ, start)
        except (TypeError, ValueError):  # of an impossible version in Accept
            return made(environ | {"HTTP_ACCEPT": ""}, start)

    try:
        server = make_server(host, port, app, _Server, _Handler)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(
            f"cannot listen on '{host}:{port}': {reason}; choose another address or port"
        ) from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    with _small_stacks():
        thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
