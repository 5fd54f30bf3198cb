# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernels of the lab: Debian packages, unpacked into the cache."""
