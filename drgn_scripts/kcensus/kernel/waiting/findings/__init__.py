# SPDX-License-Identifier: LGPL-2.1-or-later
"""Findings of finders, where they are too long for the module of the finder."""
