# SPDX-License-Identifier: LGPL-2.1-or-later
"""An executor whose jobs end as told, and runs on it."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from kcensus.fleets import run, store
from kcensus.fleets.apart import Answer, Job
from kcensus.fleets.look import Content, Looked
from kcensus.fleets.tables import arrow
from kcensus.text import printable

Ended = tuple[Answer, str]


def content(job: Job) -> Ended:
    """Return the content of ``NAME`` or ``NAME=CONTENT``."""
    digest = hashlib.sha256(os.fsencode(job.path.partition("=")[2] or job.path)).hexdigest()
    return Answer(content=msgspec.msgpack.encode(Content(digest, "whole", 1, 1))), "w"


def looked(job: Job) -> Ended:
    host = printable(job.path)
    common = {"day": "2026-01-02", "attempt": job.attempt, "host": host}
    names = ",".join(job.analyses)
    row = {"analysis": "slab", "finding": "x", "kind": "x", "severity": "notice", "title": host}
    sink = pa.BufferOutputStream()
    rows = arrow("findings", [row], common)
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    facts = {**common, "time": 1767312000.0, "state": "done", "step": "", "analyses": names}
    made = Looked(facts, {"findings": sink.getvalue().to_pybytes()})
    return Answer(content=msgspec.msgpack.encode(made)), "w"


class Told:
    """An executor that does each job at once; ``ends`` has other ends by path."""

    width = 2

    def __init__(self, **ends: Callable[[Job], Ended]) -> None:
        self.ends, self.content = ends, content
        self.jobs: list[tuple[str, str]] = []
        self.given: list[Job] = []
        self.stopped: Collection[str] = ()
        self.lost: Exception | None = None
        self.finished = 0

    def check(self) -> None:
        if self.lost:
            raise self.lost

    def stop(self, attempts: Collection[str]) -> None:
        self.stopped = attempts

    def submit(self, job: Job) -> Future[Ended]:
        self.jobs.append((job.work, job.path))
        self.given.append(job)
        future: Future[Ended] = Future()
        try:
            end = self.ends.get(job.path.partition("=")[0]) if job.work == "report" else None
            future.set_result((end or (self.content if job.work == "content" else looked))(job))
        except Exception as error:  # the executor passes any error of a job on
            future.set_exception(error)
        return future


def ended(how: str) -> Callable[[Job], Ended]:
    return lambda job: (Answer(how), "w")


def died(times: int) -> Callable[[Job], Ended]:
    left = [times]

    def work(job: Job) -> Ended:
        left[0] -= 1
        if left[0] >= 0:
            raise RuntimeError("KilledWorker")
        return looked(job)

    return work


def answered(**facts: Any) -> Callable[[Job], Ended]:
    made = {"state": "done", "step": "", "analyses": "slab", **facts}
    return lambda job: (Answer(content=msgspec.msgpack.encode(Looked(made))), "w")


def told_facts(**facts: str) -> Callable[[Job], Ended]:
    def work(job: Job) -> Ended:
        made = msgspec.msgpack.decode(looked(job)[0].content, type=Looked)
        return Answer(content=msgspec.msgpack.encode(Looked(made.facts | facts, made.tables))), "w"

    return work


def over(place: Path, paths: list[str], told: Told | None = None, **more: Any) -> Counter[str]:
    return run.fleet(paths, place, told or Told(), **{"analyses": ["slab"], **more}).states


def rows(place: Path, table: str = "targets") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = store.read(place, table).to_pylist()
    return found
