# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writeback of dirty pages: its flushers, and the limit of dirty pages."""
