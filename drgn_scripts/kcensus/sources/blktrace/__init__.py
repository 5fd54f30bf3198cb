# SPDX-License-Identifier: LGPL-2.1-or-later
"""Traces of block devices as columns: the files of blktrace, and the text of blkparse.

They need no kernel: :func:`~.files.read_trace` reads events, :func:`~.bios.pair` makes bios and
requests of them, :func:`~.queues.tally` counts messages of CFQ and BFQ about their queues.
"""
