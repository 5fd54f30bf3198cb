# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locks and wait queues, with their waiters and owners."""
