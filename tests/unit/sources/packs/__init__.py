# SPDX-License-Identifier: LGPL-2.1-or-later
"""Type packs of synthetic kernels."""
