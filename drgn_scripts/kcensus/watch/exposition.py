# SPDX-License-Identifier: LGPL-2.1-or-later
"""Metrics for others: a file for node_exporter, or a port for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


def write(metrics: Collector, path: Path) -> None:
    """Replace a file with metrics; a reader sees the old ones or the new ones, complete.

    :raises OutputError: it cannot be written
    """
    with replacing(path) as part:
        part.write_bytes(text(metrics))


def remove(path: Path) -> None:
    """Remove a file of metrics, so that old figures are not taken for current ones."""
    with suppress(OSError):
        path.resolve().unlink()


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
