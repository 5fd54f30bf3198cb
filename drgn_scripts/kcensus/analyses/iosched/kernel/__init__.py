# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests in the memory of a kernel, and the queues of their schedulers."""
