# SPDX-License-Identifier: LGPL-2.1-or-later
"""One target, read by several processes that do not share it."""
