# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcensus: a census of kernel memory and I/O, on live kernels and vmcores."""
