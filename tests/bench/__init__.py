# SPDX-License-Identifier: LGPL-2.1-or-later
"""Measurements: ratios of two things timed in one run, never seconds."""
