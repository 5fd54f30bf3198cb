# SPDX-License-Identifier: LGPL-2.1-or-later
"""Types of vendors' kernels against the needs of kcensus."""
