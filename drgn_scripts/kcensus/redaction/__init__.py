# SPDX-License-Identifier: LGPL-2.1-or-later
"""Replace names in a capsule by pseudonyms, and wipe freed memory."""
