# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finders of events brought about by one of several tasks: completions, work, pipes."""
