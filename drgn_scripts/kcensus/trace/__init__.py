# SPDX-License-Identifier: LGPL-2.1-or-later
"""Traces of block devices as columns: what blktrace wrote, and what blkparse printed.

Nothing here needs a kernel. :func:`~kcensus.trace.files.read_trace` reads events,
:func:`~kcensus.trace.bios.pair` makes bios and requests of them,
:func:`~kcensus.trace.queues.tally` counts what the messages of CFQ and BFQ say of their queues.
"""
