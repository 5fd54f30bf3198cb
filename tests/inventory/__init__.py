# SPDX-License-Identifier: LGPL-2.1-or-later
"""Members that kcensus needs, and which kernels of vendors have them."""
