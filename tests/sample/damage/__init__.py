# SPDX-License-Identifier: LGPL-2.1-or-later
"""Recorded kernels that are damaged on purpose."""
