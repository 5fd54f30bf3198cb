# SPDX-License-Identifier: LGPL-2.1-or-later
"""The analysis of a trace of block devices, without a kernel."""
