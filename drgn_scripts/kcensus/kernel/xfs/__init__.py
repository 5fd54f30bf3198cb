# SPDX-License-Identifier: LGPL-2.1-or-later
"""XFS: metadata buffers, the log, and the active item list (AIL)."""
