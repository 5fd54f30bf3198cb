# SPDX-License-Identifier: LGPL-2.1-or-later
"""Targets of device mapper that copy: snapshots and mirrors."""
