# SPDX-License-Identifier: LGPL-2.1-or-later
"""A cluster as its client shows it; no cluster is started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kcensus.fleets import FleetError, executors
from kcensus.fleets.apart import Job
from kcensus.fleets.executors import Cluster


class Client:
    """A client of Dask, with the answers of its workers."""

    status = "running"
    scheduler = None

    def __init__(self, **versions: str | Exception) -> None:
        self.versions, self.ran = versions, []  # type: ignore[var-annotated]

    def wait_for_workers(self, number: int, timeout: float) -> None:
        if not self.versions:
            raise TimeoutError

    def nthreads(self) -> dict[str, int]:
        return dict.fromkeys(self.versions, 2)

    def run(self, call: Callable[..., Any], *args: Any, on_error: str) -> dict[str, Any]:
        self.ran.append((call, args))
        return dict(self.versions)


def cluster_of(client: Any) -> Cluster:
    return Cluster(client)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "installed_version", lambda: "1.5")


def test_workers_with_the_same_kcensus_are_taken() -> None:
    assert cluster_of(Client(a="1.5", b="1.5")).width == 4


@pytest.mark.parametrize(
    ("version", "words"), [("1.4", "worker b has kcensus 1.4"), (ImportError(), "b lacks kcensus")]
)
def test_another_kcensus_is_refused(version: str | Exception, words: str) -> None:
    with pytest.raises(FleetError, match=words):
        cluster_of(Client(a="1.5", b=version))


def test_a_cluster_without_workers_is_refused() -> None:
    with pytest.raises(FleetError, match="dask worker"):
        cluster_of(Client())


def test_a_worker_that_joins_later_refuses_jobs_of_another_version() -> None:
    with pytest.raises(RuntimeError, match=r"has kcensus 1\.5, not 1\.4"):
        executors.work(Job("x", "report", "a", 1.0, 1, version="1.4"))


def test_a_lost_scheduler_and_long_absence_of_workers_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Client(a="1.5")
    cluster = cluster_of(client)
    cluster.check()
    client.versions = {}
    cluster.check()
    monkeypatch.setattr(executors, "_MAX_WITHOUT", 0.0)
    with pytest.raises(FleetError, match="no worker"):
        cluster.check()
    client.status = "closed"
    with pytest.raises(FleetError, match="scheduler is lost"):
        cluster.check()


def test_jobs_are_stopped_only_where_some_run() -> None:
    client = Client(a="1.5")
    cluster = cluster_of(client)
    client.ran.clear()
    cluster.stop([])
    assert client.ran == []
    cluster.stop(["x"])
    assert [args for _, args in client.ran] == [(["x"],)]
