# SPDX-License-Identifier: LGPL-2.1-or-later
"""Outputs of analyses of recorded kernels, as other programs read them."""
