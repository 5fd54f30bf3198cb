# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run reports on many targets, on any executor of jobs, and keep them in a store.

Each target ends with one row in the table ``targets``, whatever becomes of it. Equal contents are
read once.
"""

from __future__ import annotations

import os
import queue
import time
import uuid
from asyncio import CancelledError
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa

from kcensus.analyses import analyses as known_analyses
from kcensus.fleets.apart import Answer, Job
from kcensus.fleets.executors import Executor, Future
from kcensus.fleets.look import Content, Looked, rows_of
from kcensus.fleets.store import TRANSIENT, Writer, writer
from kcensus.fleets.tables import DEBUGINFOD, VERSION, arrow, of_gone, stored, utc
from kcensus.fleets.targets import changed, gone
from kcensus.progress import SilentProgress, Step
from kcensus.render.plain import installed_version
from kcensus.text import printable

_BATCH, _BATCH_BYTES, _BATCH_SECONDS = 64, 64 << 20, 15.0
"""Targets, bytes of their rows, and seconds, after which finished targets are written."""
_MOST_TRIES = 2
"""Targets with one content that are tried where failures may pass; all others fail like them."""
_MAX_HELD = 5.0
"""Seconds that a target with new content waits for earlier ones: of equal ones, the first in order
is read, unless its file is slow."""
_LINES = 3
"""First lines of an error to keep."""
_MAX_REASONS = 3
"""Failed targets whose errors are on the screen."""
_ENDS = {
    "time": ("time", "took longer than {seconds:g} s; pass a longer --timeout"),
    "large": ("killed", "its results are too large"),
    "failed": ("killed", "its process failed: {error}"),
    "killed": ("killed", "its process was killed, probably for lack of memory"),
}
"""Step and error of a job that ended without an answer."""


@dataclass(frozen=True)
class Limits:
    """Limits of each target."""

    seconds: float = 600.0
    memory: int = 4 << 30
    """Bytes of private memory."""
    retries: int = 2
    """Attempts after the first one, where a worker died."""


@dataclass
class Tally:
    """What became of the targets."""

    states: Counter[str] = field(default_factory=Counter)
    """Number of targets by state; ``known`` are in the store already."""
    known: Counter[str] = field(default_factory=Counter)
    """Number of the known ones by state."""
    seconds: float = 0.0
    reasons: dict[str, str] = field(default_factory=dict)
    """Errors of the first failed targets, by path."""


@dataclass
class _Target:
    path: str
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)
    work: str = "content"
    content: Content = field(default_factory=Content)
    died: int = 0
    started: float = 0.0
    number: int = 0
    """Place among the targets."""
    held: float = 0.0
    """Since when it waits for earlier ones."""

    @property
    def name(self) -> str:
        """Path as in the store; the same for paths that differ in an escaped character."""
        return stored(self.path)


@dataclass(frozen=True)
class _Outcome:
    """What becomes of a target: facts are columns of ``targets``, streams are rows by table."""

    facts: Mapping[str, Any]
    answer: Answer = field(default_factory=Answer)
    worker: str = ""
    streams: Mapping[str, bytes] = field(default_factory=dict)


class Run:
    """One run over targets."""

    def __init__(
        self, executor: Executor, store: Writer, limits: Limits, template: Job, step: Step
    ) -> None:
        self._executor, self._store, self._limits, self._step = executor, store, limits, step
        self._template = template
        self._debug_info = stored(
            os.pathsep.join((*template.symbols, *[DEBUGINFOD] * template.debuginfod))
        )
        self._debug_info_changed = changed(template.symbols)
        self._ended: queue.SimpleQueue[tuple[_Target, Future]] = queue.SimpleQueue()
        self._running: dict[str, Future] = {}
        self._most, self._checked = executor.width * 2 + 2, time.monotonic()
        """Jobs to submit at a time, so that each worker has the next one; and since when."""
        self._batch: list[Mapping[str, pa.Table]] = []
        self._batch_bytes = 0
        self._written = time.monotonic()
        self._waiting: dict[str, list[_Target]] = {}
        """By digest of a content that is being read, the other targets with it."""
        self._unread: set[int] = set()
        """Numbers of targets whose content is being read."""
        self._held: list[_Target] = []
        """Targets with new content that wait for earlier ones, one of which may be equal."""
        self._failures: dict[str, list[dict[str, Any]]] = {}
        """By digest, facts of the failures that may pass."""
        self.tally = Tally()
        self._by_digest: dict[str, str] = {}
        """Attempts by the digest of their content."""
        self._known: dict[str, tuple[int, int, str, str]] = {}
        """By path as in the store, what :attr:`Job.known` tells the worker."""
        self._done_before: dict[tuple[str, str], str] = {}
        """State by path as in the store and digest of its content."""
        self._present: list[str] = []
        """Paths with a file, by their newest rows."""
        self._load()

    def _load(self) -> None:
        """Read what this version of kcensus has done, with at least the same analyses.

        Failures and incomplete reports count where this run offers nothing more.
        """
        wanted = {*(self._template.analyses or known_analyses())}
        every = self._store.targets().to_pylist()
        self._present = [
            row["target"] for row in every if row["present"] and row["state"] != "gone"
        ]
        rows = [
            row
            for row in every
            if row["sha256"] and row["kcensus"] == installed_version() and row["schema"] == VERSION
        ]
        for row in rows:
            is_failed = row["state"] == "failed"
            has_all = wanted <= {*row["analyses"].split(",")}
            is_done = row["step"] not in TRANSIENT if is_failed else has_all
            may_go_better = is_failed or row["state"] == "incomplete"
            if is_done and not (may_go_better and self._offers_more(row)):
                self._by_digest[row["sha256"]] = row["attempt"]
        done = {*self._by_digest.values()}
        for row in rows:
            if row["present"] and (row["attempt"] in done or row["duplicate_of"] in done):
                file = row["size_bytes"], row["modified_ns"], row["sha256"], row["digest"]
                self._known[row["target"]] = file
                self._done_before[row["target"], row["sha256"]] = row["state"]

    def _offers_more(self, row: Mapping[str, Any]) -> bool:
        """Return whether this run allows more memory, or other debug info, than that of a row."""
        before = (row.get("debug_info") or "").split(os.pathsep)
        is_new = not {*self._debug_info.split(os.pathsep)} <= {*before, ""}
        is_newer = self._debug_info_changed > row["started"].timestamp()
        is_newer &= bool(row["tried"]) or row["step"] in ("types", "open")
        return is_new or is_newer or self._limits.memory > (row.get("memory_limit") or 0)

    def over(
        self, paths: Sequence[str], unreadable: Mapping[str, str], roots: Sequence[str]
    ) -> Tally:
        """Run all; on return each has a row, and so has what is gone below the roots."""
        start = time.monotonic()
        if lost := gone(self._present, {*map(stored, paths)}, roots):
            self._batch.append({"targets": of_gone(lost, installed_version())})
        for path, why in unreadable.items():
            target = _Target(path, started=time.time())
            self._fail(target, "content", f"the directory cannot be read: {why}")
        todo = deque(_Target(path, number=number) for number, path in enumerate(paths))
        try:
            while todo or self._running:
                self._check()
                while todo and len(self._running) + len(self._held) < self._most:
                    self._submit(todo.popleft())
                self._take()
                held, self._held = self._held, []
                for target in held:
                    self._identified(target, target.content)
        finally:
            for future in self._running.values():
                future.cancel()
            self._executor.stop([*self._running])
            self._write()
        self.tally.seconds = time.monotonic() - start
        return self.tally

    def _check(self) -> None:
        """Look after the executor from time to time: its workers come and go."""
        now = time.monotonic()
        if now > self._checked + _BATCH_SECONDS:
            self._executor.check()
            self._most, self._checked = self._executor.width * 2 + 2, now

    def _submit(self, target: _Target) -> None:
        target.started = target.started or time.time()
        job = msgspec.structs.replace(
            self._template, path=target.path, work=target.work, attempt=target.attempt,
            known=self._known.get(target.name, self._template.known),
        )  # fmt: skip
        future = self._executor.submit(job)
        self._running[target.attempt] = future
        if target.work == "content":
            self._unread.add(target.number)
        future.add_done_callback(lambda ended: self._ended.put((target, ended)))

    def _take(self) -> None:
        """Wait for one job, and go on with its target."""
        left = self._written + _BATCH_SECONDS - time.monotonic()
        wait = min(left, _MAX_HELD) if self._held else left
        try:
            target, future = self._ended.get(timeout=max(wait, 0.01))
        except queue.Empty:
            if left <= wait:
                self._write()
            return
        del self._running[target.attempt]
        self._unread.discard(target.number)
        try:
            answer, worker = future.result()
        except (Exception, CancelledError) as error:  # of Dask: the worker or its host died
            self._executor.check()
            target.died += 1
            if target.died <= self._limits.retries:
                self._submit(target)
            else:
                self._fail(target, "worker", f"its worker failed {target.died} times: {error}")
            return
        ended = answer.ended if answer.content else answer.ended or "killed"
        if ended:
            step, why = _ENDS[ended]
            text = answer.content.decode(errors="replace")
            why = why.format(seconds=self._limits.seconds, error=text)
            self._fail(target, step, why, answer)
        elif target.work == "content":
            self._identified(target, msgspec.msgpack.decode(answer.content, type=Content))
        else:
            looked = msgspec.msgpack.decode(answer.content, type=Looked)
            self._end(target, _Outcome(looked.facts, answer, worker, looked.tables))

    def _identified(self, target: _Target, content: Content) -> None:
        """Read a target whose content is new."""
        target.content = content
        digest = content.sha256
        if content.error:
            self._fail(target, "content", content.error)
        elif (target.name, digest) in self._done_before:
            self.tally.known[self._done_before[target.name, digest]] += 1
            self._count("known")
        elif digest in self._by_digest:
            twin = {"state": "duplicate", "duplicate_of": self._by_digest[digest]}
            self._add(target, _Outcome(twin))
        elif digest in self._waiting:
            self._waiting[digest].append(target)
        elif len(failures := self._failures.get(digest, [])) >= _MOST_TRIES:
            self._add(target, _Outcome(failures[-1]))
        elif min(self._unread, default=target.number) < target.number and self._may_wait(target):
            self._held.append(target)
        else:
            self._waiting[digest] = []
            target.work = "report"
            self._submit(target)

    def _may_wait(self, target: _Target) -> bool:
        """Return whether a target can wait for an earlier one that may be equal."""
        target.held = target.held or time.monotonic()
        return time.monotonic() < target.held + _MAX_HELD

    def _fail(self, target: _Target, step: str, error: str, answer: Answer | None = None) -> None:
        facts = {"state": "failed", "step": step, "error": error}
        self._end(target, _Outcome(facts, answer or Answer()))

    def _end(self, target: _Target, outcome: _Outcome) -> None:
        self._add(target, outcome)
        digest, facts = target.content.sha256, outcome.facts
        if not digest:
            return
        if facts.get("step") in TRANSIENT:  # the next one may do better
            why = {name: facts[name] for name in ("state", "step", "error")}
            self._failures.setdefault(digest, []).append(why)
        else:
            self._by_digest[digest] = target.attempt
        for other in self._waiting.pop(digest, []):
            self._identified(other, other.content)

    def _add(self, target: _Target, outcome: _Outcome) -> None:
        try:
            tables = {name: rows_of(stream) for name, stream in outcome.streams.items()}
            tables["targets"] = self._row(target, outcome)
        except Exception as error:  # of what is in the target: others go on
            why = f"its results cannot be stored: {error}"
            facts = {"state": "failed", "step": "analyse", "error": why}
            outcome = replace(outcome, facts=facts)
            tables = {"targets": self._row(target, outcome)}
        if outcome.facts["state"] == "failed" and len(self.tally.reasons) < _MAX_REASONS:
            self.tally.reasons[target.path] = str(outcome.facts.get("error", ""))
        self._batch.append(tables)
        self._batch_bytes += sum(table.nbytes for table in tables.values())
        self._count(str(outcome.facts["state"]))
        if len(self._batch) >= _BATCH or self._batch_bytes >= _BATCH_BYTES:
            self._write()

    def _row(self, target: _Target, outcome: _Outcome) -> pa.Table:
        content, facts, answer = target.content, outcome.facts, outcome.answer
        taken = facts.get("time", target.started)
        error = "; ".join(str(facts.get("error", "")).splitlines()[:_LINES])
        row = {
            "day": f"{utc(taken):%Y-%m-%d}",
            **facts,
            "attempt": target.attempt,
            "target": target.name,
            "time": utc(taken),
            "error": printable(error),
            "sha256": content.sha256,
            "digest": content.digest,
            "size_bytes": content.size_bytes,
            "modified_ns": content.modified_ns,
            "started": utc(target.started),
            "seconds": answer.seconds,
            "cpu_seconds": answer.cpu_seconds,
            "peak_bytes": answer.peak_bytes,
            "retries": target.died,
            "worker": outcome.worker,
            "kcensus": installed_version(),
            "schema": VERSION,
            "memory_limit": self._limits.memory,
            "debug_info": self._debug_info,
        }
        return arrow("targets", [row], {})

    def _count(self, state: str) -> None:
        self.tally.states[state] += 1
        if state == "known":
            self._step.skip()
        else:
            self._step.advance()

    def _write(self) -> None:
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        if batch:
            self._store.add(batch)
        self._written = time.monotonic()


def fleet(
    paths: Sequence[str],
    store: str | os.PathLike[str],
    executor: Executor,
    *,
    unreadable: Mapping[str, str] | None = None,
    roots: Sequence[str] = (),
    limits: Limits | None = None,
    symbols: Sequence[str] = (),
    analyses: Sequence[str] = (),
    debuginfod: bool = False,
    step: Step | None = None,
) -> Tally:
    """Report on targets, and keep the results in a store.

    :param unreadable: reasons by directory; each gets a row, too
    :param roots: directories whose targets are all in ``paths``
    :param step: takes each target
    :raises FleetError: another process writes to the store
    :raises OutputError: it cannot be written; a later run goes on
    """
    limits = limits or Limits()
    template = Job(
        "", "", "", limits.seconds, limits.memory, tuple(symbols), tuple(analyses), debuginfod,
        installed_version(),
    )  # fmt: skip
    with writer(store) as made:
        return Run(executor, made, limits, template, step or SilentProgress()).over(
            paths, unreadable or {}, roots
        )
