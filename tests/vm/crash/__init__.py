# SPDX-License-Identifier: LGPL-2.1-or-later
"""kcensus inside crash: the extension, its protocol, and each format that crash opens."""
