# SPDX-License-Identifier: LGPL-2.1-or-later
"""Dumps of real kernels without their debug info."""
