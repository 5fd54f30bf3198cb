# SPDX-License-Identifier: LGPL-2.1-or-later
"""Limits of I/O: of cgroups (io.max, io.cost, io.latency), and of dirty pages."""
