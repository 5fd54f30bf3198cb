# SPDX-License-Identifier: LGPL-2.1-or-later
"""Two kernels: their differences, and the effect of a patch."""

from __future__ import annotations

from os import PathLike, fspath

from kcensus import compare, reports
from kcensus.api.answers import Report, Result
from kcensus.api.source import Readable, context_of
from kcensus.catalogue import Catalogue, Patch, load
from kcensus.catalogue.validate import Refused, Side, judge, look_at, validation_result


def diff(before: Report, after: Report) -> Result:
    """Return the growth from one report to another, like ``kcensus diff``.

    >>> import kcensus
    >>> sides = [kcensus.report(kcensus.open_target(name)) for name in ("sample", "sample-after")]
    >>> changes = kcensus.diff(*sides).tables["slab_caches"].set_index("cache")
    >>> changes.loc["kcopyd_job", "state"]
    'changed'

    :param before: a report of :func:`kcensus.report`
    :param after: a report of the other kernel, or of the other dump
    """
    return Result(compare.compare(before.report, after.report), compare.FIRST_TABLES)


def validate(
    patch: str,
    before: Readable | str | PathLike[str],
    after: Readable | str | PathLike[str],
    *,
    traces: bool = False,
    as_given: bool = False,
) -> Result:
    """Judge whether a patch has the promised effect, like ``kcensus validate``.

    >>> import kcensus
    >>> before, after = map(kcensus.open_target, ("sample", "sample-after"))
    >>> kcensus.validate("list-lru-memory", before, after).summary["verdict"]
    'confirmed'

    :param patch: id of a patch in the catalogue
    :param before: a target of :func:`kcensus.open_target` or a drgn program, without the patch; for
        traces, the prefix of the files of blktrace, their directory, or the output of blkparse
    :param after: the same with the patch, under the same workload
    :param traces: whether the two are traces
    :param as_given: assert that the patch, or a tunable, makes the difference; for traces also the
        scheduler and the disk
    :raises LookupError: the catalogue has no such patch, or no validation of it
    :raises ValueError: the two are not a valid pair; the message has the reason
    :raises AnalysisError: an analysis that the patch needs cannot be run on one of them
    """
    known = load()
    chosen = known.validated(patch, traces=traces)
    sides = [_side(chosen, side, known, traces=traces) for side in (before, after)]
    try:
        judgement = judge(chosen, [look_at(chosen, *sides, as_given=as_given)])
    except Refused as error:
        raise ValueError(str(error)) from None
    return Result(reports.conclude(validation_result(chosen, judgement), known))


def _side(
    patch: Patch, side: Readable | str | PathLike[str], known: Catalogue, *, traces: bool
) -> Side:
    if isinstance(side, str | PathLike):
        if not traces:
            raise TypeError(f"{side!r} is a string; pass kcensus.open_target({side!r})")
        return reports.traced(patch, fspath(side))
    if traces:
        raise TypeError(f"{side!r} is not the path of a trace; pass its path as a string")
    return reports.measured(context_of(side), patch, known)
