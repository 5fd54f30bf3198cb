# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus kcopyd`` on *synthetic* kernels and logs."""
