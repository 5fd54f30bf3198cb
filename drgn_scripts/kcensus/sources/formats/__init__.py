# SPDX-License-Identifier: LGPL-2.1-or-later
"""File formats of dumps; unusable files raise ``TargetError``."""
