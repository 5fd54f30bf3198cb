# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tests on the bundled samples: real kernels, without debug info."""
