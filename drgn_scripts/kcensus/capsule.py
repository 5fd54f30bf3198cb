# SPDX-License-Identifier: LGPL-2.1-or-later
"""Create capsules: run analyses on a target that records their reads."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import drgn
import numpy as np

from kcensus.analyses import Analysis
from kcensus.analyses.failures import OTHER, kind_of
from kcensus.analyses.runner import Context
from kcensus.catalogue import Prober, ask_everything, load, modules
from kcensus.engine.gather import gather
from kcensus.engine.memory import Faults, Mask, Memory
from kcensus.engine.slub.pages import PageMap
from kcensus.engine.slub.slabs import UnsupportedAllocator
from kcensus.kernel.kernel import Kernel
from kcensus.kernel.log import records
from kcensus.progress import Progress, SilentProgress
from kcensus.redaction import Redaction, new_key
from kcensus.reports import Report, report
from kcensus.sources import Target, TargetError
from kcensus.sources.capsule.recorder import Recorder
from kcensus.sources.capsule.snapshot import Snapshot
from kcensus.sources.debuginfo.packages import modules_of


@dataclass(frozen=True)
class Made:
    """The content of a capsule."""

    analyses: list[str]
    failed: dict[str, str]
    """Reasons of failed analyses, in one sentence each. The capsule has them, too; a redacted one
    has their classes, because sentences have names."""
    bytes: int
    """Of the file."""
    stored: int
    """Pages in the capsule."""
    unreadable: int
    """Pages that were requested but could not be read."""
    lacking: list[str]
    """Names of modules whose types are missing: nothing adds them to a capsule later."""
    unredacted: list[str]
    """What may hold names or data of programs, in one phrase each."""


class Recording:
    """A target whose reads and lookups are recorded, and a capsule of them.

    :param redact: kinds of content to redact: ``names``
    :param keep: kinds of content that ``names`` leaves: ``log``, the text of the kernel log
    :param key: secret of the pseudonyms of names; None for a random key, not saved
    :param snapshot: the memory of a running kernel, which would change meanwhile
    """

    def __init__(
        self,
        target: Target,
        *,
        redact: Sequence[str] = (),
        keep: Sequence[str] = (),
        key: bytes | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        self.recorder = Recorder(target, has_uses="names" in redact, snapshot=snapshot)
        self._original, self._redact, self._keep, self._key = target, redact, keep, key
        self._redaction: Redaction | None = None
        # The names to redact are looked for in the memory of the capsule, but not recorded.
        self._source = target
        if snapshot is not None:
            self._source = Recorder(target, snapshot=snapshot).target

    @property
    def target(self) -> Target:
        """The recorded target, to run analyses on."""
        return self.recorder.target

    def take_slabs(self) -> bool:
        """Take the ``struct page`` array and all slabs of a running kernel, as fast as they come.

        They belong together, and change while they are analyzed. Return whether there was room.
        """
        snapshot = self.recorder.snapshot
        if snapshot is None:
            return True
        with suppress(LookupError, drgn.FaultError, UnsupportedAllocator):
            pages = PageMap(Memory(self._source.prog))
            if not snapshot.has_room(pages.pages * pages.struct_size):
                return False
            # Where they are, from a pass over the array that takes too long to be kept.
            slab_map = Kernel(self._original.prog, live=True).slab_map
            slabs = slab_map.survey.slabs
            first = slab_map.pages.pfn(slabs.address).astype(np.int64)
            counts = slab_map.slab_pages(slabs)
            starts = np.repeat(first - np.cumsum(counts) + counts, counts)
            frames = np.unique(starts + np.arange(len(starts)))
            for span in pages.chunk_spans():
                pages.read(*span, Faults())
            return snapshot.take(frames)
        return True

    def find_names(
        self, progress: Progress | None = None, frames: Mask | None = None
    ) -> Redaction | None:
        """Find the names to redact, once; this can take as long as an analysis.

        :param frames: page frames that the capsule will have; by default all that were read so far
        :raises TargetError: names cannot be redacted
        """
        if "names" not in self._redact or self._redaction is not None:
            return self._redaction
        target, keeps_log = self._source, "log" in self._keep
        try:
            if keeps_log:
                # All of it, whatever the analyses need.
                with suppress(LookupError, ValueError, drgn.FaultError):
                    records(self.recorder.target.prog)
            self._redaction = Redaction(
                target,
                self.recorder,
                self._key or new_key(),
                progress or SilentProgress(),
                keeps_log=keeps_log,
                frames=self.recorder.touched.copy() if frames is None else frames,
            )
        except (LookupError, drgn.FaultError) as error:
            raise TargetError(f"{target.name}: names cannot be redacted: {error}") from error
        return self._redaction

    def probe_patches(self) -> None:
        """Record the lookups of ``kcensus patches`` and ``validate``."""
        _probe_patches(self.target)

    def write(
        self,
        path: Path | BinaryIO,
        made: Report,
        *,
        level: int = 3,
        progress: Progress | None = None,
    ) -> Made:
        """Write a capsule of the reads so far.

        :param path: or an open file, empty
        :param made: what the recorded analyses found
        :param level: zstd compression level, 1 to 19
        :raises TargetError: names cannot be redacted
        :raises OutputError: the capsule cannot be written
        """
        target, recorder = self._source, self.recorder
        progress = progress or SilentProgress()
        failed = {each.name: each.error for each in made.sections if each.result is None}
        unredacted = []
        try:
            leave_out_programs(recorder, target)
        except (LookupError, drgn.FaultError) as error:
            # The capsule of a case has this phrase, so it must not have names.
            unredacted.append(f"pages of programs and files ({kind_of(error)})")
        names = [section.name for section in made.sections]
        redaction = self.find_names(progress)
        if redaction is not None:
            redaction.begin()
        counts = recorder.write(
            path,
            {
                "kernel": target.kernel,
                # Redaction takes the guard away that it is made of.
                "boot": made.head.machine.boot if made.head.machine is not None else "",
                "format": target.format,
                "analyses": names,
                "failed": _kinds(made) if redaction else failed,
                "types": self._original.type_sources,
                "redacted": ["names"] if redaction else [],
                "kept": sorted(set(self._keep)) if redaction else [],
            },
            level=level,
            progress=progress,
            scrub=redaction,
        )
        unredacted += redaction.missing if redaction else []
        gaps = [gap for section in made.sections if section.result for gap in section.result.gaps]
        lacking = sorted({name for gap in gaps for name in modules_of(gap)})
        return Made(names, failed, **counts, lacking=lacking, unredacted=unredacted)


def create(
    target: Target,
    path: Path,
    analyses: Sequence[Analysis],
    *,
    level: int = 3,
    redact: Sequence[str] = (),
    keep: Sequence[str] = (),
    key: bytes | None = None,
    progress: Progress | None = None,
    chunk_bytes: int | None = None,
) -> Made:
    """Run ``analyses`` on ``target`` and write a capsule of their reads to ``path``.

    :param level: zstd compression level, 1 to 19
    :param redact: as of :class:`Recording`, like ``keep`` and ``key``
    :param chunk_bytes: bytes that an analysis reads at a time; None for its default
    :raises TargetError: the target is live or a capsule, or all analyses failed
    :raises OutputError: the capsule cannot be written
    """
    if target.live:
        raise TargetError(
            f"{target.name}: is live: its memory changes while it is recorded; dump it first, or "
            "run `kcensus collect`"
        )
    if target.recorded_for is not None:
        raise TargetError(f"{target.name}: is already a capsule; record the vmcore it came from")
    progress = progress or SilentProgress()
    recording = Recording(target, redact=redact, keep=keep, key=key)
    context = Context.of(recording.target, progress=progress, chunk_bytes=chunk_bytes)
    made = report(context, analyses)
    if not made.results:
        why = next(iter(made.errors.values()), "")
        raise TargetError(f"{target.name}: nothing to record: {why}")
    recording.probe_patches()
    return recording.write(path, made, level=level, progress=progress)


def _kinds(made: Report) -> dict[str, str]:
    return {each.name: each.kind or OTHER for each in made.sections if each.result is None}


def leave_out_programs(recorder: Recorder, target: Target) -> None:
    """Forget pages on lists of reclaim, which are of programs and files.

    Words on a stack that look like a list or a lock may point into such a page.

    :raises LookupError: the debug info lacks pages or their flags
    :raises drgn.FaultError: what leads to the pages is missing from the dump
    """
    pages = PageMap(Memory(target.prog))
    frames = np.flatnonzero(recorder.touched)
    frames = frames[pages.valid(frames)]
    heads = gather(pages.memory, pages.head(frames, Faults()), pages.layout, Faults())
    recorder.touched[frames[pages.is_reclaimable(heads.columns)]] = False


def _probe_patches(target: Target) -> None:
    """Record the lookups of ``kcensus patches`` and ``validate``: types, symbols, RAM size."""
    patches = load(entry_points=False).patches
    lacking = target.need_modules(*modules(patches))
    ask_everything(patches, Prober(target.prog, lacking))
