# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locks and wait queues: which tasks wait on them."""
