# SPDX-License-Identifier: LGPL-2.1-or-later
"""Two kernels: their differences, and the effect of a patch."""

from __future__ import annotations

from os import PathLike, fspath

from kcensus import compare, reports
from kcensus.api.answers import Directories, Report, Result, load_with, report
from kcensus.api.source import Readable, context_of
from kcensus.catalogue import Catalogue, Patch
from kcensus.catalogue.validate import Refused, Side, judge, look_at, validation_result


def diff(before: Report | Readable, after: Report | Readable) -> Result:
    """Return the growth from one report to another, like ``kcensus diff``.

    >>> import kcensus
    >>> changes = kcensus.diff("sample", "sample-after").tables["slab_caches"].set_index("cache")
    >>> changes.loc["kcopyd_job", "state"]
    'changed'

    :param before: a report of :func:`kcensus.report`, or a source to make one of
    :param after: the same of the other kernel, or of the other dump
    """
    before, after = (each if isinstance(each, Report) else report(each) for each in (before, after))
    return Result(compare.compare(before.report, after.report), compare.FIRST_TABLES)


def validate(
    patch: str,
    before: Readable,
    after: Readable,
    *,
    traces: bool = False,
    as_given: bool = False,
    catalogue: Directories = (),
) -> Result:
    """Judge whether a patch has the promised effect, like ``kcensus validate``.

    >>> import kcensus
    >>> kcensus.validate("list-lru-memory", "sample", "sample-after").summary["verdict"]
    'confirmed'

    :param patch: id of a patch in the catalogue
    :param before: a drgn program, a target of :func:`kcensus.open_target`, or a path or name, of a
        kernel without the patch; for traces, the prefix of the files of blktrace, their directory,
        or the output of blkparse
    :param after: the same with the patch, under the same workload
    :param traces: whether the two are traces
    :param as_given: assert that the patch, or a tunable, makes the difference; for traces also the
        scheduler and the disk
    :param catalogue: a directory with patches and rules of your own, or several
    :raises CatalogueError: a file of your own is unusable; the message names it and the key
    :raises LookupError: the catalogue has no such patch, or no validation of it
    :raises ValueError: the two are not a valid pair; the message has the reason
    :raises AnalysisError: an analysis that the patch needs cannot be run on one of them
    """
    known = load_with(catalogue)
    chosen = known.validated(patch, traces=traces)
    sides = [_side(chosen, side, known, traces=traces) for side in (before, after)]
    try:
        judgement = judge(chosen, [look_at(chosen, *sides, as_given=as_given)])
    except Refused as error:
        raise ValueError(str(error)) from None
    return Result(reports.conclude(validation_result(chosen, judgement), known))


def _side(patch: Patch, side: Readable, known: Catalogue, *, traces: bool) -> Side:
    if not traces:
        return reports.measured(context_of(side), patch, known)
    if not isinstance(side, (str, PathLike)):
        raise TypeError(f"{side!r} is not the path of a trace; pass its path as a string")
    return reports.traced(patch, fspath(side))
