# SPDX-License-Identifier: LGPL-2.1-or-later
"""Metrics for others: a file for node_exporter, or a port for Prometheus."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.exposition import generate_latest, start_wsgi_server
from prometheus_client.registry import Collector, CollectorRegistry

from kcensus.render.directory import OutputError, replacing

_END = b"# EOF\n"
"""OpenMetrics demands it; for Prometheus' text format it is a comment."""


def text(metrics: Collector) -> bytes:
    """Return metrics as text that both formats allow."""
    return generate_latest(_registry(metrics)) + _END


def _registry(metrics: Collector) -> CollectorRegistry:
    """Return a registry with nothing else, such as metrics of this process."""
    registry = CollectorRegistry()
    registry.register(metrics)
    return registry


class MetricsFile:
    """A file of metrics; a reader sees the ones before or the new ones, and always all of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: tuple[int, int, int] | None = None

    def write(self, metrics: Collector) -> None:
        """Replace the file.

        :raises OutputError: it cannot be written
        """
        with replacing(self._path) as part:
            part.write_bytes(text(metrics))
            written = _identity(part)
        self._written = written

    def remove(self) -> None:
        """Remove the file, if it is the one that :meth:`write` wrote last.

        Another process may have replaced it since, and its figures are current.
        """
        path = self._path.resolve()
        try:
            if self._written is not None and _identity(path) == self._written:
                path.unlink()
        except OSError:  # it is gone, or stays: there is nothing to do about it
            pass


def _identity(path: Path) -> tuple[int, int, int]:
    """Return what identifies a file; an inode alone is given to another one once it is free."""
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_mtime_ns


@contextmanager
def serving(metrics: Collector, host: str, port: int) -> Iterator[None]:
    """Serve metrics at ``http://HOST:PORT/metrics``, until the context ends.

    :raises OutputError: the address cannot be used
    """
    try:
        server, thread = start_wsgi_server(port, host, _registry(metrics))
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(
            f"cannot listen on '{host}:{port}': {reason}; choose another address or port"
        ) from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
